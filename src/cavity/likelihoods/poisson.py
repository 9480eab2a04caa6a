"""Counts, with the log of their rate as predictor."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from cavity.interfaces import ClosedFormMean, PowerIntegral

_NODES = 256  # counts at which powers are summed
_REACH = 9.0  # standard deviations to either side of the rate that they span


class PoissonLog(ClosedFormMean, PowerIntegral):
    """y ~ Poisson(exp(f))."""

    is_discrete: ClassVar[bool] = True

    @property
    def num_predictors(self) -> int:
        return 1

    def log_prob(self, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        return y * f[..., 0] - jnp.exp(f[..., 0]) - gammaln(y + 1.0)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return jnp.exp(f[..., 0])

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.exp(mean + variance / 2)

    def log_power_integral(self, f: Float[Array, "*batch k"], power: Any) -> Float[Array, " *batch"]:
        """A sum over counts around the rate; for a rate of hundreds over every few of them.

        p^power is then so close to a Gaussian that sums with steps far below its width are exact to rounding.
        """
        rate = jax.lax.stop_gradient(jnp.exp(f[..., 0]))
        stride = jnp.maximum(2 * _REACH * jnp.sqrt(rate / power) / _NODES, 1.0)
        first = jnp.maximum(jnp.floor(rate - 0.5 * stride * _NODES), 0.0)
        counts = first[..., None] + stride[..., None] * jnp.arange(_NODES, dtype=f.dtype)
        terms = power * self.log_prob(jnp.broadcast_to(f[..., None, :], (*counts.shape, 1)), counts)
        return jax.nn.logsumexp(terms, axis=-1) + jnp.log(stride)

    def check(self, y: np.ndarray) -> str | None:
        if (y < 0).any() or (y != np.round(y)).any():
            return "the outcome must be counts (0, 1, 2, ...); it has negative or fractional values"
        return None
