"""Priors of single coefficients: Student t, other units, and different priors for different coefficients."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, DTypeLike, Float

from cavity.core.fields import as_number, require
from cavity.distributions.quadrature import fine_nodes
from cavity.models.glm.shrinkage import CoefficientPrior, ScaledPrior

WIDTH = 1.5  # of a Gaussian that stands for a t distribution of few degrees of freedom, in scales


class StudentTPrior(ScaledPrior):
    """beta_i = scale * t, with t of `df` degrees of freedom, independently: hardly shrinks large coefficients."""

    scale: Float[Array, ""] = eqx.field(converter=as_number)
    df: Float[Array, ""] = eqx.field(converter=as_number, default=3.0)

    def __check_init__(self) -> None:
        require(self.df, lambda df: df > 0, "the degrees of freedom of a prior must be positive")

    def own_names(self, coefficients: Sequence[str]) -> tuple[str, ...]:
        return ()

    def _log_density(self, beta: Array) -> Array:
        df, scale = self.df.astype(beta.dtype), self.scale.astype(beta.dtype)
        constant = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * jnp.log(df * jnp.pi) - jnp.log(scale)
        return constant - 0.5 * (df + 1) * jnp.log1p((beta / scale) ** 2 / df)

    def log_prob(self, theta: Float[Array, " e"]) -> Float[Array, ""]:
        return jnp.sum(self._log_density(theta))

    def expected_log_prob(self, mean: Float[Array, " e"], covariance: Float[Array, "e e"]) -> Float[Array, ""]:
        nodes, weights = fine_nodes()
        sd = jnp.sqrt(jnp.diagonal(covariance))
        at = mean[:, None] + sd[:, None] * jnp.asarray(nodes[:, 0], mean.dtype)
        return jnp.sum(self._log_density(at) @ jnp.asarray(weights, mean.dtype))

    def width(self, num_coefficients: int) -> tuple[Float[Array, " e"], Float[Array, " e"]]:
        return jnp.zeros(num_coefficients), jnp.full(num_coefficients, WIDTH) * self.scale


class InUnits(CoefficientPrior):
    """A prior of beta / units, so that every coefficient has a scale of its own.

    Attributes:
        prior: of the quotients.
        units: positive, one per coefficient.
    """

    prior: CoefficientPrior
    units: Float[Array, " p"] = eqx.field(converter=as_number)

    def own_names(self, coefficients: Sequence[str]) -> tuple[str, ...]:
        return self.prior.own_names(coefficients)

    def _divisors(self, size: int, dtype: DTypeLike) -> Float[Array, " e"]:
        """The units, and 1 for the parameters of the prior itself."""
        return jnp.concatenate([self.units, jnp.ones(size - len(self.units))]).astype(dtype)

    def log_prob(self, theta: Float[Array, " e"]) -> Float[Array, ""]:
        divisors = self._divisors(len(theta), theta.dtype)
        return self.prior.log_prob(theta / divisors) - jnp.sum(jnp.log(divisors))

    def expected_log_prob(self, mean: Float[Array, " e"], covariance: Float[Array, "e e"]) -> Float[Array, ""]:
        divisors = self._divisors(len(mean), mean.dtype)
        scaled = covariance / divisors[:, None] / divisors
        return self.prior.expected_log_prob(mean / divisors, scaled) - jnp.sum(jnp.log(divisors))

    def width(self, num_coefficients: int) -> tuple[Float[Array, " e"], Float[Array, " e"]]:
        mean, sd = self.prior.width(num_coefficients)
        divisors = self._divisors(len(mean), mean.dtype)
        return mean * divisors, sd * divisors


class PriorBlocks(CoefficientPrior):
    """Different priors for different coefficients. The parameters of the priors follow the coefficients, in order.

    Attributes:
        priors: one per block.
        members: the places of each block's coefficients; every coefficient is in one block.
    """

    priors: tuple[CoefficientPrior, ...]
    members: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @property
    def _num_coefficients(self) -> int:
        return sum(map(len, self.members))

    def own_names(self, coefficients: Sequence[str]) -> tuple[str, ...]:
        found: list[str] = []
        for prior, members in zip(self.priors, self.members, strict=True):
            found += prior.own_names([coefficients[place] for place in members])
        return tuple(found)

    def _places(self) -> list[np.ndarray]:
        """Of each block's coefficients and its own parameters."""
        found, start = [], self._num_coefficients
        for prior, members in zip(self.priors, self.members, strict=True):
            size = len(prior.own_names([""] * len(members)))
            found.append(np.concatenate([members, np.arange(start, start + size)]).astype(int))
            start += size
        return found

    def log_prob(self, theta: Float[Array, " e"]) -> Float[Array, ""]:
        parts = [prior.log_prob(theta[places]) for prior, places in zip(self.priors, self._places(), strict=True)]
        return jnp.sum(jnp.stack(parts))

    def expected_log_prob(self, mean: Float[Array, " e"], covariance: Float[Array, "e e"]) -> Float[Array, ""]:
        parts = [
            prior.expected_log_prob(mean[places], covariance[np.ix_(places, places)])
            for prior, places in zip(self.priors, self._places(), strict=True)
        ]
        return jnp.sum(jnp.stack(parts))

    def width(self, num_coefficients: int) -> tuple[Float[Array, " e"], Float[Array, " e"]]:
        places = self._places()
        widths = [prior.width(len(members)) for prior, members in zip(self.priors, self.members, strict=True)]
        size = sum(map(len, places))
        mean, sd = jnp.zeros(size), jnp.ones(size)
        for own, (own_mean, own_sd) in zip(places, widths, strict=True):
            mean, sd = mean.at[own].set(own_mean), sd.at[own].set(own_sd)
        return mean, sd
