"""The mean-field Gaussian: a diagonal precision; and what families without correlations share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cavity.core.types import Leaf
from cavity.distributions.full import as_full
from cavity.distributions.gaussian import Gaussian, rest_without, split, symmetric_kl_terms

U = TypeVar("U", bound="UncorrelatedGaussian")


class UncorrelatedGaussian(Gaussian):
    """A Gaussian family without correlations: one precision per coordinate, or one for all of them."""

    @classmethod
    def from_moments(cls: type[U], mean: Float[Leaf, " d"], variance: Float[Leaf, ...]) -> U:
        """The member with this mean, and this variance of each coordinate or of every one."""
        precision = 1.0 / jnp.asarray(variance)
        return cls(precision * jnp.asarray(mean), precision)

    @property
    def is_proper(self) -> Bool[Array, ""]:
        precision = jnp.asarray(self.precision)
        return jnp.all((precision > 0) & jnp.isfinite(precision) & jnp.isfinite(self.precision_mean))

    @property
    def mean(self) -> Float[Array, " d"]:
        return jnp.asarray(self.precision_mean) / self.precision

    @property
    def covariance(self) -> Float[Array, "d d"]:
        return jnp.diag(self.variance)

    @property
    def root(self) -> tuple[Float[Array, ...], Float[Array, "d d"] | None]:
        return jnp.asarray(self.precision) ** -0.5, None

    @classmethod
    def from_root(
        cls: type[U], mean: Float[Array, " d"], diagonal: Float[Array, ...], below: Float[Array, "d d"] | None
    ) -> U:
        precision = diagonal**-2
        return cls(precision * mean, precision)

    def with_mean(self: U, mean: Float[Leaf, " d"]) -> U:
        return type(self)(self.precision * mean, self.precision)

    def without(self: U, factor: U, least: U) -> U:
        share, rest = rest_without(self.precision, factor.precision, least.precision)
        return type(self)(self.precision_mean - share * factor.precision_mean, rest)


class DiagonalGaussian(UncorrelatedGaussian):
    """exp(h . theta - sum_i lambda_i theta_i^2 / 2), with T(theta) = (theta, -theta^2 / 2).

    Attributes:
        precision_mean: h = lambda mu.
        precision: lambda, one number per coordinate; not positive for an improper member.
    """

    precision_mean: Float[Leaf, " d"]
    precision: Float[Leaf, " d"]

    @classmethod
    def independent(cls, mean: Float[Leaf, " d"], variance: Float[Leaf, " d"]) -> DiagonalGaussian:
        return cls.from_moments(mean, variance)

    @property
    def natural(self) -> DiagonalGaussian:
        """The same density in natural parameters: this one."""
        return self

    @property
    def variance(self) -> Float[Array, " d"]:
        return 1.0 / jnp.asarray(self.precision)

    @property
    def precision_matrix(self) -> Float[Leaf, "d d"]:
        return jnp.diag(jnp.asarray(self.precision))

    @property
    def log_partition(self) -> Float[Array, ""]:
        precision = jnp.asarray(self.precision)
        return 0.5 * jnp.sum(self.precision_mean**2 / precision - jnp.log(precision) + jnp.log(2 * jnp.pi))

    @property
    def mean_parameters(self) -> tuple[Array, ...]:
        return self.mean, -0.5 * (self.variance + self.mean**2)

    def statistics(self, theta: Float[Array, " d"]) -> tuple[Array, ...]:
        return theta, -0.5 * theta**2

    def with_moments_of(self, other: Gaussian) -> DiagonalGaussian:
        return DiagonalGaussian.from_moments(other.mean, other.variance)

    def site(self, gradient: Float[Array, " d"], hessian: Float[Array, ...]) -> DiagonalGaussian:
        diagonal = hessian if hessian.ndim == 1 else jnp.diagonal(hessian)
        return DiagonalGaussian(diagonal * self.mean - gradient, diagonal)

    def map_moments(self, designs: Sequence[Float[Array, "n _"]]) -> tuple[Float[Array, "n k"], Float[Array, "n k k"]]:
        return mean_field_map(self.mean, self.variance, designs)

    def reparameterise(self, noise: Float[Array, "*shape d"]) -> Float[Array, "*shape d"]:
        return self.mean + jnp.sqrt(self.variance) * noise

    def with_precision(self, where: Bool[Array, " d"], precision: Float[Array, " d"]) -> DiagonalGaussian:
        return DiagonalGaussian(self.precision_mean, jnp.where(where, precision, self.precision)).with_mean(self.mean)

    def kl(self, other: Gaussian) -> Float[Array, ""]:
        if not isinstance(other, DiagonalGaussian):
            return as_full(self).kl(other)
        distance = jnp.sum(other.precision * (self.mean - other.mean) ** 2)
        return 0.5 * (symmetric_kl_terms(jnp.asarray(other.precision) / self.precision) + distance)


def mean_field_map(
    mean: Float[Array, " d"], variance: Float[Array, " d"], designs: Sequence[Float[Array, "n _"]]
) -> tuple[Float[Array, "n k"], Float[Array, "n k k"]]:
    """Mean and covariance of f_k = X_k theta_k per row, for independent entries of theta."""
    means = [x @ block for x, block in zip(designs, split(mean, designs), strict=True)]
    variances = [x**2 @ block for x, block in zip(designs, split(variance, designs), strict=True)]
    spread = jnp.stack(variances, -1)
    return jnp.stack(means, -1), spread[..., None] * jnp.eye(len(designs), dtype=spread.dtype)
