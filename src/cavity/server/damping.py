"""The exponent of each delta: q <- q * delta ** exponent.

Fixed points do not depend on it; whether and how fast they are reached does. A product that would be improper
is not damping's concern alone: the ledger halves the exponents until it is proper and tells the damping so.
"""

from __future__ import annotations

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

    def choose(
        self, state: PyTree, now: np.ndarray, before: np.ndarray, staleness: np.ndarray
    ) -> tuple[np.ndarray, PyTree]:
        return np.full(len(now), self.exponent), state

    def backed_off(self, state: PyTree) -> PyTree:
        return state


def one_over(num_clients: int) -> Fixed:
    """Exponent 1/M: the logarithmic opinion pool (FedGVI, proposition 4.3), safe and slow."""
    return Fixed(1.0 / num_clients)


class AdaptiveState(eqx.Module):
    """The exponent in force."""

    exponent: float = 1.0


class Adaptive(Damping):
    """Start at 1, back off when the residual grows or the product is improper, recover after.

    The residual of the clients that reply now is compared with the residual that the same clients had when
    they last replied: in a synchronous round that is all of them, in a sequential one the one at work.

    Attributes:
        smallest: the exponent is never chosen below this.
        recovery: the factor by which the exponent grows after a reply that did better.
    """

    smallest: float = 0.05
    recovery: float = 1.25

    def init(self, num_clients: int) -> AdaptiveState:
        return AdaptiveState()

    def choose(
        self, state: AdaptiveState, now: np.ndarray, before: np.ndarray, staleness: np.ndarray
    ) -> tuple[Any, AdaptiveState]:
        if np.sum(now) > np.sum(before):
            exponent = max(state.exponent / 2, self.smallest)
        else:
            exponent = min(state.exponent * self.recovery, 1.0)
        return np.full(len(now), exponent), AdaptiveState(exponent)

    def backed_off(self, state: AdaptiveState) -> AdaptiveState:
        return AdaptiveState(state.exponent / 2)
