"""Random clients in each round, for federations of very many clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from cavity.core import Plan, Schedule
from cavity.errors import CavityError


class SampledCount(Schedule):
    """`count` different clients per round, each set equally likely."""

    count: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.count < 1:
            raise CavityError(f"a round needs at least one client; {self.count} were asked for")

    def next(
        self, rng: np.random.Generator, state: PyTree, gaps: Mapping[str, float], idle: Sequence[str]
    ) -> tuple[Plan, PyTree]:
        size = min(self.count, len(idle))
        chosen = sorted(rng.choice(len(idle), size, replace=False))
        return Plan(tuple(idle[int(i)] for i in chosen), size), state

    def visits_per_round(self, num_clients: int) -> int:
        return min(self.count, num_clients)


class SampledShare(Schedule):
    """Each client with probability `share`, independently; an empty sample is drawn again."""

    share: float

    def __check_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise CavityError(f"the share of clients lies in (0, 1]; {self.share} does not")

    def next(
        self, rng: np.random.Generator, state: PyTree, gaps: Mapping[str, float], idle: Sequence[str]
    ) -> tuple[Plan, PyTree]:
        taken = np.zeros(len(idle), bool)
        while not taken.any():
            taken = rng.random(len(idle)) < self.share
        start = tuple(name for name, is_taken in zip(idle, taken, strict=True) if is_taken)
        return Plan(start, len(start)), state

    def visits_per_round(self, num_clients: int) -> int:
        return 1
