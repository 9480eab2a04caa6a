"""`cavity bench fedep`: the cost of a round of FedEP relative to one of FedAvg, in the same run.

All have the same clients, network, chain, epochs and mini-batches, and start from two rounds of FedAvg, as users do.
One round of each is timed in turn, and the result is the median over turns of the ratio to FedAvg's round of the same
turn, because other work on the machine can make a ratio larger or smaller. The ratio of processor times is reported
too; other work disturbs it less.

The expected ratio follows from the passes over a client's rows, each with one gradient per row. A chain of E epochs
makes E of them, and so does FedAvg; the covariance estimate makes more after the chain:

| method | passes after the chain | expected ratio | with E = 10 |
| --- | --- | --- | --- |
| I, M | none | 1 | 1 |
| L | F, for the Fisher information at the mean | (E + F) / E | 1.5, F = 5 |
| V | T K, for that at K draws in each of T epochs | (E + T K) / E | 3.5, T = K = 5 |

A pass for the Fisher information costs more than an epoch of the chain in one respect, since gradients are squared
before they are summed over the rows, and less in another, since it takes no steps.
"""

from __future__ import annotations

from time import process_time
from typing import Any

import numpy as np

import cavity
from cavity import training
from cavity.algorithms import FedAvg, FedEP, FedSEP
from cavity.core import Algorithm
from cavity.errors import CavityError
from cavity.models import cnn_classifier
from cavity.schedules import SampledCount
from cavity.simulation.local import LocalEngine
from cavity.solvers import SGMCMC, DiagonalFisher, NaturalVI, Point, SampleMoments, ScaledIdentity, SGDIterates
from cavity.solvers.sgmcmc.covariance import PRECISION_PER_ROW, Spread
from cavity_experiments.core_speed import judge, shared_out, timed
from cavity_experiments.runner import Journal, Size

EPOCHS, BURN_IN, BATCH_SIZE = 10, 5, 20
FISHER_EPOCHS, VI_EPOCHS, VI_DRAWS = 5, 5, 5
BASELINE = "FedAvg"
EXPECTED = {
    "FedEP (I)": 1.0,
    "FedEP (M)": 1.0,
    "FedEP (L)": (EPOCHS + FISHER_EPOCHS) / EPOCHS,
    "FedEP (V)": (EPOCHS + VI_EPOCHS * VI_DRAWS) / EPOCHS,
    "FedSEP (I)": 1.0,
}
MOST = {"FedEP (I)": 1.1, "FedSEP (I)": 1.1}  # times what is expected; of the others:
MOST_OF_OTHERS = 1.15


def bench_fedep(journal: Journal, size: Size, seed: int) -> None:
    """Seconds per round of FedAvg, FedEP (I, M, L, V) and FedSEP (I), and their ratios."""
    quick = size is Size.QUICK
    num_clients, rows_per_client, per_round, turns = (4, 20, 2, 1) if quick else (100, 100, 20, 9)
    shape = (8, 8, 1) if quick else (28, 28, 1)
    model = cnn_classifier(shape, 10, channels=(2,) if quick else (8, 16), kernel=5, seed=seed)
    journal.settings(
        num_clients=num_clients,
        rows_per_client=rows_per_client,
        clients_per_round=per_round,
        num_weights=model.prior.dimension,
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        turns=turns,
    )
    clients = shared_out(made_images(seed, num_clients * rows_per_client, shape), num_clients)
    averaging = FedAvg(model, solver=_chain(Point()))
    begun = cavity.run(averaging, clients, schedule=SampledCount(per_round), rounds=2, tolerance=0.0, seed=seed)
    rounds = {BASELINE: _Rounds(begun)}
    for name, method in _methods(model, num_clients * rows_per_client).items():
        rounds[name] = _Rounds(begun.warm_start(method, precision_per_row=PRECISION_PER_ROW))
    for one in rounds.values():
        one.round()  # compiles
    wall, processor = (np.zeros((turns, len(rounds))) for _ in range(2))
    for turn in range(turns):
        for i in np.roll(np.arange(len(rounds)), turn):  # so that no method always follows the same other one
            began = process_time()
            wall[turn, i] = timed(list(rounds.values())[i].round)
            processor[turn, i] = process_time() - began
        journal.say(f"turn {turn + 1} of {turns}")
    ratios, of_processor = (np.median(taken / taken[:, :1], axis=0) for taken in (wall, processor))  # to the first
    for name, *numbers in zip(rounds, np.median(wall, axis=0), ratios, of_processor, strict=True):
        seconds, ratio, processor_ratio = map(float, numbers)
        expected = EXPECTED.get(name, 1.0)
        journal.row(
            "rounds", method=name, seconds=seconds, ratio=ratio, processor_ratio=processor_ratio, expected=expected
        )
        if name == BASELINE:
            continue
        most = expected * MOST.get(name, MOST_OF_OTHERS)
        judge(journal, f"fedep-6 {name} round / FedAvg round", ratio, f"<= {most:.4g}", ratio <= most, quick)


def made_images(seed: int, num_rows: int, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Noisy copies of ten pictures, and which of them each is."""
    rng = np.random.default_rng(seed)
    pictures, y = rng.random((10, *shape)), rng.integers(0, 10, num_rows)
    return np.clip(pictures[y] + 0.5 * rng.normal(size=(num_rows, *shape)), 0.0, 1.0).astype(np.float32), y


def _chain(spread: Spread) -> SGMCMC:
    return SGMCMC(SGDIterates(0.01, momentum=0.9), spread, num_epochs=EPOCHS, burn_in=BURN_IN, batch_size=BATCH_SIZE)


def _methods(model: Any, num_rows: int) -> dict[str, Algorithm]:
    spreads = {
        "I": ScaledIdentity(),
        "M": SampleMoments(),
        "L": DiagonalFisher(FISHER_EPOCHS),
        "V": NaturalVI(VI_EPOCHS, VI_DRAWS),
    }
    methods: dict[str, Algorithm] = {
        f"FedEP ({variant})": FedEP(model, solver=_chain(spread), step_size=0.5) for variant, spread in spreads.items()
    }
    return methods | {"FedSEP (I)": FedSEP(model, solver=_chain(spreads["I"]), num_rows=num_rows)}


class _Rounds:
    """The rounds of a fit, including the server part."""

    def __init__(self, fit: Any):
        self._algorithm, self._schedule, self.server = fit.algorithm, fit.schedule, fit.server
        self._engine = LocalEngine(fit.algorithm, fit.clients, seed=fit.server.seed)

    def round(self) -> Any:
        self.server, record = training.run_round(self._algorithm, self._engine, self._schedule, self.server)
        if record is None or record["refused"]:
            raise CavityError("replies were refused, so that this was not one round; take smaller steps")
        return self.server.posterior
