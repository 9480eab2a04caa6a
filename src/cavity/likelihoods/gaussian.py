"""Gaussian outcomes with known or unknown noise, in one or several dimensions."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray

from cavity.core import ClosedFormMean, ExpectedPower, Likelihood, Noisy, OutcomeDraws, PowerIntegral
from cavity.core.fields import Number
from cavity.core.likelihood import OnePredictor, Outcomes
from cavity.core.types import Leaf

LOG_TWO_PI = float(np.log(2 * np.pi))


def _log_power_integral(log_sd: Float[Array, ...], power: Number) -> Float[Array, ...]:
    """The integral of N(y; f, s^2)^power over y is (2 pi s^2)^((1 - power) / 2) / sqrt(power)."""
    return (LOG_TWO_PI + 2.0 * log_sd) * (0.5 * (1.0 - power)) - 0.5 * jnp.log(power)


class GaussianNoise(OnePredictor, ClosedFormMean, PowerIntegral, ExpectedPower, OutcomeDraws, Noisy):
    """y ~ N(f, noise_sd^2), with known noise."""

    noise_sd: Float[Array, ""] = eqx.field(converter=lambda sd: jnp.asarray(sd, float))

    @property
    def noise_precision(self) -> Float[Array, ""]:
        return self.noise_sd**-2.0

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        noise_sd = self.noise_sd.astype(f.dtype)  # a network stays in single precision
        z = (f[..., 0] - y) / noise_sd
        return -0.5 * (z**2 + LOG_TWO_PI) - jnp.log(noise_sd)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return f[..., 0]

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return mean

    def log_power_integral(self, f: Float[Array, "*batch k"], power: Number) -> Float[Array, " *batch"]:
        return _log_power_integral(jnp.log(self.noise_sd.astype(f.dtype)), power) + jnp.zeros_like(f[..., 0])

    def log_expected_power(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Outcomes, power: Number
    ) -> Float[Array, " n"]:
        # p^power is a Gaussian in f of variance s^2 / power; averaged over N(mean, v) its variance is s^2 / power + v
        noise_sd = self.noise_sd.astype(mean.dtype)
        widened = noise_sd**2 + power * covariance[..., 0, 0]
        at_peak = (LOG_TWO_PI + 2 * jnp.log(noise_sd)) * (-0.5 * power) - 0.5 * jnp.log(widened / noise_sd**2)
        return at_peak - (mean[..., 0] - y) ** 2 * (0.5 * power) / widened

    def expected_log_prob(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Outcomes
    ) -> Float[Array, " n"]:
        return self.log_prob(mean, y) - 0.5 * covariance[..., 0, 0] / self.noise_sd.astype(mean.dtype) ** 2

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Array:
        return f[..., 0] + self.noise_sd.astype(f.dtype) * jax.random.normal(key, f.shape[:-1], f.dtype)

    def check(self, y: np.ndarray) -> str | None:
        return None


def known_noise(likelihood: Likelihood) -> GaussianNoise | None:
    """The likelihood where it is Gaussian with known noise; None for all others."""
    return likelihood if isinstance(likelihood, GaussianNoise) else None


class GaussianUnknownNoise(ClosedFormMean, PowerIntegral, OutcomeDraws):
    """y ~ N(f_1, exp(f_2)^2 + floor^2): the second predictor is the log of the noise's standard deviation.

    Attributes:
        floor: a lower bound of the noise, so that a client whose rows fit exactly (all outcomes equal, for example)
            still has a proper posterior of its own; None is no bound.
    """

    floor: Float[Leaf, ""] | float | None = None

    @property
    def num_predictors(self) -> int:
        return 2

    def _log_sd(self, f: Float[Array, "*batch k"]) -> Float[Array, " *batch"]:
        if self.floor is None:
            return f[..., 1]
        return 0.5 * jnp.logaddexp(2.0 * f[..., 1], 2.0 * jnp.log(jnp.asarray(self.floor, f.dtype)))

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        log_sd = self._log_sd(f)
        z = (f[..., 0] - y) * jnp.exp(-log_sd)
        return -0.5 * (z**2 + LOG_TWO_PI) - log_sd

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return f[..., 0]

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return mean

    def log_power_integral(self, f: Float[Array, "*batch k"], power: Number) -> Float[Array, " *batch"]:
        return _log_power_integral(self._log_sd(f), power)

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Array:
        return f[..., 0] + jnp.exp(self._log_sd(f)) * jax.random.normal(key, f.shape[:-1], f.dtype)

    def check(self, y: np.ndarray) -> str | None:
        return None


class GaussianVector(PowerIntegral, ExpectedPower, OutcomeDraws):
    """y ~ N(f, S) in d dimensions, with known covariance S of the noise.

    Attributes:
        root: the lower Cholesky root of S.
    """

    root: Float[Array, "d d"]

    @classmethod
    def from_covariance(cls, covariance: Float[Leaf, "d d"]) -> GaussianVector:
        """The likelihood with noise covariance S, symmetric and positive definite."""
        return cls(jnp.linalg.cholesky(jnp.asarray(covariance, float)))

    @property
    def num_predictors(self) -> int:
        return self.root.shape[-1]

    def _log_scale(self, dtype: DTypeLike) -> Float[Array, ""]:
        return jnp.sum(jnp.log(jnp.diagonal(self.root))).astype(dtype)

    def standardise(self, difference: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """S^(-1/2) times each difference."""
        identity = jnp.eye(self.num_predictors, dtype=difference.dtype)
        return difference @ solve_triangular(self.root.astype(difference.dtype), identity, lower=True).T

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        z = self.standardise(f - y)
        return -0.5 * (jnp.sum(z**2, axis=-1) + self.num_predictors * LOG_TWO_PI) - self._log_scale(z.dtype)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return f

    def log_power_integral(self, f: Float[Array, "*batch k"], power: Number) -> Float[Array, " *batch"]:
        d = self.num_predictors
        value = (d * LOG_TWO_PI + 2 * self._log_scale(f.dtype)) * (0.5 * (1.0 - power)) - 0.5 * d * jnp.log(power)
        return value + jnp.zeros_like(f[..., 0])

    def log_expected_power(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Outcomes, power: Number
    ) -> Float[Array, " n"]:
        white = self.standardise(jnp.swapaxes(self.standardise(covariance), -1, -2))
        widened = jnp.linalg.cholesky(jnp.eye(self.num_predictors, dtype=mean.dtype) + power * white)
        z = solve_triangular(widened, self.standardise(mean - y)[..., None], lower=True)[..., 0]
        at_peak = (self.num_predictors * LOG_TWO_PI + 2 * self._log_scale(mean.dtype)) * (-0.5 * power)
        shrink = jnp.sum(jnp.log(jnp.diagonal(widened, axis1=-2, axis2=-1)), axis=-1)
        return at_peak - shrink - jnp.sum(z**2, axis=-1) * (0.5 * power)

    def expected_log_prob(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Outcomes
    ) -> Float[Array, " n"]:
        white = self.standardise(jnp.swapaxes(self.standardise(covariance), -1, -2))
        return self.log_prob(mean, y) - 0.5 * jnp.trace(white, axis1=-2, axis2=-1)

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Array:
        return f + jax.random.normal(key, f.shape, f.dtype) @ self.root.astype(f.dtype).T

    def check(self, y: np.ndarray) -> str | None:
        return None
