"""Gaussian outcomes, with the noise known or unknown, and of several dimensions."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core import ClosedFormMean, ExpectedPower, Noisy, OutcomeDraws, PowerIntegral

LOG_TWO_PI = float(np.log(2 * np.pi))


def _log_power_integral(log_sd: Any, power: Any) -> Any:
    """The integral of N(y; f, s^2)^power over y is (2 pi s^2)^((1 - power) / 2) / sqrt(power)."""
    return 0.5 * (1.0 - power) * (LOG_TWO_PI + 2.0 * log_sd) - 0.5 * jnp.log(power)


class GaussianNoise(ClosedFormMean, PowerIntegral, ExpectedPower, OutcomeDraws, Noisy):
    """y ~ N(f, noise_sd^2), the noise known."""

    noise_sd: Float[Array, ""] = eqx.field(converter=lambda sd: jnp.asarray(sd, float))

    @property
    def num_predictors(self) -> int:
        return 1

    @property
    def noise_precision(self) -> Any:
        return self.noise_sd**-2.0

    def log_prob(self, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        noise_sd = self.noise_sd.astype(f.dtype)  # a network stays in single precision
        z = (y - f[..., 0]) / noise_sd
        return -0.5 * (z**2 + LOG_TWO_PI) - jnp.log(noise_sd)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return f[..., 0]

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return mean

    def log_power_integral(self, f: Float[Array, "*batch k"], power: Any) -> Float[Array, " *batch"]:
        return _log_power_integral(jnp.log(self.noise_sd.astype(f.dtype)), power) + jnp.zeros_like(f[..., 0])

    def log_expected_power(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Any, power: Any
    ) -> Float[Array, " n"]:
        # p^power is a Gaussian in f of variance s^2 / power; against N(mean, v) it is one of s^2 / power + v
        noise_sd = self.noise_sd.astype(mean.dtype)
        widened = noise_sd**2 + power * covariance[..., 0, 0]
        at_peak = -0.5 * power * (LOG_TWO_PI + 2 * jnp.log(noise_sd)) - 0.5 * jnp.log(widened / noise_sd**2)
        return at_peak - 0.5 * power * (y - mean[..., 0]) ** 2 / widened

    def expected_log_prob(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Any
    ) -> Float[Array, " n"]:
        return self.log_prob(mean, y) - 0.5 * covariance[..., 0, 0] / self.noise_sd.astype(mean.dtype) ** 2

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Any:
        return f[..., 0] + self.noise_sd.astype(f.dtype) * jax.random.normal(key, f.shape[:-1], f.dtype)

    def check(self, y: np.ndarray) -> str | None:
        return None


class GaussianUnknownNoise(ClosedFormMean, PowerIntegral, OutcomeDraws):
    """y ~ N(f_1, exp(f_2)^2 + floor^2): the second predictor is the log of the noise's standard deviation.

    Attributes:
        floor: noise that outcomes have in any case, so that one client whose rows fit exactly (its outcomes are all
            alike, say) has a posterior of its own; None is none.
    """

    floor: Any = None

    @property
    def num_predictors(self) -> int:
        return 2

    def _log_sd(self, f: Float[Array, "*batch k"]) -> Float[Array, " *batch"]:
        if self.floor is None:
            return f[..., 1]
        return 0.5 * jnp.logaddexp(2.0 * f[..., 1], 2.0 * jnp.log(jnp.asarray(self.floor, f.dtype)))

    def log_prob(self, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        log_sd = self._log_sd(f)
        z = (y - f[..., 0]) * jnp.exp(-log_sd)
        return -0.5 * (z**2 + LOG_TWO_PI) - log_sd

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return f[..., 0]

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return mean

    def log_power_integral(self, f: Float[Array, "*batch k"], power: Any) -> Float[Array, " *batch"]:
        return _log_power_integral(self._log_sd(f), power)

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Any:
        return f[..., 0] + jnp.exp(self._log_sd(f)) * jax.random.normal(key, f.shape[:-1], f.dtype)

    def check(self, y: np.ndarray) -> str | None:
        return None


class GaussianVector(PowerIntegral, ExpectedPower, OutcomeDraws):
    """y ~ N(f, S) in d dimensions, the covariance S of the noise known.

    Attributes:
        root: the lower Cholesky root of S.
    """

    root: Float[Array, "d d"]

    @classmethod
    def from_covariance(cls, covariance: Any) -> GaussianVector:
        """From S, symmetric and positive definite."""
        return cls(jnp.linalg.cholesky(jnp.asarray(covariance, float)))

    @property
    def num_predictors(self) -> int:
        return self.root.shape[-1]

    def _log_scale(self, dtype: Any) -> Float[Array, ""]:
        return jnp.sum(jnp.log(jnp.diagonal(self.root))).astype(dtype)

    def standardise(self, difference: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """S^(-1/2) times each difference."""
        identity = jnp.eye(self.num_predictors, dtype=difference.dtype)
        return difference @ solve_triangular(self.root.astype(difference.dtype), identity, lower=True).T

    def log_prob(self, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        z = self.standardise(y - f)
        return -0.5 * (jnp.sum(z**2, axis=-1) + self.num_predictors * LOG_TWO_PI) - self._log_scale(z.dtype)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return f

    def log_power_integral(self, f: Float[Array, "*batch k"], power: Any) -> Float[Array, " *batch"]:
        d = self.num_predictors
        value = 0.5 * (1.0 - power) * (d * LOG_TWO_PI + 2 * self._log_scale(f.dtype)) - 0.5 * d * jnp.log(power)
        return value + jnp.zeros_like(f[..., 0])

    def log_expected_power(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Any, power: Any
    ) -> Float[Array, " n"]:
        white = self.standardise(jnp.swapaxes(self.standardise(covariance), -1, -2))
        widened = jnp.linalg.cholesky(jnp.eye(self.num_predictors, dtype=mean.dtype) + power * white)
        z = solve_triangular(widened, self.standardise(y - mean)[..., None], lower=True)[..., 0]
        at_peak = -0.5 * power * (self.num_predictors * LOG_TWO_PI + 2 * self._log_scale(mean.dtype))
        shrink = jnp.sum(jnp.log(jnp.diagonal(widened, axis1=-2, axis2=-1)), axis=-1)
        return at_peak - shrink - 0.5 * power * jnp.sum(z**2, axis=-1)

    def expected_log_prob(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Any
    ) -> Float[Array, " n"]:
        white = self.standardise(jnp.swapaxes(self.standardise(covariance), -1, -2))
        return self.log_prob(mean, y) - 0.5 * jnp.trace(white, axis1=-2, axis2=-1)

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Any:
        return f + jax.random.normal(key, f.shape, f.dtype) @ self.root.astype(f.dtype).T

    def check(self, y: np.ndarray) -> str | None:
        return None
