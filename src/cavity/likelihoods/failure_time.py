"""Accelerated failure time: the logarithm of a time to an event, in the parametrisation of R's `survreg`.

    log T = f + s W,     s = exp(log scale)

| likelihood | W |
| --- | --- |
| `WeibullTime` | smallest extreme value: P(W > w) = exp(-exp(w)) |
| `LogNormalTime` | standard normal |
| `ExponentialTime` | smallest extreme value, with s = 1 |

Outcomes are `[..., 2]`, time and status, or `[..., 3]`, start, stop and status (`survival_times`). With z = (log t - f)
/ s an event has the log density log p(z) - log s - log t of its time, and a censored row log P(W > z); a row that is
observed from a start on has this minus log P(W > z) at the start.
"""

from __future__ import annotations

import abc
import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from cavity.core import ClosedFormMean, ExpectedLogProb
from cavity.core.likelihood import OnePredictor, Outcomes
from cavity.core.types import Leaf
from cavity.likelihoods.survival_times import SurvivalLikelihood, survival_times

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
FAR = 5.0  # standard deviations, above which the normal tail is a continued fraction
FRACTIONS = 40
STEEP = 20.0


class FailureTime(SurvivalLikelihood):
    """A time whose logarithm has the location f_1 and the scale exp(f_2).

    Attributes:
        floor: added to the scale in squares, or None. Without it a client whose times are all equal would pull the
            scale to 0.
        late_entry: whether outcomes have a start.
    """

    ratio: ClassVar[str | None] = "time ratio"

    floor: Float[Leaf, ""] | float | None = None
    late_entry: bool = eqx.field(static=True, default=False)

    @property
    def num_predictors(self) -> int:
        return 2

    @abc.abstractmethod
    def log_density(self, z: Float[Array, " *batch"]) -> Float[Array, " *batch"]:
        """The log density of W."""

    @abc.abstractmethod
    def log_survival(self, z: Float[Array, " *batch"]) -> Float[Array, " *batch"]:
        """Log P(W > z)."""

    def log_scale(self, f: Float[Array, "*batch k"]) -> Float[Array, " *batch"]:
        """Log s."""
        if self.floor is None:
            return f[..., 1]
        return 0.5 * jnp.logaddexp(2.0 * f[..., 1], 2.0 * jnp.log(jnp.asarray(self.floor, f.dtype)))

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        times, log_scale = survival_times(y), self.log_scale(f)
        log_stop, died = jnp.log(times.stop), times.status > 0

        def standard(log_time: Array) -> Array:
            return (log_time - f[..., 0]) * jnp.exp(-log_scale)

        z = standard(log_stop)
        found = jnp.where(died, self.log_density(z) - log_scale - log_stop, self.log_survival(z))
        if times.start is None:
            return found
        late = times.start > 0
        before = self.log_survival(standard(jnp.log(jnp.where(late, times.start, times.stop))))
        return found - jnp.where(late, before, 0.0)


class WeibullTime(FailureTime):
    """A Weibull time with the shape exp(-f_2) and the scale exp(f_1).

    Under a Gaussian of log s the expectation of exp(z) does not exist: it is the exponential of an exponential. Above
    z = 20, where P(W > z) is below exp(-4e8), the cumulative hazard exp(z) continues as its quadratic expansion. This
    changes no posterior, expectations exist, and a search that starts far away comes back.
    """

    def log_density(self, z: Float[Array, " *batch"]) -> Float[Array, " *batch"]:
        return z - _cumulative_hazard(z)

    def log_survival(self, z: Float[Array, " *batch"]) -> Float[Array, " *batch"]:
        return -_cumulative_hazard(z)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        """The expected time, exp(f_1) Gamma(1 + s)."""
        return jnp.exp(f[..., 0] + gammaln(1.0 + jnp.exp(self.log_scale(f))))


class LogNormalTime(FailureTime):
    """A time whose logarithm is normal."""

    def log_density(self, z: Float[Array, " *batch"]) -> Float[Array, " *batch"]:
        return -0.5 * z**2 - HALF_LOG_TWO_PI

    def log_survival(self, z: Float[Array, " *batch"]) -> Float[Array, " *batch"]:
        return log_normal_tail(z)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        """The expected time, exp(f_1 + s^2 / 2)."""
        return jnp.exp(f[..., 0] + 0.5 * jnp.exp(2.0 * self.log_scale(f)))


class ExponentialTime(SurvivalLikelihood, OnePredictor, ClosedFormMean, ExpectedLogProb):
    """A time with the constant hazard exp(-f).

    Attributes:
        late_entry: whether outcomes have a start.
    """

    ratio: ClassVar[str | None] = "time ratio"

    late_entry: bool = eqx.field(static=True, default=False)

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        return self._with_hazard(f[..., 0], -f[..., 0], y)

    def expected_log_prob(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Outcomes
    ) -> Float[Array, " n"]:
        return self._with_hazard(mean[..., 0], 0.5 * covariance[..., 0, 0] - mean[..., 0], y)

    def _with_hazard(
        self, location: Float[Array, " *batch"], log_hazard: Float[Array, " *batch"], y: Outcomes
    ) -> Float[Array, " *batch"]:
        times = survival_times(y)
        exposure = times.stop if times.start is None else times.stop - times.start
        return -times.status * location - exposure * jnp.exp(log_hazard)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return jnp.exp(f[..., 0])

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.exp(mean + 0.5 * variance)


def _cumulative_hazard(z: Float[Array, " *batch"]) -> Float[Array, " *batch"]:
    """exp(z); above `STEEP` its quadratic expansion there."""
    excess = jnp.maximum(z - STEEP, 0.0)
    return jnp.exp(jnp.minimum(z, STEEP)) * (1.0 + excess + 0.5 * excess**2)


def log_normal_tail(z: Float[Array, " *batch"]) -> Float[Array, " *batch"]:
    """Log P(W > z) of a standard normal W, exact to rounding in both tails.

    Far above 0 it is log phi(z) minus the logarithm of the continued fraction z + 1 / (z + 2 / (z + 3 / ...)).
    """
    is_far, is_below = z > FAR, z < 0.0
    near = jnp.where(is_far, 0.0, jnp.abs(z))
    tail = 0.5 * jax.lax.erfc(near * math.sqrt(0.5))
    far = jnp.where(is_far, z, FAR)
    fraction = far
    for k in range(FRACTIONS, 0, -1):
        fraction = far + k / fraction
    inside = jnp.where(is_below, jnp.log1p(-tail), jnp.log(jnp.where(is_below, 1.0, tail)))
    return jnp.where(is_far, -0.5 * far**2 - HALF_LOG_TWO_PI - jnp.log(fraction), inside)
