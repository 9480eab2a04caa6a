"""Positive amounts, with the log of their mean as predictor."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core import ClosedFormMean, OutcomeDraws, PowerIntegral
from cavity.core.fields import Number
from cavity.core.likelihood import Outcomes
from cavity.core.types import Leaf
from cavity.likelihoods.gamma_functions import log_peak


class GammaLog(ClosedFormMean, PowerIntegral, OutcomeDraws):
    """y ~ Gamma with the mean exp(f_1) and the shape a: its standard deviation is the mean / sqrt(a).

    The second predictor is the log of the shape, 1 / a = exp(-f_2) + least_variation^2.

    Attributes:
        least_variation: a lower bound of 1 / sqrt(a), so that a client whose outcomes are all equal still has a proper
            posterior of its own; None is no bound.
    """

    ratio: ClassVar[str | None] = "ratio of means"

    least_variation: Float[Leaf, ""] | float | None = None

    @property
    def num_predictors(self) -> int:
        return 2

    @property
    def num_nodes(self) -> tuple[int, ...]:
        return 16, 8

    def _log_shape(self, f: Float[Array, "*batch k"]) -> Float[Array, " *batch"]:
        if self.least_variation is None:
            return f[..., 1]
        return -jnp.logaddexp(-f[..., 1], 2.0 * jnp.log(jnp.asarray(self.least_variation, f.dtype)))

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        # log p = a log a - log Gamma(a) + a (r - e^r) - log y, with r = log(y / mean)
        shape, log_y = jnp.exp(self._log_shape(f)), jnp.log(jnp.asarray(y, f.dtype))
        r = log_y - f[..., 0]
        return log_peak(shape) - shape * (jnp.expm1(r) - r) - log_y

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return jnp.exp(f[..., 0])

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.exp(mean + variance / 2)

    def log_power_integral(self, f: Float[Array, "*batch k"], power: Number) -> Float[Array, " *batch"]:
        """p^k is a gamma density of shape b = k (a - 1) + 1, where that is positive, times a constant.

        The integral is (a / mean)^(k - 1) k^(-b) Gamma(b) / Gamma(a)^k.
        """
        log_shape = self._log_shape(f)
        a = jnp.exp(log_shape)
        b = power * (a - 1.0) + 1.0
        log_gamma_a = a * (log_shape - 1.0) - log_peak(a)
        safe = jnp.where(b > 0, b, 1.0)
        log_gamma_b = safe * (jnp.log(safe) - 1.0) - log_peak(safe)
        value = (power - 1.0) * (log_shape - f[..., 0]) - b * jnp.log(power) + log_gamma_b - power * log_gamma_a
        return jnp.asarray(jnp.where(b > 0, value, jnp.inf))

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Array:
        shape = jnp.exp(self._log_shape(f))
        return jnp.exp(f[..., 0]) / shape * jax.random.gamma(key, shape, dtype=f.dtype)

    def check(self, y: np.ndarray) -> str | None:
        if (y <= 0).any():
            many = int((y <= 0).sum())
            return (
                f"the outcome must be positive; {many} of {len(y)} values are 0 or negative. Leave these rows out, or "
                "model separately whether the outcome is positive"
            )
        return None
