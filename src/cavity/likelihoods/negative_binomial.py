"""Counts that vary more than those of a Poisson distribution, with the log of their mean as predictor."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core import ClosedFormMean, OutcomeDraws
from cavity.core.likelihood import Outcomes
from cavity.likelihoods.gamma_functions import LARGE, excess_ratio


class NegativeBinomialLog(ClosedFormMean, OutcomeDraws):
    """y has the mean m = exp(f_1) and the variance m + m^2 / shape; the second predictor is the log of the shape.

    The shape is `size` or `theta` in R, `shape` in brms, `alpha` in bambi. A large one gives the Poisson distribution.
    """

    ratio: ClassVar[str | None] = "rate ratio"

    is_discrete: ClassVar[bool] = True

    @property
    def num_predictors(self) -> int:
        return 2

    @property
    def num_nodes(self) -> tuple[int, ...]:
        return 16, 8

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        """Two forms of the same sum, with a for the shape.

            log Gamma(y + a) - log Gamma(a) - log y! + y log(m / (m + a)) + a log(a / (m + a))

        For a large shape the first difference is y log a and a small rest, and y log a cancels.
        """
        log_mean, log_shape = f[..., 0], f[..., 1]
        y = jnp.asarray(y, f.dtype)
        shape = jnp.exp(log_shape)
        is_large = shape >= LARGE
        large, small = jnp.where(is_large, shape, LARGE), jnp.where(is_large, 1.0, shape)
        total = jnp.where(is_large, y + shape, 0.0)
        near_poisson = excess_ratio(large, y) + y * log_mean - total * jax.nn.softplus(log_mean - log_shape)
        many = y >= LARGE
        count = jnp.where(many, y, LARGE) + 1.0
        ways_of_many = excess_ratio(count, small - 1.0) + (small - 1.0) * jnp.log(count)
        few = jnp.where(many, 0.0, y)
        ways_of_few = gammaln(few + small) - gammaln(few + 1.0)
        ways = jnp.where(many, ways_of_many, ways_of_few) - gammaln(small)
        log_odds = jnp.where(is_large, 0.0, log_mean - log_shape)
        dispersed = ways - y * jax.nn.softplus(-log_odds) - small * jax.nn.softplus(log_odds)
        return jnp.asarray(jnp.where(is_large, near_poisson - gammaln(y + 1.0), dispersed))

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return jnp.exp(f[..., 0])

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.exp(mean + variance / 2)

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Array:
        rate_key, count_key = jax.random.split(key)
        shape = jnp.exp(f[..., 1])
        rate = jnp.exp(f[..., 0]) / shape * jax.random.gamma(rate_key, shape, dtype=f.dtype)
        return jax.random.poisson(count_key, rate).astype(f.dtype)

    def check(self, y: np.ndarray) -> str | None:
        if (y < 0).any() or (y != np.round(y)).any():
            return "the outcome must be counts (0, 1, 2, ...); it has negative or fractional values"
        return None
