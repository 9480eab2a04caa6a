"""The structured Gaussian family of SFVI (section 3.1), in the parameters that an optimiser changes.

    Z_G       = mu_G + sigma_G * (L_G eps_G)
    Z_u | Z_G = mu_u + C_u (Z_G - mu_G) + sigma_u * (L_u eps_u)        for every unit u

L has ones on its diagonal (or is I + F F' in its low-rank form), so every value of these parameters is proper. Together
the two are one Gaussian, with Cov(Z_G, Z_u) = Sigma_GG C_u' (the paper omits the transpose).

A unit is whatever has local latents: a patient, a county, a document, or a whole client. Units of one client are
independent given Z_G, so the L_j of the paper is block diagonal here, with one block per unit; with one unit per client
it is dense.
"""

from __future__ import annotations

import abc
from dataclasses import replace
from typing import ClassVar, TypeVar

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, DTypeLike, Float

from cavity.core.fields import Number
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian

LOG_2PI = 1.8378770664093453

Q = TypeVar("Q", bound="GlobalGaussian")


class GlobalGaussian(eqx.Module):
    """q(Z_G) as a function of standard normal noise."""

    has_correlations: ClassVar[bool] = False  # whether the family is that of all Gaussians
    has_barycentre: ClassVar[bool] = False  # whether the barycentre of several members is a member
    mean: eqx.AbstractVar[Float[Array, " d"]]
    log_scale: eqx.AbstractVar[Float[Array, " d"]]

    @property
    def dimension(self) -> int:
        """The number of global latents."""
        return self.mean.shape[-1]

    @property
    @abc.abstractmethod
    def noise_size(self) -> int:
        """The number of standard normal numbers that one draw needs."""

    @abc.abstractmethod
    def draw(self, noise: Float[Array, " e"]) -> Float[Array, " d"]:
        """Z_G for this noise."""

    @abc.abstractmethod
    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density."""

    @property
    @abc.abstractmethod
    def gaussian(self) -> Gaussian:
        """The same density in natural parameters."""

    @property
    def sd(self) -> Float[Array, " d"]:
        """The marginal standard deviations."""
        return jnp.exp(jnp.asarray(self.log_scale))

    @property
    def axes(self) -> Float[Array, "d d"]:
        """A root of the covariance, or the scales alone where the family does not have all correlations."""
        return jnp.diag(jnp.exp(self.log_scale))

    def starting_at(self: Q, found: FullGaussian) -> Q:
        """The member of the family that replaces `found`, in the precision of this one.

        Without correlations the best scale is that of a latent given all others.
        """
        scale = jnp.diagonal(jnp.asarray(found.precision)) ** -0.5
        return self._moved(mean=jnp.asarray(found.mean), log_scale=jnp.log(scale))

    def _moved(self: Q, **leaves: Float[Array, ...]) -> Q:
        return replace(self, **{name: leaf.astype(self.mean.dtype) for name, leaf in leaves.items()})


class MeanFieldGlobal(GlobalGaussian):
    """No correlations: for very many latents, or where barycentres must have a closed form."""

    has_barycentre: ClassVar[bool] = True
    mean: Float[Array, " d"]
    log_scale: Float[Array, " d"]

    @property
    def noise_size(self) -> int:
        return self.dimension

    def draw(self, noise: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.mean + jnp.exp(self.log_scale) * noise

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        white = (z - self.mean) * jnp.exp(-self.log_scale)
        return -jnp.sum(0.5 * white**2 + self.log_scale + 0.5 * LOG_2PI)

    @property
    def gaussian(self) -> DiagonalGaussian:
        return DiagonalGaussian.from_moments(self.mean, jnp.exp(2.0 * self.log_scale))


class DenseGlobal(GlobalGaussian):
    """All correlations.

    Attributes:
        mean: mu_G.
        log_scale: log sigma_G.
        below: L_G below its diagonal of ones.
    """

    has_correlations: ClassVar[bool] = True
    has_barycentre: ClassVar[bool] = True
    mean: Float[Array, " d"]
    log_scale: Float[Array, " d"]
    below: Float[Array, "d d"]

    @property
    def root(self) -> Float[Array, "d d"]:
        """diag(sigma) L, the Cholesky factor of the covariance."""
        unit = jnp.tril(self.below, -1) + jnp.eye(self.dimension, dtype=self.mean.dtype)
        return jnp.exp(self.log_scale)[:, None] * unit

    @classmethod
    def from_root(cls, mean: Float[Array, " d"], root: Float[Array, "d d"]) -> DenseGlobal:
        """The member with this mean and this Cholesky factor of the covariance."""
        scale = jnp.diagonal(root)
        return cls(mean, jnp.log(scale), jnp.tril(root / scale[:, None], -1))

    @property
    def sd(self) -> Float[Array, " d"]:
        return jnp.sqrt(jnp.sum(self.root**2, axis=1))

    @property
    def axes(self) -> Float[Array, "d d"]:
        return self.root

    def starting_at(self, found: FullGaussian) -> DenseGlobal:
        moved = DenseGlobal.from_root(jnp.asarray(found.mean), jnp.linalg.cholesky(jnp.asarray(found.covariance)))
        return self._moved(mean=moved.mean, log_scale=moved.log_scale, below=moved.below)

    @property
    def noise_size(self) -> int:
        return self.dimension

    def draw(self, noise: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.mean + self.root @ noise

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        white = solve_triangular(self.root, z - self.mean, lower=True)
        return -jnp.sum(0.5 * white**2 + self.log_scale + 0.5 * LOG_2PI)

    @property
    def gaussian(self) -> FullGaussian:
        root = self.root
        return FullGaussian.from_moments(self.mean, root @ root.T)


class LowRankGlobal(GlobalGaussian):
    """Correlations along a few directions: the covariance is D (I + F F') D with D = diag(sigma).

    Attributes:
        mean: mu_G.
        log_scale: log sigma_G.
        factors: F, one column per direction.
    """

    mean: Float[Array, " d"]
    log_scale: Float[Array, " d"]
    factors: Float[Array, "d r"]

    @property
    def noise_size(self) -> int:
        return sum(self.factors.shape)

    def draw(self, noise: Float[Array, " e"]) -> Float[Array, " d"]:
        own, common = noise[: self.dimension], noise[self.dimension :]
        return self.mean + jnp.exp(self.log_scale) * (own + self.factors @ common)

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        white = (z - self.mean) * jnp.exp(-self.log_scale)
        chol = self._inner_root
        seen = solve_triangular(chol, self.factors.T @ white, lower=True)  # (I + F F')^-1 = I - F (I + F'F)^-1 F'
        quadratic = jnp.sum(white**2) - jnp.sum(seen**2)
        return -0.5 * quadratic - jnp.sum(self.log_scale + 0.5 * LOG_2PI) - jnp.sum(jnp.log(jnp.diagonal(chol)))

    @property
    def sd(self) -> Float[Array, " d"]:
        return jnp.exp(jnp.asarray(self.log_scale)) * jnp.sqrt(1.0 + jnp.sum(jnp.asarray(self.factors) ** 2, axis=1))

    @property
    def _inner_root(self) -> Float[Array, "r r"]:
        rank = self.factors.shape[1]
        return jnp.linalg.cholesky(jnp.eye(rank, dtype=self.factors.dtype) + self.factors.T @ self.factors)

    @property
    def gaussian(self) -> FullGaussian:
        scale = jnp.exp(self.log_scale)
        inner = cho_solve((self._inner_root, True), self.factors.T)
        unit = jnp.eye(self.dimension, dtype=scale.dtype)
        precision = (unit - self.factors @ inner) / jnp.outer(scale, scale)
        return FullGaussian(precision @ self.mean, precision)


class LocalGaussian(eqx.Module):
    """q(Z_u | Z_G) of all units of a client.

    Attributes:
        mean: mu_u, one row per unit.
        log_scale: log sigma_u.
        coupling: C_u, or None for latents that do not depend on Z_G.
        below: L_u below its diagonal of ones, or None for a diagonal one.
        widening: D_u, the slope of log sigma_u in Z_G, or None as in the paper. With it the joint density is no
            longer Gaussian, but can fit a unit whose scale depends on a global scale.
    """

    mean: Float[Array, "u d"]
    log_scale: Float[Array, "u d"]
    coupling: Float[Array, "u d g"] | None = None
    below: Float[Array, "u d d"] | None = None
    widening: Float[Array, "u d g"] | None = None

    @classmethod
    def start(
        cls,
        num_units: int,
        num_local: int,
        num_global: int,
        *,
        coupled: bool,
        dense: bool,
        widens: bool,
        scale: Number,
        dtype: DTypeLike,
    ) -> LocalGaussian:
        """The initial density: means of zero, one scale for all latents, no correlations."""
        mean = jnp.zeros((num_units, num_local), dtype)
        return cls(
            mean=mean,
            log_scale=jnp.full_like(mean, jnp.log(scale)),
            coupling=jnp.zeros((*mean.shape, num_global), dtype) if coupled else None,
            below=jnp.zeros((*mean.shape, num_local), dtype) if dense else None,
            widening=jnp.zeros((*mean.shape, num_global), dtype) if widens else None,
        )

    def centre(self, shift: Float[Array, " g"]) -> Float[Array, "u d"]:
        """mu_u + C_u (Z_G - mu_G), for a shift Z_G - mu_G."""
        return self.mean if self.coupling is None else self.mean + self.coupling @ shift

    def log_spread(self, shift: Float[Array, " g"]) -> Float[Array, "u d"]:
        """Log sigma_u + D_u (Z_G - mu_G)."""
        return self.log_scale if self.widening is None else self.log_scale + self.widening @ shift

    def draw(self, shift: Float[Array, " g"], noise: Float[Array, "*k u d"]) -> Float[Array, "*k u d"]:
        """The latents of all units for this noise."""
        return self.centre(shift) + jnp.exp(self.log_spread(shift)) * self._correlated(noise)

    def log_prob(self, z: Float[Array, "*k u d"], shift: Float[Array, " g"]) -> Float[Array, "*k u"]:
        """The log density of each unit's latents."""
        log_spread = self.log_spread(shift)
        white = (z - self.centre(shift)) * jnp.exp(-log_spread)
        if self.below is not None:
            root = jnp.broadcast_to(self._unit_root, (*white.shape[:-1], *self._unit_root.shape[-2:]))
            white = solve_triangular(root, white[..., None], lower=True, unit_diagonal=True)[..., 0]
        return -jnp.sum(0.5 * white**2 + log_spread + 0.5 * LOG_2PI, axis=-1)

    @property
    def _unit_root(self) -> Float[Array, "u d d"]:
        assert self.below is not None
        return jnp.tril(self.below, -1) + jnp.eye(self.mean.shape[-1], dtype=self.mean.dtype)

    def _correlated(self, noise: Float[Array, "*k u d"]) -> Float[Array, "*k u d"]:
        return noise if self.below is None else jnp.einsum("uij,...uj->...ui", self._unit_root, noise)

    def given(self, shift: Float[Array, " g"]) -> LocalGaussian:
        """The density of the units' latents at one Z_G, on which it no longer depends."""
        return LocalGaussian(self.centre(shift), self.log_spread(shift), below=self.below)

    def recentred(self, shift: Float[Array, " g"]) -> LocalGaussian:
        """The same density after mu_G moved by `shift`."""
        moved = (self.centre(shift), self.log_spread(shift))
        return eqx.tree_at(lambda q: (q.mean, q.log_scale), self, moved)
