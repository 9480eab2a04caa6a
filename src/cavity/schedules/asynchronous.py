"""Nobody waits: a client starts again on the newest posterior as soon as its reply is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import PyTree

from cavity.core import Plan, Schedule


class Asynchronous(Schedule):
    """All idle clients start; the server goes on after one reply. Others may be stale, and still count once."""

    def next(
        self, rng: np.random.Generator, state: PyTree, gaps: Mapping[str, float], idle: Sequence[str]
    ) -> tuple[Plan, PyTree]:
        return Plan(tuple(idle), 1), state

    def visits_per_round(self, num_clients: int) -> int:
        return num_clients
