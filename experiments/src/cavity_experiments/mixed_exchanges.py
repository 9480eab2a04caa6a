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
ROUNDS, BLOCK = 10, 10  # of PVI; exchanges of SFVI from one measurement to the next


def settled(values: dict[int, float]) -> int | None:
    """The first of the exchanges at which it was measured from which on all values are small; None if there is none."""
    found = None
    for exchange, value in sorted(values.items(), reverse=True):
        if not value <= NEAR:
            break
        found = exchange
    return found


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
        rounds_per_block=BLOCK,
    )
    for method, fit in (("PVI on the marginal likelihood", ours), ("SFVI", theirs)):
        by_round = {int(record["round"]): float(record["off"]) for record in fit.history if "off" in record}
        needed, last = settled(by_round), max(by_round)
        journal.row(
            "exchanges",
            study=name,
            clients=len(clients),
            method=method,
            exchanges=needed,
            run=last,
            off_at_the_end=by_round[last],
        )
        journal.say(f"{name}, {method}: {needed or f'more than {last}'} exchanges to {NEAR} sd")
