"""No client waits for another: it starts again on the newest posterior as soon as its reply has arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import PyTree

from cavity.core import Plan, Schedule


class Asynchronous(Schedule):
    """All idle clients start; the server continues after each reply.

    A reply may answer an older posterior; it still counts once.
    """

    def next(
        self, rng: np.random.Generator, state: PyTree, gaps: Mapping[str, float], idle: Sequence[str]
    ) -> tuple[Plan, PyTree]:
        return Plan(tuple(idle), 1), state

    def visits_per_round(self, num_clients: int) -> int:
        return num_clients
