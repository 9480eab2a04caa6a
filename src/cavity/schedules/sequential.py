"""One client at a time, each on the posterior after the client before it. A round is a pass over all.

Three orders: as the clients were given, shuffled for each pass, or by their last gap, the largest first. `Pass` is the
position within a pass.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

import equinox as eqx
import numpy as np

from cavity.core import Plan, Schedule


class Pass(eqx.Module):
    """The clients still to visit in this pass, in order."""

    left: tuple[str, ...] = ()


class _InTurn(Schedule):
    """One client per plan, in the order of the pass."""

    @abc.abstractmethod
    def order(self, rng: np.random.Generator, gaps: Mapping[str, float]) -> Sequence[str]:
        """The order of a new pass over all clients."""

    def init(self, names: Sequence[str]) -> Pass:
        return Pass()

    def next(
        self, rng: np.random.Generator, state: Pass, gaps: Mapping[str, float], idle: Sequence[str]
    ) -> tuple[Plan, Pass]:
        first, *left = state.left or self.order(rng, gaps)
        return Plan((first,), 1), Pass(tuple(left))

    def visits_per_round(self, num_clients: int) -> int:
        return num_clients


class Sequential(_InTurn):
    """In the order in which the clients were given."""

    def order(self, rng: np.random.Generator, gaps: Mapping[str, float]) -> Sequence[str]:
        return tuple(gaps)


class SequentialShuffled(_InTurn):
    """In a new random order for each pass."""

    def order(self, rng: np.random.Generator, gaps: Mapping[str, float]) -> Sequence[str]:
        names = tuple(gaps)
        return tuple(names[i] for i in rng.permutation(len(names)))


class SequentialLargestFirst(_InTurn):
    """In the order of the last gap, the largest first; clients without a reply before all others."""

    def order(self, rng: np.random.Generator, gaps: Mapping[str, float]) -> Sequence[str]:
        return sorted(gaps, key=lambda name: -gaps[name])
