"""Schedule: which clients work when."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import PyTree


@dataclass(frozen=True)
class Plan:
    """Who starts now, and how many replies to wait for before the next plan."""

    start: tuple[str, ...]
    wait: int


class Schedule(eqx.Module):
    """Which clients work when."""

    is_synchronous: ClassVar[bool] = False  # every plan is all clients, so that rounds can run as a block

    def init(self, names: Sequence[str]) -> PyTree:
        """The state before the first plan; None for most. Also called when a client joins or leaves."""
        return None

    @abc.abstractmethod
    def next(
        self, rng: np.random.Generator, state: PyTree, gaps: Mapping[str, float], idle: Sequence[str]
    ) -> tuple[Plan, PyTree]:
        """The next plan.

        Args:
            rng: the generator for this plan.
            state: the state that `init` or `next` returned.
            gaps: the last gap of each client; infinite before its first reply.
            idle: the clients without an outstanding message.
        """

    @abc.abstractmethod
    def visits_per_round(self, num_clients: int) -> int:
        """How many accepted replies make a round, the unit of the history and of `rounds=`."""
