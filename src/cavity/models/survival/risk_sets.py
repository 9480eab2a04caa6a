"""Sums over risk sets: who is at risk at each time, without a matrix of rows by rows.

Different times of a client have different numbers, in their order (bins). A row is at risk in the bins first to last,
those with

    start < time <= stop

so that for e_i = w_i exp(eta_i) the sum over the rows at risk in bin k is

    S_k = sum over rows with last >= k of e_i  -  sum over rows with first > k of e_i,

two sums over bins from the end. Numbering takes one sort, and does not depend on eta.

Exponentials are relative to m_k, the largest eta of the rows with last >= k, which decreases in k. With s_k = S_k
exp(-m_k), the sum from the end becomes the recurrence

    s_k = exp(m_{k+1} - m_k) s_{k+1} + b_k

in which nothing overflows, and without a start no risk set that has a row vanishes, whatever eta is. With a start, the
difference loses digits where rows that enter later have a far larger exp(eta) than those at risk: by a factor of e^20,
half of them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cavity.likelihoods.survival_times import SurvivalTimes
from cavity.models.survival.scans import maximum_from_the_end, recurrence_from_the_end


class Bins(NamedTuple):
    """The bins in which each row is at risk.

    Attributes:
        first: of each row; None where all rows are at risk from the beginning.
        last: of each row, that of its time.
    """

    first: Int[Array, " n"] | None
    last: Int[Array, " n"]


class RiskSums(NamedTuple):
    """Sums over the rows at risk in each bin, relative to exp(shift).

    Attributes:
        shift: m_k.
        others: the sum over rows at risk that have no event in this bin.
        events: the sum over rows with an event in this bin.
        num_events: the weight of these rows.
    """

    shift: Float[Array, " n"]
    others: Float[Array, " n"]
    events: Float[Array, " n"]
    num_events: Float[Array, " n"]


def bins_of(times: SurvivalTimes) -> Bins:
    """The bins of each row, by one sort; the bin of a time is the number of rows with a shorter one."""
    ordered = jnp.sort(times.stop)
    last = jnp.searchsorted(ordered, times.stop, side="left")
    return Bins(None if times.start is None else jnp.searchsorted(ordered, times.start, side="right"), last)


def risk_sums(eta: Float[Array, " n"], status: Float[Array, " n"], weight: Float[Array, " n"], bins: Bins) -> RiskSums:
    """The sums over all risk sets; rows of weight 0 are in none of them. The shift has no derivative."""
    num_bins, present = len(eta), weight > 0
    shift = _shift(jax.lax.stop_gradient(jnp.where(present, eta, -jnp.inf)), bins.last)

    def sums(values: Float[Array, " n"], at: Int[Array, " n"]) -> Float[Array, " n"]:
        return jax.ops.segment_sum(values, at, num_bins)

    def exponential(at: Int[Array, " n"]) -> Float[Array, " n"]:
        return weight * jnp.exp(jnp.where(present, eta - shift[at], 0.0))

    own = exponential(bins.last)
    events, censored = sums(own * status, bins.last), sums(own * (1.0 - status), bins.last)
    added = censored
    if bins.first is not None:
        before = jnp.maximum(bins.first - 1, 0)
        added = added - sums(jnp.where(bins.first > 0, exponential(before), 0.0), before)
    ratio = jnp.exp(jnp.concatenate([shift[1:], shift[-1:]]) - shift).at[-1].set(0.0)
    total = recurrence_from_the_end(ratio, events + added)
    later = ratio * jnp.concatenate([total[1:], jnp.zeros(1, total.dtype)])
    return RiskSums(shift, jnp.maximum(later + added, 0.0), events, sums(weight * status, bins.last))


def _shift(eta: Float[Array, " n"], last: Int[Array, " n"]) -> Float[Array, " n"]:
    """The largest eta of the rows of each bin and of later ones; the smallest of these where there are none."""
    largest = maximum_from_the_end(jax.ops.segment_max(eta, last, len(eta)))
    lowest = jnp.min(jnp.where(jnp.isfinite(largest), largest, jnp.inf))
    return jnp.where(jnp.isfinite(largest), largest, jnp.where(jnp.isfinite(lowest), lowest, 0.0))
