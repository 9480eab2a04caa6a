"""What all Gaussian families share: theta in R^d, and one quadratic form.

Every family here writes exp(h . theta - theta' Lambda theta / 2) with h = Lambda mu, and differs only in
what Lambda may be: any symmetric matrix, a diagonal, a multiple of the identity.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cavity.distributions.natural import ArrayLike, ExponentialFamily

G = TypeVar("G", bound="Gaussian")


class Gaussian(ExponentialFamily):
    """A Gaussian over a flat vector."""

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """d, the length of theta."""

    @property
    @abc.abstractmethod
    def mean(self) -> Float[Array, " d"]:
        """Mu = Lambda^-1 h."""

    @property
    @abc.abstractmethod
    def variance(self) -> Float[Array, " d"]:
        """The marginal variances, the diagonal of Lambda^-1."""

    @property
    @abc.abstractmethod
    def covariance(self) -> Float[Array, "d d"]:
        """Lambda^-1 as a full matrix."""

    @property
    @abc.abstractmethod
    def precision_matrix(self) -> Float[ArrayLike, "d d"]:
        """Lambda as a full matrix."""

    @abc.abstractmethod
    def with_mean(self: G, mean: Float[ArrayLike, " d"]) -> G:
        """The same precision around another mean."""

    @abc.abstractmethod
    def with_moments_of(self: G, other: Gaussian) -> G:
        """The member of this family that is closest to another Gaussian in KL(other : member), by its moments."""

    @property
    @abc.abstractmethod
    def root(self) -> tuple[Float[Array, ...], Float[Array, "d d"] | None]:
        """A root L of the covariance, Sigma = L L': its diagonal, and what is below it (None if nothing is)."""

    @classmethod
    @abc.abstractmethod
    def from_root(cls, mean: Float[Array, " d"], diagonal: Float[Array, ...], below: Any) -> Any:
        """The member with this mean and this root of its covariance."""

    @abc.abstractmethod
    def without(self: G, factor: G, least: G) -> G:
        """Self / factor ** s with the largest s <= 1 that keeps at least the precision of `least`.

        There is one s for each coordinate where the family knows no correlations. Where `self` has less, s is 0.
        """

    @abc.abstractmethod
    def site(self: G, gradient: Float[Array, " d"], hessian: Float[Array, ...]) -> G:
        """The factor of eq. (3) for a loss with E_q[grad] and E_q[hessian] at this q.

        By Bonnet's and Price's theorems d/dmu E_q[loss] in the mean parameters is (H mu - g, H), with H
        projected on the family. `hessian` is a matrix, or its diagonal alone.
        """

    @abc.abstractmethod
    def map_moments(self, designs: Sequence[Float[Array, "n _"]]) -> tuple[Float[Array, "n k"], Float[Array, "n k k"]]:
        """Mean and covariance of f_k = X_k theta_k per row, where theta is the blocks theta_k in a row."""

    @abc.abstractmethod
    def reparameterise(self, noise: Float[Array, "*shape d"]) -> Float[Array, "*shape d"]:
        """Mu + L noise with L L' the covariance: standard normal noise becomes draws of q."""

    def transform(self, key, shape):
        dtype = jnp.result_type(float)
        return self.reparameterise(jax.random.normal(key, (*shape, self.dimension), dtype))


def rest_without(precision: Any, factor: Any, least: Any) -> tuple[Array, Array]:
    """The largest s <= 1 for which precision - s factor keeps at least `least`, and what it leaves; elementwise."""
    rest = precision - factor
    floor = jnp.minimum(least, precision)
    too_much = rest < floor
    share = jnp.where(too_much, (precision - floor) / jnp.where(too_much, factor, 1.0), 1.0)
    return jnp.asarray(share), jnp.maximum(rest, floor)


def split(vector: Float[ArrayLike, " d"], designs: Sequence[Float[Array, "n _"]]) -> list[Array]:
    """Cut a vector into the blocks that the designs act on."""
    edges = [0]
    for design in designs:
        edges.append(edges[-1] + design.shape[1])
    return [jnp.asarray(vector)[a:b] for a, b in itertools.pairwise(edges)]


def row_roots(covariance: Float[Array, "n k k"]) -> Float[Array, "n k k"]:
    """A root of each row's covariance; the floor keeps derivatives finite where a row of zeros has none."""
    size = covariance.shape[-1]
    covariance = covariance + jnp.finfo(covariance.dtype).eps ** 2 * jnp.eye(size, dtype=covariance.dtype)
    return jnp.sqrt(covariance) if size == 1 else jnp.linalg.cholesky(covariance)


def symmetric_kl_terms(ratio: Float[Array, " d"]) -> Float[Array, ""]:
    """Sum of (r - 1 - log r), each non-negative: exact where the plain difference of traces and logs cancels."""
    excess = ratio - 1.0
    return jnp.sum(excess - jnp.log1p(excess))
