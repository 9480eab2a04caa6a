"""A point mass: the family of methods without uncertainty (FedAvg and related methods)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from cavity.core import Distribution
from cavity.core.fields import Number
from cavity.core.types import Leaf
from cavity.distributions.natural import require_proper
from cavity.errors import ImproperError


class PointMass(Distribution):
    """All mass at `location`. Its algebra is that of translations: `tilted / q` is the step from q to tilted.

    So `q * (tilted / q) ** rate` moves q by `rate` of the step, which is what an averaging server does.
    """

    location: Float[Leaf, " d"]

    def __mul__(self, other: PointMass) -> PointMass:
        return PointMass(self.location + other.location)

    def __truediv__(self, other: PointMass) -> PointMass:
        return PointMass(self.location - other.location)

    def __pow__(self, exponent: Number) -> PointMass:
        return PointMass(exponent * self.location)

    def concentrated(self) -> PointMass:
        return self

    @classmethod
    def from_moments(cls, mean: Float[Leaf, " d"], variance: Float[Leaf, ...] | None = None) -> PointMass:
        """The point at the mean; a variance is ignored."""
        return cls(jnp.asarray(mean))

    @property
    def is_proper(self) -> Bool[Array, ""]:
        return jnp.all(jnp.isfinite(jnp.asarray(self.location)))

    @property
    def mean(self) -> Float[Array, " d"]:
        return jnp.asarray(self.location)

    @property
    def variance(self) -> Float[Array, " d"]:
        return jnp.zeros_like(self.mean)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "*shape d"]:
        q = require_proper(self, "sample from")
        return jnp.broadcast_to(q.mean, (*shape, *q.mean.shape))

    def log_prob(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        raise ImproperError("a point mass has no density to score with; compare `location` instead")

    def kl(self, other: PointMass) -> Float[Array, ""]:
        raise ImproperError("the KL divergence between two point masses is zero or infinite; compare `location`")

    @property
    def entropy(self) -> Float[Array, ""]:
        raise ImproperError("a point mass has no density, and therefore no entropy")

    def cross(self, factor: PointMass) -> Float[Array, ""]:
        raise ImproperError("a point mass has no density, and therefore no expected log density")
