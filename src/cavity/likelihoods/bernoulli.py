"""Outcomes 0 and 1, through the logistic, the normal or the Gompertz distribution function."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, ndtr
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core import ClosedFormMean, OutcomeDraws, PowerIntegral
from cavity.core.fields import Number
from cavity.core.likelihood import OnePredictor, Outcomes
from cavity.distributions.quadrature import fine_nodes


class _Bernoulli(OnePredictor, ClosedFormMean, PowerIntegral, OutcomeDraws):
    """Outcomes 0 and 1, whatever the function from f to the probability of 1."""

    is_discrete: ClassVar[bool] = True
    has_classes: ClassVar[bool] = True

    def log_power_integral(self, f: Float[Array, "*batch k"], power: Number) -> Float[Array, " *batch"]:
        return jnp.logaddexp(power * self.log_prob(f, 0.0), power * self.log_prob(f, 1.0))

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Array:
        return jax.random.bernoulli(key, self.mean(f)).astype(f.dtype)

    def check(self, y: np.ndarray) -> str | None:
        values = np.unique(y)
        if not np.isin(values, (0, 1)).all():
            return f"the outcome takes the values {values[:5].tolist()}; code it as 0 and 1"
        return None


class BernoulliLogit(_Bernoulli):
    """p(y = 1 | f) = 1 / (1 + exp(-f))."""

    ratio: ClassVar[str | None] = "odds ratio"

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        # y f - log(1 + e^f), without overflow
        return f[..., 0] * y - jax.nn.softplus(f[..., 0])

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return jax.nn.sigmoid(f[..., 0])

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        """E[sigmoid(f)] by quadrature.

        PVI and FedGVI use the probit approximation, sigmoid(mean / sqrt(1 + pi v / 8)) (they print `1 + pi v`). Its
        error is a fifth and more where outcomes are rare.
        """
        nodes, weights = fine_nodes()
        f = mean[..., None] + jnp.sqrt(variance)[..., None] * jnp.asarray(nodes[:, 0], mean.dtype)
        return jax.nn.sigmoid(f) @ jnp.asarray(weights, mean.dtype)


class BernoulliProbit(_Bernoulli):
    """p(y = 1 | f) = Phi(f)."""

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        return log_ndtr(f[..., 0] * (2.0 * y - 1.0))

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return ndtr(f[..., 0])

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        """Phi(mean / sqrt(1 + v)), which is exact."""
        return ndtr(mean / jnp.sqrt(1.0 + variance))


class BernoulliCloglog(_Bernoulli):
    """p(y = 1 | f) = 1 - exp(-exp(f)): the complementary log-log link.

    If events happen at the rate exp(f) per unit of time, this is the probability of at least one in a unit.
    """

    ratio: ClassVar[str | None] = "hazard ratio"

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        # log(1 - e^-t) = log t - t / 2 + t^2 / 24 - ... for small t = e^f
        log_rate = f[..., 0]
        is_small = log_rate < -6.0
        small, large = jnp.where(is_small, log_rate, -6.0), jnp.clip(log_rate, -6.0, 5.0)  # e^-e^5 is 3e-65
        rate = jnp.exp(small)
        log_event = jnp.where(is_small, small - rate * (0.5 - rate / 24.0), jnp.log(-jnp.expm1(-jnp.exp(large))))
        return jnp.where(jnp.asarray(y, bool), log_event, -jnp.exp(log_rate))

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return -jnp.expm1(-jnp.exp(f[..., 0]))

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        """By quadrature."""
        nodes, weights = fine_nodes()
        f = mean[..., None] + jnp.sqrt(variance)[..., None] * jnp.asarray(nodes[:, 0], mean.dtype)
        return self.mean(f[..., None]) @ jnp.asarray(weights, mean.dtype)
