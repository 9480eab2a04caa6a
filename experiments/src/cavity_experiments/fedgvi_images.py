"""FedGVI with wrong labels (Mildner et al., 2025, section 5.5): MNIST (table 1) and Fashion-MNIST (table 2).

The authors' generalised cross entropy is summed over its ten Monte Carlo samples, so its weight against the divergence
is ten times the written one. Here a loss does not depend on the number of samples, and the weight is explicit: w = 10
is theirs, w = 1 what is written.

Differences from the authors' settings, chosen on the last 10,000 training images with wrong labels as in training:

- Clients work one after the other, undamped: the accuracy on MNIST with ten clients is 97.4 % after 40 epochs. In
  synchronous rounds with damping 1/M it is 95.0 % after 50.
- The prior has standard deviation 0.3 (theirs is 1, which gives 97.2).
- Adam's step is 3e-3 with decay in each solve, 6e-3 for ten clients (theirs 5e-4), for PVI as for FedGVI.
- On Fashion-MNIST w is 30. With 10 and right labels 88.8 % are right after 60 epochs, with 30 89.1 after 45.

Test images have the right labels and are never used to choose: on MNIST the last pass counts, on Fashion-MNIST the
setting is chosen by the wrong labels of 10,000 training images that are held out. The error of every pass is in the
result.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from cavity import losses
from cavity.aggregation import Fixed
from cavity.algorithms import PVI, FedGVI
from cavity.datasets import partition
from cavity.datasets.contamination import MNIST_FLIPS, flip_by_class, flip_uniformly
from cavity.divergences import KL, Renyi
from cavity.models import MLP, mlp_classifier
from cavity.reporting import plots
from cavity_experiments import images, sources
from cavity_experiments.images import Images
from cavity_experiments.runner import Journal, Size

HIDDEN, ALPHA = 200, 2.5
MANY_CLIENTS_STEP_SIZE = 6e-3  # ten clients have fewer rows, so fewer steps per visit, which are larger
MNIST_DELTA, MNIST_SHARE, MNIST_PASSES, MNIST_EPOCHS = 0.8, 0.1, 6, 10
FASHION_CLIENTS, FASHION_HELD_OUT, FASHION_PASSES, FASHION_EPOCHS = 3, 10_000, 5, 15
FASHION_SETTINGS = ((0.5, 30.0), (0.8, 30.0))  # delta and w
# accuracies in per cent: table 1 for 10 and 3 clients, table 2's best for each share of wrong labels
PAPER_MNIST = {
    "PVI": (95.56, 96.68),
    "Renyi": (96.36, 97.13),
    "GCE, w = 10": (97.06, 98.04),
    "Renyi + GCE, w = 10": (97.50, 98.13),
}
PAPER_FASHION = {0.0: 89.0, 0.1: 88.6, 0.2: 88.4, 0.4: 87.2}
PAPER_FASHION_PVI = {0.0: 86.2, 0.1: 85.1, 0.2: 84.4, 0.4: 82.8}
MNIST_BARS = {10: 97.2, 3: 97.8}


def method(name: str, model: MLP, solver: Any, delta: float = MNIST_DELTA) -> Any:
    """A method by its name in the tables: "PVI", or parts such as "Renyi + GCE, w = 10"."""
    if name == "PVI":
        return PVI(model, solver=solver, damping=Fixed(1.0))
    parts, _, weight = name.partition(", w = ")
    loss: Any = losses.NegativeLogLikelihood()
    if "GCE" in parts:
        loss = losses.Tempered(float(weight), losses.GeneralisedCrossEntropy(delta))
    divergence = Renyi(ALPHA) if "Renyi" in parts else KL()
    return FedGVI(model, loss, divergence, solver=solver, damping=Fixed(1.0))


def fedgvi_mnist(journal: Journal, size: Size, seed: int) -> None:
    """Ten per cent of MNIST's labels wrong by class, 10 and 3 clients, and all rows pooled."""
    quick = size is Size.QUICK
    passes, epochs, hidden = (2, 1, 50) if quick else (MNIST_PASSES, MNIST_EPOCHS, HIDDEN)
    decisive = ("PVI", "Renyi + GCE, w = 10", "Renyi + GCE, w = 1")
    names = ("PVI", "Renyi", "GCE, w = 10", *decisive[1:]) if size is Size.FULL else decisive
    pooled = ("PVI", "Renyi + GCE, w = 10") if size is Size.FULL else ("Renyi + GCE, w = 10",)
    journal.settings(
        data=f"MNIST, {MNIST_SHARE:.0%} of 60,000 training labels wrong by class, 10,000 right test labels",
        loss=f"generalised cross entropy, delta {MNIST_DELTA}; Renyi divergence, alpha {ALPHA}",
        **_training(passes, epochs, hidden),
    )
    table = sources.mnist()
    test = (table.x[table.test], table.y[table.test])
    for this in range(seed, seed + (5 if size is Size.FULL else 1)):
        rng = np.random.default_rng((this, 54))
        x, y = table.x[table.train], flip_by_class(rng, table.y[table.train], MNIST_SHARE, MNIST_FLIPS)
        accuracies: dict[tuple[str, int], float] = {}
        histories = {}
        for num_clients in (10, 3, 1):
            parts = partition.homogeneous(rng, len(y), num_clients)
            clients = partition.select((x, y), parts)
            for name in pooled if num_clients == 1 else names:
                label = f"{name}, {num_clients} clients" if num_clients > 1 else f"{name}, pooled"
                records, seconds = _fit(journal, label, name, clients, passes, epochs, hidden, this, test, None)
                accuracies[name, num_clients] = accuracy = 100 * (1 - records[-1]["test_error"])
                histories[label] = records
                paper = PAPER_MNIST.get(name, (None, None))[0 if num_clients == 10 else 1] if num_clients > 1 else None
                journal.row("mnist", seed=this, method=name, clients=num_clients, accuracy=accuracy, paper=paper,
                            seconds=seconds)  # fmt: skip
        _check_mnist(journal, accuracies, f", seed {this}" if size is Size.FULL else "", judged=not quick)
        journal.put(f"histories of seed {this}", histories)
        journal.figure(
            f"error-{this}",
            lambda histories=histories: plots.compare(histories, "test_error", label="test error", against="round"),
        )


