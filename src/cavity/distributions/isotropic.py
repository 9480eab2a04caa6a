"""The isotropic Gaussian: one precision for all coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cavity.core.types import Leaf
from cavity.distributions.diagonal import DiagonalGaussian, UncorrelatedGaussian
from cavity.distributions.gaussian import Gaussian


class IsotropicGaussian(UncorrelatedGaussian):
    """exp(h . theta - lambda |theta|^2 / 2), with T(theta) = (theta, -|theta|^2 / 2).

    Attributes:
        precision_mean: h = lambda mu.
        precision: lambda, a scalar.
    """

    precision_mean: Float[Leaf, " d"]
    precision: Float[Leaf, ""] = eqx.field(converter=jnp.asarray)

    @classmethod
    def independent(cls, mean: Float[Leaf, " d"], variance: Float[Leaf, " d"]) -> IsotropicGaussian:
        return cls.from_moments(mean, jnp.mean(jnp.asarray(variance)))

    def to_diagonal(self) -> DiagonalGaussian:
        """The same density as a member of the larger family."""
        return DiagonalGaussian(self.precision_mean, jnp.broadcast_to(self.precision, self.precision_mean.shape))

    @property
    def variance(self) -> Float[Array, " d"]:
        return self.to_diagonal().variance

    @property
    def precision_matrix(self) -> Float[Leaf, "d d"]:
        return self.to_diagonal().precision_matrix

    @property
    def log_partition(self) -> Float[Array, ""]:
        return self.to_diagonal().log_partition

    @property
    def mean_parameters(self) -> tuple[Array, ...]:
        return self.mean, -0.5 * jnp.sum(self.variance + self.mean**2)

    def statistics(self, theta: Float[Array, " d"]) -> tuple[Array, ...]:
        return theta, -0.5 * jnp.sum(theta**2)

    def with_moments_of(self, other: Gaussian) -> IsotropicGaussian:
        return IsotropicGaussian.from_moments(other.mean, jnp.mean(other.variance))

    def site(self, gradient: Float[Array, " d"], hessian: Float[Array, ...]) -> IsotropicGaussian:
        # d/dlambda of -lambda |theta|^2 / 2 depends on the trace, which d coordinates share
        curvature = jnp.mean(hessian if hessian.ndim == 1 else jnp.diagonal(hessian))
        return IsotropicGaussian(curvature * self.mean - gradient, curvature)

    def map_moments(self, designs: Sequence[Float[Array, "n _"]]) -> tuple[Float[Array, "n k"], Float[Array, "n k k"]]:
        return self.to_diagonal().map_moments(designs)

    def reparameterise(self, noise: Float[Array, "*shape d"]) -> Float[Array, "*shape d"]:
        return self.mean + noise / jnp.sqrt(self.precision)

    def with_precision(self, where: Bool[Array, " d"], precision: Float[Array, " d"]) -> IsotropicGaussian:
        raised = jnp.where(jnp.any(where), jnp.max(precision), self.precision)
        return IsotropicGaussian(self.precision_mean, raised).with_mean(self.mean)

    def kl(self, other: Gaussian) -> Float[Array, ""]:
        wider = other.to_diagonal() if isinstance(other, IsotropicGaussian) else other
        return self.to_diagonal().kl(wider)
