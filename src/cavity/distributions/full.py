"""The Gaussian with full covariance, the default family for regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float

from cavity.core.types import Leaf
from cavity.distributions.gaussian import Gaussian, split, symmetric_kl_terms


class FullGaussian(Gaussian):
    """exp(h . theta - theta' Lambda theta / 2), with T(theta) = (theta, -theta theta' / 2).

    Attributes:
        precision_mean: h = Lambda mu.
        precision: Lambda, symmetric; indefinite for an improper member.

    Example:
        >>> q = FullGaussian.from_moments(jnp.zeros(2), jnp.eye(2))
        >>> t = FullGaussian.from_moments(jnp.ones(2), jnp.eye(2))
        >>> (q * t).mean.round(3).tolist()
        [0.5, 0.5]
    """

    has_correlations: ClassVar[bool] = True
    precision_mean: Float[Leaf, " d"]
    precision: Float[Leaf, "d d"]

    @classmethod
    def from_moments(cls, mean: Float[Leaf, " d"], covariance: Float[Leaf, "d d"]) -> FullGaussian:
        """The member with this mean and covariance."""
        factor = jnp.linalg.cholesky(jnp.asarray(covariance))
        precision = cho_solve((factor, True), jnp.eye(len(mean), dtype=factor.dtype))
        return cls(precision @ jnp.asarray(mean), precision)

    @classmethod
    def independent(cls, mean: Float[Leaf, " d"], variance: Float[Leaf, " d"]) -> FullGaussian:
        return cls.from_moments(mean, jnp.diag(jnp.asarray(variance)))

    @property
    def cholesky(self) -> Float[Array, "d d"]:
        """L with L L' = Lambda; NaN if the member is improper."""
        return jnp.linalg.cholesky(jnp.asarray(self.precision))

    @property
    def is_proper(self) -> Bool[Array, ""]:
        return jnp.all(jnp.isfinite(self.cholesky)) & jnp.all(jnp.isfinite(self.precision_mean))

    @property
    def mean(self) -> Float[Array, " d"]:
        return cho_solve((self.cholesky, True), jnp.asarray(self.precision_mean))

    @property
    def covariance(self) -> Float[Array, "d d"]:
        chol = self.cholesky
        return cho_solve((chol, True), jnp.eye(self.dimension, dtype=chol.dtype))

    @property
    def variance(self) -> Float[Array, " d"]:
        return jnp.diagonal(self.covariance)

    @property
    def precision_matrix(self) -> Float[Leaf, "d d"]:
        return self.precision

    @property
    def log_partition(self) -> Float[Array, ""]:
        chol = self.cholesky
        white = solve_triangular(chol, jnp.asarray(self.precision_mean), lower=True)
        return 0.5 * white @ white - jnp.sum(jnp.log(jnp.diagonal(chol))) + 0.5 * self.dimension * jnp.log(2 * jnp.pi)

    @property
    def mean_parameters(self) -> tuple[Array, ...]:
        mean, covariance = self.mean, self.covariance
        return mean, -0.5 * (covariance + jnp.outer(mean, mean))

    def statistics(self, theta: Float[Array, " d"]) -> tuple[Array, ...]:
        return theta, -0.5 * jnp.outer(theta, theta)

    def with_mean(self, mean: Float[Leaf, " d"]) -> FullGaussian:
        return FullGaussian(self.precision @ mean, self.precision)

    def with_moments_of(self, other: Gaussian) -> FullGaussian:
        return as_full(other)

    @property
    def root(self) -> tuple[Float[Array, ...], Float[Array, "d d"] | None]:
        lower = jnp.linalg.cholesky(self.covariance)
        return jnp.diagonal(lower), jnp.tril(lower, -1)

    @classmethod
    def from_root(
        cls, mean: Float[Array, " d"], diagonal: Float[Array, ...], below: Float[Array, "d d"] | None
    ) -> FullGaussian:
        lower = jnp.diag(diagonal) if below is None else jnp.tril(below, -1) + jnp.diag(diagonal)
        precision = cho_solve((lower, True), jnp.eye(len(mean), dtype=lower.dtype))
        return cls(precision @ mean, precision)

    def without(self, factor: FullGaussian, least: FullGaussian) -> FullGaussian:
        # self - s factor - least is positive while s times the largest eigenvalue of factor / (self - least) is below 1
        chol = jnp.linalg.cholesky(jnp.asarray(self.precision) - least.precision)
        left = solve_triangular(chol, jnp.asarray(factor.precision), lower=True)
        ratio = solve_triangular(chol, left.T, lower=True)
        largest = jnp.linalg.eigvalsh(0.5 * (ratio + ratio.T))[-1]
        share = jnp.asarray(jnp.where(largest > 1.0, 1.0 / largest, 1.0))
        return self / factor ** jnp.where(jnp.isnan(largest), 0.0, share)

    def site(self, gradient: Float[Array, " d"], hessian: Float[Array, ...]) -> FullGaussian:
        matrix = jnp.diag(hessian) if hessian.ndim == 1 else hessian
        return FullGaussian(matrix @ self.mean - gradient, matrix)

    def map_moments(self, designs: Sequence[Float[Array, "n _"]]) -> tuple[Float[Array, "n k"], Float[Array, "n k k"]]:
        means = [x @ block for x, block in zip(designs, split(self.mean, designs), strict=True)]
        edges = np.cumsum([0] + [x.shape[1] for x in designs])
        covariance = self.covariance
        rows = []
        for k, left in enumerate(designs):
            # cov(f_k, f_l) = x_k' Sigma_kl x_l, for all l at once
            mapped = left @ covariance[edges[k] : edges[k + 1]]
            rows.append([jnp.sum(mapped[:, edges[m] : edges[m + 1]] * x, axis=1) for m, x in enumerate(designs)])
        return jnp.stack(means, -1), jnp.stack([jnp.stack(row, -1) for row in rows], -2)

    def reparameterise(self, noise: Float[Array, "*shape d"]) -> Float[Array, "*shape d"]:
        # Lambda = L L', so L'^-1 noise has covariance Lambda^-1
        flat = noise.reshape(-1, self.dimension)
        draws = solve_triangular(self.cholesky, flat.T, lower=True, trans="T").T
        return self.mean + draws.reshape(noise.shape)

    def with_precision(self, where: Bool[Array, " d"], precision: Float[Array, " d"]) -> FullGaussian:
        diagonal = jnp.diagonal(jnp.asarray(self.precision))
        added = jnp.diag(jnp.asarray(jnp.where(where, precision - diagonal, 0.0)))
        return FullGaussian(self.precision_mean, self.precision + added).with_mean(self.mean)

    def kl(self, other: Gaussian) -> Float[Array, ""]:
        """A sum of non-negative terms in the root of L_q^-1 Lambda_p L_q^-T, so that no digits cancel."""
        chol = self.cholesky
        left = solve_triangular(chol, jnp.asarray(other.precision_matrix), lower=True)
        ratio = jnp.linalg.cholesky(solve_triangular(chol, left.T, lower=True))
        shift = self.mean - other.mean
        pivots = jnp.diagonal(ratio)
        off = ratio - jnp.diag(pivots)
        distance = shift @ (jnp.asarray(other.precision_matrix) @ shift)
        return 0.5 * (symmetric_kl_terms(pivots**2) + jnp.sum(off**2) + distance)


def as_full(q: Gaussian) -> FullGaussian:
    """The same density, improper or not, as a Gaussian with full covariance."""
    return FullGaussian(q.precision_mean, q.precision_matrix)