def _check_mnist(journal: Journal, accuracies: Mapping[tuple[str, int], float], suffix: str, *, judged: bool) -> None:
    robust = "Renyi + GCE, w = 10"
    gvi = accuracies[robust, 1]
    for num_clients, bar in MNIST_BARS.items():
        ours, pvi = accuracies[robust, num_clients], accuracies["PVI", num_clients]
        who = f"{num_clients} clients{suffix}"
        for what, value, asked, holds in (
            ("a accuracy of Renyi + GCE, w = 10, %", ours, f">= {bar}", ours >= bar),
            ("b points above PVI", ours - pvi, ">= 1", ours - pvi >= 1),
            ("c points below pooled GVI", gvi - ours, "<= 0.5", gvi - ours <= 0.5),
        ):
            journal.check(f"fedgvi-7{what}, {who}", value, asked, holds if judged else None)


def fedgvi_fashion(journal: Journal, size: Size, seed: int) -> None:
    """Fashion-MNIST with 0, 10, 20 and 40 % of labels random, three clients."""
    quick = size is Size.QUICK
    passes, epochs, hidden = (1, 1, 50) if quick else (FASHION_PASSES, FASHION_EPOCHS, HIDDEN)
    settings = [(delta, w) for delta in (0.4, 0.5, 0.8, 1.0) for w in (10.0, 30.0)]
    settings = settings if size is Size.FULL else FASHION_SETTINGS
    journal.settings(
        data="Fashion-MNIST, 50,000 labels to train and 10,000 to choose, both with wrong ones; 10,000 test labels",
        num_clients=FASHION_CLIENTS,
        loss=f"generalised cross entropy with (delta, w) from {settings}; Renyi divergence, alpha {ALPHA}",
        **_training(passes, epochs, hidden),
    )
    table = sources.fashion_mnist()
    test = (table.x[table.test], table.y[table.test])
    for this in range(seed, seed + (5 if size is Size.FULL else 1)):
        for share, paper in PAPER_FASHION.items():
            rng = np.random.default_rng((this, 55))
            labels = table.y[table.train]
            labels = flip_uniformly(rng, labels, share, 10) if share else labels
            order = rng.permutation(len(labels))
            kept, held_out = order[FASHION_HELD_OUT:], order[:FASHION_HELD_OUT]
            x = table.x[table.train]
            validation = (x[held_out], labels[held_out])
            parts = partition.homogeneous(rng, len(kept), FASHION_CLIENTS)
            clients = partition.select((x[kept], labels[kept]), parts)
            found = []
            for delta, w in settings:
                label, name = f"{share:.0%} wrong, delta {delta:g}, w {w:g}", f"Renyi + GCE, w = {w:g}"
                records, seconds = _fit(
                    journal, label, name, clients, passes, epochs, hidden, this, test, validation, delta
                )
                found.append((records[-1]["validation_error"], 100 * (1 - records[-1]["test_error"]), delta, w))
                journal.row("fashion", seed=this, wrong=share, delta=delta, w=w, accuracy=found[-1][1],
                            validation=100 * (1 - found[-1][0]), seconds=seconds)  # fmt: skip
            pvi = None
            if size is Size.FULL:
                label = f"{share:.0%} wrong, PVI"
                records, _ = _fit(journal, label, "PVI", clients, passes, epochs, hidden, this, test, validation)
                pvi = 100 * (1 - records[-1]["test_error"])
            _, accuracy, delta, w = min(found, key=lambda entry: entry[0])
            journal.row("chosen", seed=this, wrong=share, delta=delta, w=w, accuracy=accuracy, paper=paper, pvi=pvi,
                        paper_pvi=PAPER_FASHION_PVI[share])  # fmt: skip
            suffix = f", seed {this}" if size is Size.FULL else ""
            name = f"fedgvi-7d accuracy with {share:.0%} wrong labels, %{suffix}"
            bar = paper - 0.3
            journal.check(name, accuracy, f">= {bar:.1f}", None if quick else accuracy >= bar)


