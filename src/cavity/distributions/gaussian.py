"""What all Gaussian families share: theta in R^d and a quadratic form.

Every family is exp(h . theta - theta' Lambda theta / 2) with h = Lambda mu. The families differ in what Lambda may be:
any symmetric matrix, a diagonal, a multiple of the identity.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from typing import ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from cavity.core import Distribution
from cavity.core.types import Leaf
from cavity.distributions.natural import ExponentialFamily

G = TypeVar("G", bound="Gaussian")
H = TypeVar("H", bound="GaussianDensity")


class GaussianDensity(Distribution):
    """A Gaussian over a flat vector, in any parametrisation: what an objective may ask of it."""

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """d, the length of theta."""

    @property
    @abc.abstractmethod
    def mean(self) -> Float[Array, " d"]:
        """Mu, the mean."""

    @property
    @abc.abstractmethod
    def variance(self) -> Float[Array, " d"]:
        """The marginal variances."""

    @property
    @abc.abstractmethod
    def log_variance(self) -> Float[Array, " d"]:
        """The logs of the marginal variances."""

    @property
    @abc.abstractmethod
    def covariance(self) -> Float[Array, "d d"]:
        """The covariance as a full matrix."""

    @property
    @abc.abstractmethod
    def root(self) -> tuple[Float[Array, ...], Float[Array, "d d"] | None]:
        """A root L of the covariance, Sigma = L L': its diagonal, and the part below it (None if it is zero)."""

    @abc.abstractmethod
    def map_moments(self, designs: Sequence[Float[Array, "n _"]]) -> tuple[Float[Array, "n k"], Float[Array, "n k k"]]:
        """Mean and covariance of f_k = X_k theta_k per row, where theta concatenates the blocks theta_k."""

    @abc.abstractmethod
    def reparameterise(self, noise: Float[Array, "*shape d"]) -> Float[Array, "*shape d"]:
        """Mu + L noise with L L' the covariance: standard normal noise becomes draws of q."""

    @abc.abstractmethod
    def with_precision(self: H, where: Bool[Array, " d"], precision: Float[Array, " d"]) -> H:
        """The same mean, with other precisions in some coordinates.

        A family with one precision for all coordinates takes the largest of them. For a family with correlations these
        are the precisions given all other coordinates.
        """


class Gaussian(ExponentialFamily, GaussianDensity):
    """A Gaussian over a flat vector, in natural parameters."""

    has_correlations: ClassVar[bool] = False  # whether the precision may have off-diagonal entries
    precision_mean: eqx.AbstractVar[Float[Leaf, " d"]]
    precision: eqx.AbstractVar[Float[Leaf, ...]]

    @classmethod
    @abc.abstractmethod
    def from_moments(cls: type[G], mean: Float[Leaf, " d"], spread: Float[Leaf, ...]) -> G:
        """The member with this mean and this covariance matrix, vector of variances, or variance, by family."""

    @classmethod
    @abc.abstractmethod
    def independent(cls: type[G], mean: Float[Leaf, " d"], variance: Float[Leaf, " d"]) -> G:
        """The member with this mean and these variances, without correlations."""

    @property
    def dimension(self) -> int:
        return self.precision_mean.shape[-1]

    @property
    def log_variance(self) -> Float[Array, " d"]:
        return jnp.log(self.variance)

    @property
    @abc.abstractmethod
    def precision_matrix(self) -> Float[Leaf, "d d"]:
        """Lambda as a full matrix."""

    @abc.abstractmethod
    def with_mean(self: G, mean: Float[Leaf, " d"]) -> G:
        """The same precision around another mean."""

    @abc.abstractmethod
    def with_moments_of(self: G, other: Gaussian) -> G:
        """The member of this family that is closest to another Gaussian in KL(other : member), by its moments."""

    @classmethod
    @abc.abstractmethod
    def from_root(
        cls: type[G], mean: Float[Array, " d"], diagonal: Float[Array, ...], below: Float[Array, "d d"] | None
    ) -> G:
        """The member with this mean and this root of its covariance."""

    @abc.abstractmethod
    def without(self: G, factor: G, least: G) -> G:
        """Self / factor ** s with the largest s <= 1 that keeps at least the precision of `least`.

        There is one s per coordinate where the family has no correlations. Where `self` has less precision than
        `least`, s is 0.
        """

    @abc.abstractmethod
    def site(self: G, gradient: Float[Array, " d"], hessian: Float[Array, ...]) -> G:
        """The factor of eq. (3) for a loss with E_q[grad] and E_q[hessian] at this q.

        By Bonnet's and Price's theorems d/dmu E_q[loss] in the mean parameters is (H mu - g, H), with H
        projected on the family. `hessian` is a matrix, or its diagonal alone.
        """

    def transform(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape d"]:
        dtype = jnp.result_type(float)
        return self.reparameterise(jax.random.normal(key, (*shape, self.dimension), dtype))


def gaussian_or_none(q: PyTree) -> Gaussian | None:
    """The distribution, where it is a Gaussian in natural parameters; None for other families and other records."""
    return q if isinstance(q, Gaussian) else None


def rest_without(precision: Leaf, factor: Leaf, least: Leaf) -> tuple[Array, Array]:
    """The largest s <= 1 with precision - s factor >= `least`, and precision - s factor; elementwise."""
    rest = precision - factor
    floor = jnp.minimum(least, precision)
    too_much = rest < floor
    share = jnp.where(too_much, (precision - floor) / jnp.where(too_much, factor, 1.0), 1.0)
    return jnp.asarray(share), jnp.maximum(rest, floor)


def split(vector: Float[Leaf, " d"], designs: Sequence[Float[Array, "n _"]]) -> list[Array]:
    """Split a vector into the blocks that the designs multiply."""
    edges = [0]
    for design in designs:
        edges.append(edges[-1] + design.shape[1])
    return [jnp.asarray(vector)[a:b] for a, b in itertools.pairwise(edges)]


def row_roots(covariance: Float[Array, "n k k"]) -> Float[Array, "n k k"]:
    """A root of each row's covariance; a tiny ridge keeps derivatives finite for a row of zeros."""
    size = covariance.shape[-1]
    covariance = covariance + jnp.finfo(covariance.dtype).eps ** 2 * jnp.eye(size, dtype=covariance.dtype)
    return jnp.sqrt(covariance) if size == 1 else jnp.linalg.cholesky(covariance)


def symmetric_kl_terms(ratio: Float[Array, " d"]) -> Float[Array, ""]:
    """Sum of (r - 1 - log r), each non-negative: accurate where a difference of traces and logs cancels."""
    excess = ratio - 1.0
    return jnp.sum(excess - jnp.log1p(excess))
