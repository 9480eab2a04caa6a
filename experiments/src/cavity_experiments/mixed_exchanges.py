"""How many exchanges PVI on the marginal likelihood and SFVI need until all means are within 0.05 posterior sds.

The reference is the pooled fit, corrected by importance weights (`Fit.verdict`). SFVI runs with its defaults for a
fixed number of exchanges. Counted is the first exchange from which on all means stay within the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cavity.algorithms import PVI, SFVI
from cavity.fit.run import Fit, run
from cavity_experiments.joint_nuts import latent_model
from cavity_experiments.runner import Journal, Size

NEAR = 0.05  # posterior sds
EXCHANGES = {Size.QUICK: 200, Size.DEFAULT: 4000, Size.FULL: 20_000}
ROUNDS = 10


def settled(values: list[float]) -> int | None:
    """The first exchange, from 1, from which on all values are small; None if there is none."""
    far = [i for i, value in enumerate(values, 1) if not value <= NEAR]
    first = far[-1] + 1 if far else 1
    return first if first <= len(values) else None


def exchanges(
    journal: Journal, name: str, pooled: Fit, algorithm: PVI, clients: dict[str, Any], size: Size, seed: int
) -> None:
    """Count the exchanges of both methods over these clients."""
    verdict = pooled.verdict
    if not verdict.means:
        journal.say(f"{name}: no corrected means to compare with ({verdict})")
        return
    means = np.array([verdict.means[at] for at in pooled.algorithm.model.parameter_names])
    sds = np.array([verdict.sds[at] for at in pooled.algorithm.model.parameter_names])

    def off(mean: Callable[[Any], Any]) -> dict[str, Callable[[Any], float]]:
        return {"off": lambda posterior: float(np.max(np.abs(np.asarray(mean(posterior)) - means) / sds))}

    ours = run(algorithm, clients, rounds=ROUNDS, tolerance=0.0, metrics=off(lambda q: q.mean), seed=seed)
    theirs = run(
        SFVI(latent_model(pooled)),
        clients,
        rounds=EXCHANGES[size],
        tolerance=0.0,
        metrics=off(lambda posterior: posterior.q.mean),
        seed=seed,
    )
    for method, fit in (("PVI on the marginal likelihood", ours), ("SFVI", theirs)):
        by_round = [float(record["off"]) for record in fit.history]
        needed = settled(by_round)
        journal.row(
            "exchanges",
            study=name,
            clients=len(clients),
            method=method,
            exchanges=needed,
            run=len(by_round),
            off_at_the_end=by_round[-1],
        )
        journal.say(f"{name}, {method}: {needed or f'more than {len(by_round)}'} exchanges to {NEAR} sd")
