"""The exponent of each delta: q <- q * delta ** exponent.

Fixed points do not depend on it; whether and how fast they are reached does. A product that would be improper
is not damping's concern alone: the ledger halves the exponents until it is proper and tells the damping so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from cavity.errors import CavityError
from cavity.interfaces import Damping


class Fixed(Damping):
    """The same exponent for every delta."""

    exponent: float = 1.0

    def __check_init__(self) -> None:
        if not 0 < self.exponent <= 1:
            raise CavityError(f"a damping exponent lies in (0, 1]; {self.exponent} does not")

    def init(self, num_clients: int) -> PyTree:
        return None

    def choose(self, state: PyTree, residuals: np.ndarray, staleness: np.ndarray) -> tuple[np.ndarray, PyTree]:
        return np.full(len(residuals), self.exponent), state

    def backed_off(self, state: PyTree) -> PyTree:
        return state


def one_over(num_clients: int) -> Fixed:
    """Exponent 1/M: the logarithmic opinion pool (FedGVI, proposition 4.3), safe and slow."""
    return Fixed(1.0 / num_clients)


class AdaptiveState(eqx.Module):
    """The exponent in force, and the residuals by which it is judged.

    Attributes:
        exponent: of the next delta.
        previous: the sum of residuals over the last whole round.
        total: the sum so far in this round.
        replies: how many replies it has so far.
        num_clients: how many make a round.
    """

    exponent: float
    previous: float
    total: float
    replies: int
    num_clients: int


class Adaptive(Damping):
    """Start at 1, back off when the residual grows or the product is improper, recover after.

    Residuals are summed over rounds (as many replies as there are clients) and compared from round to round, so
    that one client's turn in a sequential pass is not mistaken for a trend.

    Attributes:
        smallest: the residual alone never drives the exponent below this.
        recovery: the factor by which the exponent grows after a round that did better.
    """

    smallest: float = 0.05
    recovery: float = 1.25

    def init(self, num_clients: int) -> AdaptiveState:
        return AdaptiveState(1.0, float("inf"), 0.0, 0, num_clients)

    def choose(self, state: AdaptiveState, residuals: np.ndarray, staleness: np.ndarray) -> tuple[Any, AdaptiveState]:
        total, replies = state.total + float(np.sum(residuals)), state.replies + len(residuals)
        if replies < state.num_clients:
            state = replace(state, total=total, replies=replies)
        elif total > state.previous:
            exponent = max(state.exponent / 2, min(state.exponent, self.smallest))
            state = AdaptiveState(exponent, total, 0.0, 0, state.num_clients)
        else:
            exponent = min(state.exponent * self.recovery, 1.0)
            state = AdaptiveState(exponent, total, 0.0, 0, state.num_clients)
        return np.full(len(residuals), state.exponent), state

    def backed_off(self, state: AdaptiveState) -> AdaptiveState:
        return replace(state, exponent=state.exponent / 2)
