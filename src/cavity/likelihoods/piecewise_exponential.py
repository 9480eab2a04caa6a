"""A time to an event whose hazard is constant between agreed cut points.

    hazard in interval j = exp(f_1 + d_j),     d_1 = 0,     (d_2, ..., d_J) = (f_2, ..., f_J)

Intervals are (0, c_1], (c_1, c_2], ..., (c_{J-1}, inf). With a row's time e_j spent in interval j,

    log p = status (f_1 + d_{j of the stop}) - sum_j e_j exp(f_1 + d_j).

Under a Gaussian of f its expectation is the same with variances: E exp(f_1 + d_j) = exp(mean + variance / 2).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cavity.core import ExpectedLogProb
from cavity.core.likelihood import Outcomes
from cavity.likelihoods.survival_times import SurvivalLikelihood, survival_times


class Episodes(NamedTuple):
    """What happened to each row in each interval.

    Attributes:
        exposure: the time at risk.
        events: 1 for an event, otherwise 0.
    """

    exposure: Float[Array, "*batch j"]
    events: Float[Array, "*batch j"]


def episodes(y: Outcomes, cuts: tuple[float, ...]) -> Episodes:
    """Split survival outcomes at cut points; a time that is a cut point is in the interval before it."""
    times = survival_times(y)
    low, high = (jnp.asarray(ends, times.stop.dtype) for ends in ((0.0, *cuts), (*cuts, jnp.inf)))
    stop = times.stop[..., None]
    exposure = jnp.clip(stop, low, high) - low
    if times.start is not None:
        exposure = exposure - (jnp.clip(times.start[..., None], low, high) - low)
    return Episodes(exposure, times.status[..., None] * ((low < stop) & (stop <= high)))


def interval_names(cuts: tuple[float, ...]) -> tuple[str, ...]:
    """`(0, 100]`, `(100, 200]`, `(200, inf)`."""
    ends = [f"{cut:.15g}" for cut in (0.0, *cuts)]
    return (*(f"({low}, {high}]" for low, high in pairwise(ends)), f"({ends[-1]}, inf)")


def cuts_problem(cuts: tuple[float, ...]) -> str | None:
    """Why these are no cut points, or None."""
    if not cuts:
        return (
            "a piecewise exponential model needs agreed cut points, such as cuts = [90, 365], in the unit of the time"
        )
    if not all(math.isfinite(cut) and cut > 0 for cut in cuts) or any(np.diff(cuts) <= 0):
        return f"cut points are positive and increase: {', '.join(f'{cut:g}' for cut in cuts)} do not"
    return None


class PiecewiseExponentialTime(SurvivalLikelihood, ExpectedLogProb):
    """A time with a hazard that is constant between cut points.

    Attributes:
        cuts: the cut points, positive and increasing.
        late_entry: whether outcomes have a start.
    """

    ratio: ClassVar[str | None] = "hazard ratio"

    cuts: tuple[float, ...] = eqx.field(static=True, kw_only=True)
    late_entry: bool = eqx.field(static=True, default=False)

    @property
    def num_predictors(self) -> int:
        return 1 + len(self.cuts)

    def _log_hazard(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch k"]:
        return jnp.concatenate([f[..., :1], f[..., :1] + f[..., 1:]], axis=-1)

    def _with_rates(
        self, log_hazard: Float[Array, "*batch k"], log_rate: Float[Array, "*batch k"], y: Outcomes
    ) -> Float[Array, " *batch"]:
        parts = episodes(y, self.cuts)
        return jnp.sum(parts.events * log_hazard - parts.exposure * jnp.exp(log_rate), axis=-1)

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        log_hazard = self._log_hazard(f)
        return self._with_rates(log_hazard, log_hazard, y)

    def expected_log_prob(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Outcomes
    ) -> Float[Array, " n"]:
        own = jnp.diagonal(covariance, axis1=-2, axis2=-1)
        later = own[..., :1] + own[..., 1:] + 2.0 * covariance[..., 0, 1:]
        variance = jnp.concatenate([own[..., :1], later], axis=-1)
        log_hazard = self._log_hazard(mean)
        return self._with_rates(log_hazard, log_hazard + 0.5 * variance, y)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        """The expected time: the integral of the probability to be without an event."""
        hazard = jnp.exp(self._log_hazard(f))
        width = jnp.diff(jnp.asarray((0.0, *self.cuts), f.dtype))
        risk = hazard[..., :-1] * width
        nothing = jnp.zeros_like(risk[..., :1])
        start = jnp.exp(-jnp.concatenate([nothing, jnp.cumsum(risk, axis=-1)], axis=-1))
        inside = jnp.concatenate([-jnp.expm1(-risk), jnp.ones_like(nothing)], axis=-1)
        return jnp.sum(start * inside / hazard, axis=-1)
