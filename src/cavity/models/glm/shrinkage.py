"""Priors of coefficients outside the Gaussian family: Laplace, a common unknown scale, the horseshoe.

Scales that are themselves unknown are parameters besides the coefficients, on the log scale. A Gaussian over all of
them is fitted (PVI, eqs. 7 and 8), so a prior provides its expected log density under a Gaussian, without noise.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf
from jaxtyping import Array, Float

from cavity.core.fields import as_number, require
from cavity.distributions.quadrature import normal_nodes

LOG_TWO_PI = float(np.log(2 * np.pi))
CAUCHY_SPREAD = np.pi / 2  # the standard deviation of the log of a half-Cauchy variable


class CoefficientPrior(eqx.Module):
    """p(beta, psi): a density of coefficients and of scales of its own, not Gaussian."""

    @abc.abstractmethod
    def own_names(self, coefficients: Sequence[str]) -> tuple[str, ...]:
        """The names of its own parameters psi, which follow the coefficients in theta."""

    @abc.abstractmethod
    def log_prob(self, theta: Float[Array, " e"]) -> Float[Array, ""]:
        """Log p(beta, psi) at theta = (beta, psi)."""

    @abc.abstractmethod
    def expected_log_prob(self, mean: Float[Array, " e"], covariance: Float[Array, "e e"]) -> Float[Array, ""]:
        """E[log p(beta, psi)] for theta ~ N(mean, covariance)."""

    @abc.abstractmethod
    def width(self, num_coefficients: int) -> tuple[Float[Array, " e"], Float[Array, " e"]]:
        """Mean and standard deviation of a Gaussian of similar width, where a fit starts."""


class ScaledPrior(CoefficientPrior):
    """A prior with one scale for all coefficients.

    Attributes:
        scale: positive; its meaning depends on the prior.
    """

    scale: eqx.AbstractVar[Float[Array, ""]]

    def __check_init__(self) -> None:
        require(self.scale, lambda scale: scale > 0, "the scale of a prior must be positive")


class Laplace(ScaledPrior):
    """p(beta) = exp(-|beta| / scale) / (2 scale), independently: the prior of the lasso, whose mode is at zero."""

    scale: Float[Array, ""] = eqx.field(converter=as_number)

    def own_names(self, coefficients: Sequence[str]) -> tuple[str, ...]:
        return ()

    def log_prob(self, theta: Float[Array, " e"]) -> Float[Array, ""]:
        return -jnp.sum(jnp.abs(theta)) / self.scale - len(theta) * jnp.log(2 * self.scale)

    def expected_log_prob(self, mean: Float[Array, " e"], covariance: Float[Array, "e e"]) -> Float[Array, ""]:
        # E|x| = s sqrt(2 / pi) exp(-z^2 / 2) + m erf(z / sqrt 2), z = m / s
        sd = jnp.sqrt(jnp.diagonal(covariance))
        z = mean / sd
        size = sd * jnp.sqrt(2 / jnp.pi) * jnp.exp(-0.5 * z**2) + mean * erf(z / jnp.sqrt(2.0))
        return -jnp.sum(size) / self.scale - len(mean) * jnp.log(2 * self.scale)

    def width(self, num_coefficients: int) -> tuple[Float[Array, " e"], Float[Array, " e"]]:
        return jnp.zeros(num_coefficients), jnp.full(num_coefficients, jnp.sqrt(2.0)) * self.scale


class CommonScale(ScaledPrior):
    """beta_i ~ N(0, sd^2) with one unknown sd ~ HalfNormal(scale): the data determine the size of coefficients."""

    scale: Float[Array, ""] = eqx.field(converter=as_number)

    def own_names(self, coefficients: Sequence[str]) -> tuple[str, ...]:
        return ("log_prior_sd",)

    def log_prob(self, theta: Float[Array, " e"]) -> Float[Array, ""]:
        beta, log_sd = theta[:-1], theta[-1]
        normal = -0.5 * jnp.sum((beta * jnp.exp(-log_sd)) ** 2 + LOG_TWO_PI) - len(beta) * log_sd
        # half-normal, and the Jacobian of the logarithm
        return normal + jnp.log(2 / self.scale) - 0.5 * (LOG_TWO_PI + jnp.exp(2 * log_sd) / self.scale**2) + log_sd

    def expected_log_prob(self, mean: Float[Array, " e"], covariance: Float[Array, "e e"]) -> Float[Array, ""]:
        num, log_sd, spread = len(mean) - 1, mean[-1], covariance[-1, -1]
        squares = _expected_squares(mean[:-1], jnp.diagonal(covariance)[:-1], log_sd, spread, covariance[:-1, -1])
        normal = -0.5 * (jnp.sum(squares) + num * LOG_TWO_PI) - num * log_sd
        squared_sd = jnp.exp(2 * log_sd + 2 * spread)
        return normal + jnp.log(2 / self.scale) - 0.5 * (LOG_TWO_PI + squared_sd / self.scale**2) + log_sd

    def width(self, num_coefficients: int) -> tuple[Float[Array, " e"], Float[Array, " e"]]:
        mean = jnp.append(jnp.zeros(num_coefficients), jnp.log(self.scale) - 0.6)
        return mean, jnp.append(jnp.full(num_coefficients, 1.0) * self.scale, 1.0)


class Horseshoe(ScaledPrior):
    """beta_i ~ N(0, (local_i tau)^2), local_i ~ C+(0, 1), tau ~ C+(0, scale)  (Carvalho, Polson and Scott, 2010).

    Small coefficients are shrunk towards zero, large ones hardly at all.
    """

    scale: Float[Array, ""] = eqx.field(converter=as_number)

    def own_names(self, coefficients: Sequence[str]) -> tuple[str, ...]:
        return (*(f"log_local[{name}]" for name in coefficients), "log_tau")

    def log_prob(self, theta: Float[Array, " e"]) -> Float[Array, ""]:
        num = (len(theta) - 1) // 2
        beta, local, tau = theta[:num], theta[num:-1], theta[-1]
        normal = -0.5 * jnp.sum((beta * jnp.exp(-local - tau)) ** 2 + LOG_TWO_PI) - jnp.sum(local + tau)
        return normal + jnp.sum(_log_half_cauchy(local)) + _log_half_cauchy(tau - jnp.log(self.scale))

    def expected_log_prob(self, mean: Float[Array, " e"], covariance: Float[Array, "e e"]) -> Float[Array, ""]:
        num, variance = (len(mean) - 1) // 2, jnp.diagonal(covariance)
        between = jnp.diagonal(covariance[:num, num:-1])
        log_sd = mean[num:-1] + mean[-1]
        spread = variance[num:-1] + variance[-1] + 2 * covariance[num:-1, -1]
        squares = _expected_squares(mean[:num], variance[:num], log_sd, spread, between + covariance[:num, -1])
        normal = -0.5 * (jnp.sum(squares) + num * LOG_TWO_PI) - jnp.sum(log_sd)
        shift = jnp.append(jnp.zeros(num), jnp.log(self.scale))
        nodes, weights = normal_nodes(1)
        at = mean[num:, None] - shift[:, None] + jnp.sqrt(variance[num:, None]) * jnp.asarray(nodes[:, 0])
        return normal + jnp.sum(_log_half_cauchy(at) @ jnp.asarray(weights))

    def width(self, num_coefficients: int) -> tuple[Float[Array, " e"], Float[Array, " e"]]:
        mean = jnp.append(jnp.zeros(2 * num_coefficients), jnp.log(self.scale))
        spread = jnp.full(num_coefficients + 1, CAUCHY_SPREAD)
        return mean, jnp.append(jnp.full(num_coefficients, 1.0) * self.scale, spread)


def _expected_squares(mean: Array, variance: Array, log_sd: Array, spread: Array, covariance: Array) -> Array:
    """E[beta^2 e^(-2 s)] for (beta, s) Gaussian: tilting by e^(-2 s) moves beta by -2 cov(beta, s)."""
    return jnp.exp(-2 * log_sd + 2 * spread) * ((mean - 2 * covariance) ** 2 + variance)


def _log_half_cauchy(log_value: Array) -> Array:
    """The log density of the log of a standard half-Cauchy variable: 2 / (pi (1 + x^2)) times the Jacobian x."""
    return jnp.log(2 / jnp.pi) - jax.nn.softplus(2 * log_value) + log_value
