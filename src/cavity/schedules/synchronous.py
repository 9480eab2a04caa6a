"""All clients work on the same posterior, and the server waits for all replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import PyTree

from cavity.core import Plan, Schedule


class Synchronous(Schedule):
    """All clients at once; a round is one exchange with each."""

    is_synchronous: ClassVar[bool] = True

    def next(
        self, rng: np.random.Generator, state: PyTree, gaps: Mapping[str, float], idle: Sequence[str]
    ) -> tuple[Plan, PyTree]:
        return Plan(tuple(idle), len(idle)), state

    def visits_per_round(self, num_clients: int) -> int:
        return num_clients
