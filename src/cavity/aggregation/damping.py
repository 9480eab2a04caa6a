"""The exponent of each delta: q <- q * delta ** exponent.

Fixed points do not depend on it; whether and how fast they are reached does. A product that would be improper
is not damping's concern alone: the ledger halves the exponents until it is proper and tells the damping so.
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


def one_over(num_clients: int) -> Fixed:
    """Exponent 1/M: the logarithmic opinion pool (FedGVI, proposition 4.3), safe and slow."""
    if num_clients < 1:
        raise CavityError(f"there must be at least one client, not {num_clients}")
    return Fixed(1.0 / num_clients)


class AdaptiveState(eqx.Module):
    """The exponent in force, and what it is judged by.

    Attributes:
        exponent: of the next delta.
        previous: the sum of all members' residuals at the end of the last round.
        replies: how many replies this round has so far.
    """

    exponent: float | Leaf
    previous: float | Leaf
    replies: int | Leaf


class Adaptive(Damping):
    """Start at 1, back off when the residual grows or the product is improper, recover after.

    The last residuals of all members are summed, and compared from round to round (as many replies as there are
    members): who happens to reply, in a sequential pass or asynchronously, is not mistaken for a trend.

    Attributes:
        smallest: the residual alone never drives the exponent below this.
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
    """Another damping's exponents, weakened by age: exponent / (1 + versions since the posterior was read).

    Replies of an asynchronous run answer posteriors that others have changed since.
    """

    fresh: Damping

    def init(self) -> PyTree:
        return self.fresh.init()

    def choose(self, state: PyTree, gaps: Leaf, staleness: Leaf) -> tuple[Leaf, PyTree]:
        exponents, state = self.fresh.choose(state, gaps, staleness)
        return exponents / (1.0 + staleness), state

    def backed_off(self, state: PyTree) -> PyTree:
        return self.fresh.backed_off(state)
