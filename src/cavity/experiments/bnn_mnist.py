"""A Bayesian perceptron on MNIST, ten clients alike: does PVI do as well as pooling, for the same gradient steps?

One hidden layer of 200, mean field, local reparameterisation (Ashman et al., 2022, section 5.3.1). Both fits see every
row equally often: pooled VI is the same method with all rows at one client, and the same number of epochs in the same
number of solves. Clients work in turn, undamped; the first solve starts tight, from weights that are the same for
everybody, and later ones at the posterior. Scales learn faster than means: a factor whose scales lag behind is more
certain than its data allow, and only the client whose factor it is can take that back, so it holds up all others. Steps
fall to nothing by the end of a solve, since what is noise in a factor makes cavities improper.

The settings were chosen on the last 10,000 training images; the test images are looked at with the final settings only,
and what is judged is the last round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from cavity import metrics, plots
from cavity.algorithms import PVI
from cavity.data import partition, sources
from cavity.distributions.mean_scale import MeanScale
from cavity.experiments.runner import Journal, Size
from cavity.models import MLP, mlp_classifier
from cavity.results import Fit, run
from cavity.schedules import Sequential
from cavity.server import Fixed
from cavity.solvers import Gradient
from cavity.solvers.start import Tight

NUM_CLIENTS, HIDDEN = 10, 200
PASSES, EPOCHS_PER_VISIT, BATCH_SIZE = 10, 20, 256
STEP_SIZE, SCALES_FASTER = 3e-3, 4.0
PRIOR_SCALE, TIGHT, JITTER = 0.3, 0.03, 0.1
NUM_DRAWS = 20
GAP_BAR, ERROR_BAR, MINUTES_BAR = 0.3, 2.5, 20.0


def annealed(num_steps: int) -> Callable[[Any], optax.GradientTransformation]:
    """Adam whose steps fall to nothing by the end of a solve, and are larger for the logs of standard deviations."""

    def optimiser(step_size: Any) -> optax.GradientTransformation:
        def adam(faster: float) -> optax.GradientTransformation:
            return optax.adam(optax.cosine_decay_schedule(faster * step_size, num_steps))

        return optax.multi_transform({"mean": adam(1.0), "scale": adam(SCALES_FASTER)}, _labels)

    return optimiser


def _labels(coordinates: MeanScale) -> PyTree:
    return eqx.tree_at(lambda q: (q.mean, q.log_scale), coordinates, ("mean", "scale"))


def bnn_mnist(journal: Journal, size: Size, seed: int) -> None:
    """Both fits, PVI first."""
    began = time.monotonic()
    quick = size is Size.QUICK
    passes, epochs, hidden = (2, 2, 20) if quick else (PASSES, EPOCHS_PER_VISIT, HIDDEN)
    journal.settings(
        data="MNIST, 60,000 training and 10,000 test images",
        num_clients=NUM_CLIENTS,
        model=f"784-{hidden}-10, prior N(0, {PRIOR_SCALE}^2), mean field, local reparameterisation",
        solver=f"Adam {STEP_SIZE} (scales x {SCALES_FASTER:g}), cosine decay in each solve, batch {BATCH_SIZE}",
        budget=f"{passes} passes, {epochs} epochs per visit: {passes * epochs} gradient steps per row and batch",
        schedule="sequential, undamped",
    )
    table = sources.mnist()
    x, y = table.x[table.train], table.y[table.train]
    test = (table.x[table.test], table.y[table.test])
    parts = partition.homogeneous(np.random.default_rng(seed), len(y), NUM_CLIENTS)
    model = mlp_classifier(x.shape[1], (hidden,), 10, prior_scale=PRIOR_SCALE)
    cases = {"PVI": partition.select((x, y), parts), "pooled VI": {"pooled": (x, y)}}
    histories = {}
    for name, clients in cases.items():
        fit = _fit(journal, name, model, clients, passes, epochs, seed, _scores(model, test))
        entries = ("round", "test_error", "test_log_likelihood", "residual", "exponent", "communications", "seconds")
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


def _fit(
    journal: Journal,
    name: str,
    model: MLP,
    clients: dict[str, Any],
    passes: int,
    epochs: int,
    seed: int,
    scores: dict[str, Callable[[Any], float]],
) -> Fit:
    rows_per_client = min(len(y) for _, y in clients.values())
    num_steps = epochs * rows_per_client // BATCH_SIZE
    solver = Gradient(
        annealed(num_steps),
        STEP_SIZE,
        num_steps,
        batch_size=BATCH_SIZE,
        start=Tight(TIGHT, JITTER, first_only=True),
    )
    return run(
        PVI(model, solver=solver, damping=Fixed(1.0)),
        clients,
        schedule=Sequential(),
        rounds=passes,
        tolerance=0.0,
        seed=seed,
        metrics=scores,
        observers=[_teller(journal, name, passes)],
    )


def _teller(journal: Journal, name: str, passes: int) -> Callable[[dict[str, Any], Any], None]:
    def tell(record: dict[str, Any], server: Any) -> None:
        done, seconds = record["round"], record["seconds"]
        left = seconds / done * (passes - done)
        error = 100 * record["test_error"]
        journal.say(f"{name}: pass {done} of {passes}, test error {error:.2f} %, {seconds:.0f} s, {left:.0f} s left")

    return tell


def _scores(model: MLP, test: tuple[np.ndarray, np.ndarray]) -> dict[str, Callable[[Any], float]]:
    x, y = test

    def score(measure: Callable) -> Callable[[Any], float]:
        def of(posterior: Any) -> float:
            q = jax.tree.map(jnp.asarray, posterior)
            prediction = model.predict(q, x, key=jax.random.key(0), num_draws=NUM_DRAWS)
            return float(measure(prediction.mean, y))

        return of

    return {"test_error": score(metrics.error_rate), "test_log_likelihood": score(metrics.log_likelihood)}
