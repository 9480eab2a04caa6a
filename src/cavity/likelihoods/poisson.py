"""Counts, with the log rate as predictor."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core import ClosedFormMean, OutcomeDraws, PowerIntegral
from cavity.core.fields import Number
from cavity.core.likelihood import OnePredictor, Outcomes

_NODES = 256  # number of counts over which powers are summed
_LARGEST_SUM, _LARGEST_SUM_SINGLE = 1e4, 1e2  # largest rate for the sum, in double and single precision
_REACH = 9.0  # standard deviations on either side of the rate that the counts span


class PoissonLog(OnePredictor, ClosedFormMean, PowerIntegral, OutcomeDraws):
    """y ~ Poisson(exp(f))."""

    ratio: ClassVar[str | None] = "rate ratio"

    is_discrete: ClassVar[bool] = True

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        return f[..., 0] * y - jnp.exp(f[..., 0]) - gammaln(y + 1.0)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return jnp.exp(f[..., 0])

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.exp(mean + variance / 2)

    def log_power_integral(self, f: Float[Array, "*batch k"], power: Number) -> Float[Array, " *batch"]:
        """A sum over counts around the rate; for large rates, where the sum loses digits, an expansion in 1 / rate.

        With rate r the expansion is (1 - k) log(2 pi r) / 2 - log(k) / 2 + (k - 1 / k) / (24 r) for the power k.
        """
        log_rate = f[..., 0]
        largest = _LARGEST_SUM if f.dtype == jnp.float64 else _LARGEST_SUM_SINGLE
        is_large = jax.lax.stop_gradient(log_rate) > jnp.log(largest)
        expansion = 0.5 * (1.0 - power) * (jnp.log(2 * jnp.pi) + log_rate) - 0.5 * jnp.log(power)
        expansion = expansion + (power - 1.0 / power) / 24.0 * jnp.exp(-jnp.where(is_large, log_rate, 0.0))
        return jnp.asarray(jnp.where(is_large, expansion, self._power_sum(jnp.where(is_large, 0.0, log_rate), power)))

    def _power_sum(self, log_rate: Float[Array, " *batch"], power: Number) -> Float[Array, " *batch"]:
        rate = jax.lax.stop_gradient(jnp.exp(log_rate))
        # for a rate of hundreds p^power is close to a Gaussian: steps far below its width are exact to rounding
        stride = jnp.maximum(2 * _REACH * jnp.sqrt(rate / power) / _NODES, 1.0)
        first = jnp.maximum(jnp.floor(rate - 0.5 * stride * _NODES), 0.0)
        counts = first[..., None] + stride[..., None] * jnp.arange(_NODES, dtype=log_rate.dtype)
        log_prob = counts * log_rate[..., None] - jnp.exp(log_rate)[..., None] - gammaln(counts + 1.0)
        return jax.nn.logsumexp(power * log_prob, axis=-1) + jnp.log(stride)

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Array:
        return jax.random.poisson(key, self.mean(f)).astype(f.dtype)

    def check(self, y: np.ndarray) -> str | None:
        if (y < 0).any() or (y != np.round(y)).any():
            return "the outcome must be counts (0, 1, 2, ...); it has negative or fractional values"
        return None
