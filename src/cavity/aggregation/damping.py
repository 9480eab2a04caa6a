"""The exponent of each delta: q <- q * delta ** exponent.

Fixed points do not depend on it; whether and how fast they are reached does. If the posterior would be improper, the
server halves the exponents until it is proper, and calls `backed_off` of the damping.
"""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
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


class ProbingState(eqx.Module):
    """The exponent in force, and what it is judged by.

    Attributes:
        exponent: of the next delta.
        previous: the sum of all clients' gaps at the end of the last round.
        ratio: by how much the sum changed in the round before a probe; infinite while there is no probe.
        failed: whether a smaller exponent has been tried and was no better.
        ceiling: up to which the exponent recovers.
        replies: how many replies this round has so far.
        was_slow: whether the gaps shrank slowly in the last round.
    """

    exponent: float | Leaf
    previous: float | Leaf
    ratio: float | Leaf
    failed: bool | Leaf
    ceiling: float | Leaf
    replies: int | Leaf
    was_slow: bool | Leaf = False


class Probing(Damping):
    """As `Adaptive`, and where gaps shrink slowly, a smaller exponent is tried.

    A client with one unit may have a factor of negative precision in a log sd. Undamped rounds then overshoot by
    nearly as much as they correct: with an error multiplied by r in a round, r = -0.95, an exponent e multiplies it by
    1 - e (1 - r), which is 0.025 for e = 1/2. Where r is near 1 instead, a smaller exponent is worse. Gaps are squares
    of errors and do not show the sign of r, so it is tried after two slow rounds: half the exponent is kept if the gaps
    shrink faster with it, and taken back if not. Where gaps grew, half the exponent is what it recovers to; this
    ceiling rises slowly. In the first rounds, far from the fixed point, nothing is tried and there is no ceiling.

    Attributes:
        smallest: the gaps alone never drive the exponent below this.
        recovery: the factor by which the exponent grows after a round that did better.
        slow: the gaps shrink slowly if their sum is multiplied by more than this in a round.
        fast: they shrink fast if by less than this; then another try may follow one that failed.
        near: nats per client, below which rounds are near the fixed point.
        rise: of the ceiling in a round.
    """

    smallest: float = 0.05
    recovery: float = 1.25
    slow: float = 0.5
    fast: float = 0.2
    near: float = 0.1
    rise: float = 1.05

    def init(self) -> ProbingState:
        return ProbingState(1.0, float("inf"), float("inf"), False, 1.0, 0)

    def choose(self, state: ProbingState, gaps: Leaf, staleness: Leaf) -> tuple[Leaf, ProbingState]:
        total, replies = jnp.sum(gaps), state.replies + len(staleness)
        whole = replies >= len(gaps)
        ratio = jnp.asarray(total / jnp.maximum(state.previous, jnp.finfo(total.dtype).tiny))
        ratio = jnp.where(jnp.isfinite(state.previous), ratio, 0.0)
        exponent = jnp.asarray(state.exponent, total.dtype)
        halved = jnp.maximum(exponent / 2, jnp.minimum(exponent, self.smallest))
        failed, is_near = jnp.asarray(state.failed), total < self.near * len(gaps)
        is_probe, is_fast, grows = jnp.isfinite(state.ratio), ratio < self.fast, ratio > 1
        is_worse, is_kept = is_probe & (ratio >= state.ratio), is_probe & (ratio < state.ratio)
        is_slow = (ratio > self.slow) & ~grows
        starts = ~is_probe & ~failed & is_slow & jnp.asarray(state.was_slow) & is_near
        ceiling = jnp.minimum(state.ceiling * self.rise, 1.0)
        ceiling = jnp.where(grows & is_near, halved, jnp.where(is_kept, exponent, ceiling))
        judged = jnp.where(grows | starts, halved, jnp.minimum(exponent * self.recovery, ceiling))
        judged = jnp.where(is_worse & ~grows, jnp.minimum(2 * exponent, 1.0), judged)
        failed = is_worse | (failed & ~is_fast)
        new = ProbingState(judged, total, jnp.where(starts, ratio, jnp.inf), failed, ceiling, 0, is_slow & is_near)
        old = ProbingState(exponent, state.previous, state.ratio, state.failed, state.ceiling, replies, state.was_slow)
        chosen = jax.tree.map(lambda n, o: jnp.asarray(jnp.where(whole, n, o)), new, old)
        return jnp.full(len(staleness), chosen.exponent), chosen

    def backed_off(self, state: ProbingState) -> ProbingState:
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
