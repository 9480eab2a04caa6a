"""One client at a time, each on the posterior after the client before it. A round is a pass over all.

Three orders: as the clients were given, shuffled for each pass, or by their last gap, the largest first. `Pass` is the
position within a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import equinox as eqx
import numpy as np

from cavity.core import Plan, Schedule


class Pass(eqx.Module):
    """The clients still to visit in this pass, in order."""

    left: tuple[str, ...] = ()


def _visit(order: Sequence[str]) -> tuple[Plan, Pass]:
    return Plan((order[0],), 1), Pass(tuple(order[1:]))


class Sequential(Schedule):
    """In the order in which the clients were given."""

    def init(self, names: Sequence[str]) -> Pass:
        return Pass()

    def next(
        self, rng: np.random.Generator, state: Pass, gaps: Mapping[str, float], idle: Sequence[str]
    ) -> tuple[Plan, Pass]:
        return _visit(state.left or tuple(gaps))

    def visits_per_round(self, num_clients: int) -> int:
        return num_clients


class SequentialShuffled(Schedule):
    """In a new random order for each pass."""

    def init(self, names: Sequence[str]) -> Pass:
        return Pass()

    def next(
        self, rng: np.random.Generator, state: Pass, gaps: Mapping[str, float], idle: Sequence[str]
    ) -> tuple[Plan, Pass]:
        names = tuple(gaps)
        return _visit(state.left or tuple(names[i] for i in rng.permutation(len(names))))

    def visits_per_round(self, num_clients: int) -> int:
        return num_clients


class SequentialLargestFirst(Schedule):
    """In the order of the last gap, the largest first; clients without a reply before all others."""

    def init(self, names: Sequence[str]) -> Pass:
        return Pass()

    def next(
        self, rng: np.random.Generator, state: Pass, gaps: Mapping[str, float], idle: Sequence[str]
    ) -> tuple[Plan, Pass]:
        return _visit(state.left or tuple(sorted(gaps, key=lambda name: -gaps[name])))

    def visits_per_round(self, num_clients: int) -> int:
        return num_clients
