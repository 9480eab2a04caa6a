"""The exponent of each delta: q <- q * delta ** exponent.

Fixed points do not depend on it; whether and how fast they are reached does. If the posterior would be improper, the
server halves the exponents until it is proper, and calls `backed_off` of the damping.
"""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PyTree

from cavity.core import Damping
from cavity.core.types import Leaf
from cavity.errors import CavityError


class Fixed(Damping):
    """The same exponent for every delta."""

    exponent: float = 1.0

    def __check_init__(self) -> None:
        if not 0 < self.exponent <= 1:
            raise CavityError(f"a damping exponent lies in (0, 1]; {self.exponent} does not")

    def init(self) -> PyTree:
        return None

    def choose(self, state: PyTree, gaps: Leaf, staleness: Leaf) -> tuple[Leaf, PyTree]:
        return jnp.full(len(staleness), self.exponent), state

    def backed_off(self, state: PyTree) -> PyTree:
        return state


class AdaptiveState(eqx.Module):
    """The current exponent, and the statistics from which it is chosen.

    Attributes:
        exponent: of the next delta.
        previous: the sum of all clients' gaps at the end of the last round.
        replies: how many replies this round has so far.
    """

    exponent: float | Leaf
    previous: float | Leaf
    replies: int | Leaf


class Adaptive(Damping):
    """Start at 1, decrease when the gaps grow or the posterior is improper, and increase again afterwards.

    The last gaps of all clients are summed, and the sums of consecutive rounds (as many replies as there are clients)
    are compared. So in sequential or asynchronous runs the sum does not depend on which client has just replied.

    Attributes:
        smallest: growing gaps never reduce the exponent below this.
        recovery: the factor by which the exponent grows after a round that did better.
    """

    smallest: float = 0.05
    recovery: float = 1.25

    def init(self) -> AdaptiveState:
        return AdaptiveState(1.0, float("inf"), 0)

    def choose(self, state: AdaptiveState, gaps: Leaf, staleness: Leaf) -> tuple[Leaf, AdaptiveState]:
        total, replies = jnp.sum(gaps), state.replies + len(staleness)
        whole = replies >= len(gaps)
        halved = jnp.maximum(state.exponent / 2, jnp.minimum(state.exponent, self.smallest))
        recovered = jnp.minimum(state.exponent * self.recovery, 1.0)
        judged = jnp.where(total > state.previous, halved, recovered)
        exponent = jnp.asarray(jnp.where(whole, judged, state.exponent))
        previous = jnp.where(whole, total, state.previous)
        return jnp.full(len(staleness), exponent), AdaptiveState(exponent, previous, jnp.where(whole, 0, replies))

    def backed_off(self, state: AdaptiveState) -> AdaptiveState:
        return replace(state, exponent=state.exponent / 2)


class Stale(Damping):
    """Another damping's exponents, reduced by age: exponent / (1 + versions since the posterior was sent).

    In an asynchronous run the posterior has changed since it was sent to the client.
    """

    fresh: Damping

    def init(self) -> PyTree:
        return self.fresh.init()

    def choose(self, state: PyTree, gaps: Leaf, staleness: Leaf) -> tuple[Leaf, PyTree]:
        exponents, state = self.fresh.choose(state, gaps, staleness)
        return exponents / (1.0 + staleness), state

    def backed_off(self, state: PyTree) -> PyTree:
        return self.fresh.backed_off(state)