def _training(passes: int, epochs: int, hidden: int) -> dict[str, str]:
    return {
        "model": f"784-{hidden}-10, prior N(0, {images.PRIOR_SCALE}^2), mean field, local reparameterisation",
        "solver": f"Adam {images.STEP_SIZE}, for 10 clients {MANY_CLIENTS_STEP_SIZE}, with cosine decay in each solve",
        "batch": f"{images.BATCH_SIZE}; scales take {images.SCALES_FASTER:g} times larger steps than means",
        "budget": f"{passes} passes, {epochs} epochs per visit, sequential, undamped",
    }


def _fit(
    journal: Journal,
    label: str,
    name: str,
    clients: Mapping[str, Images],
    passes: int,
    epochs: int,
    hidden: int,
    seed: int,
    test: Images,
    validation: Images | None,
    delta: float = MNIST_DELTA,
) -> tuple[list[dict[str, Any]], float]:
    """The history of one fit, and its duration in seconds."""
    began = time.monotonic()
    model = mlp_classifier(784, (hidden,), 10, prior_scale=images.PRIOR_SCALE)
    scores = {"test_error": images.error_rate(model, test)}
    if validation is not None:
        scores = {"validation_error": images.error_rate(model, validation)} | scores
    step_size = MANY_CLIENTS_STEP_SIZE if len(clients) == 10 else images.STEP_SIZE
    algorithm = method(name, model, images.perceptron_solver(clients, epochs, step_size), delta)
    fit = images.train(journal, label, algorithm, clients, passes, seed, scores)
    entries = ("round", *scores, "gap", "exponent", "refused", "seconds")
    return [{entry: record[entry] for entry in entries} for record in fit.history], time.monotonic() - began
