"""A Bayesian perceptron on MNIST, ten similar clients: is PVI as good as pooling, with the same gradient steps?

One hidden layer of 200, mean field, local reparameterisation (Ashman et al., 2022, section 5.3.1). Both fits see every
row equally often: pooled VI is the same method with all rows at one client, and the same number of epochs in the same
number of solves. Clients work one after the other, undamped (`images.py` says why).

The settings were chosen on the last 10,000 training images; the test images are evaluated with the final settings only,
at the last round.
"""

from __future__ import annotations

import time

import numpy as np

from cavity.aggregation import Fixed
from cavity.algorithms import PVI
from cavity.datasets import partition
from cavity.models import mlp_classifier
from cavity.reporting import plots
from cavity_experiments import images, sources
from cavity_experiments.runner import Journal, Size

NUM_CLIENTS, HIDDEN = 10, 200
PASSES, EPOCHS_PER_VISIT = 10, 20
GAP_BAR, ERROR_BAR, MINUTES_BAR = 0.3, 2.5, 20.0


def bnn_mnist(journal: Journal, size: Size, seed: int) -> None:
    """Both fits, PVI first."""
    began = time.monotonic()
    quick = size is Size.QUICK
    passes, epochs, hidden = (2, 2, 20) if quick else (PASSES, EPOCHS_PER_VISIT, HIDDEN)
    journal.settings(
        data="MNIST, 60,000 training and 10,000 test images",
        num_clients=NUM_CLIENTS,
        model=f"784-{hidden}-10, prior N(0, {images.PRIOR_SCALE}^2), mean field, local reparameterisation",
        solver=f"Adam {images.STEP_SIZE} (scales x {images.SCALES_FASTER:g}), cosine decay in each solve, "
        f"batch {images.BATCH_SIZE}",
        budget=f"{passes} passes, {epochs} epochs per visit: {passes * epochs} gradient steps per row and batch",
        schedule="sequential, undamped",
    )
    table = sources.mnist()
    x, y = table.x[table.train], table.y[table.train]
    test = (table.x[table.test], table.y[table.test])
    parts = partition.homogeneous(np.random.default_rng(seed), len(y), NUM_CLIENTS)
    model = mlp_classifier(x.shape[1], (hidden,), 10, prior_scale=images.PRIOR_SCALE)
    scores = {"test_error": images.error_rate(model, test), "test_log_likelihood": images.log_likelihood(model, test)}
    cases = {"PVI": partition.select((x, y), parts), "pooled VI": {"pooled": (x, y)}}
    histories = {}
    for name, clients in cases.items():
        method = PVI(model, solver=images.perceptron_solver(clients, epochs), damping=Fixed(1.0))
        fit = images.train(journal, name, method, clients, passes, seed, scores)
        entries = ("round", "test_error", "test_log_likelihood", "gap", "exponent", "communications", "seconds")
        histories[name] = [{entry: record[entry] for entry in entries} for record in fit.history]
        journal.put("histories", histories)
        journal.row("fits", fit=name, **histories[name][-1])
    errors = {name: 100 * history[-1]["test_error"] for name, history in histories.items()}
    gap, worst = abs(errors["PVI"] - errors["pooled VI"]), max(errors.values())
    minutes = (time.monotonic() - began) / 60

    def check(name: str, value: float, bar: str, holds: bool) -> None:
        journal.check(name, value, bar, None if quick else holds)

    check("speed-5a |test error of PVI - of pooled VI|, points", gap, "<= 0.3", gap <= GAP_BAR)
    check("speed-5b larger test error of both, %", worst, "<= 2.5", worst <= ERROR_BAR)
    check("speed-5c minutes for both fits", minutes, "< 20", minutes < MINUTES_BAR)
    journal.figure("error", lambda: plots.compare(histories, "test_error", label="test error", against="round"))
