"""Gamma, Beta and Dirichlet: the families of rates and shares, for conjugate models.

A leaf is the coefficient of a sufficient statistic, so the unit factor is all zeros: a Gamma density
x^(a-1) e^(-bx) has leaves (a - 1, b) and T(x) = (log x, -x). Entries of a Gamma or Beta are independent.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln, polygamma
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from cavity.core.types import Leaf
from cavity.distributions.natural import ExponentialFamily


def gammaln_excess(p: Float[Array, "*d"], q: Float[Array, "*d"]) -> Float[Array, "*d"]:
    """Log Gamma(p) - log Gamma(q) - (p - q) digamma(q), not negative: the terms of the KL of these families.

    Near equality the difference cancels, so there it is computed as Taylor's remainder: (p - q)^2 times the integral of
    (1 - s) trigamma(q + s (p - q)) over 0 < s < 1.
    """
    nodes, weights = np.polynomial.legendre.leggauss(12)
    s = (1.0 + nodes) / 2.0
    step = p - q
    near = jnp.abs(step) < 0.5 * q
    between = q[..., None] + jnp.where(near, step, 0.0)[..., None] * jnp.asarray(s, q.dtype)
    remainder = step**2 * (polygamma(1, between) @ jnp.asarray(weights / 2.0 * (1.0 - s), q.dtype))
    return jnp.where(near, remainder, gammaln(p) - gammaln(q) - step * digamma(q))


def all_positive(*parameters: Leaf) -> Bool[Array, ""]:
    """Whether all are positive and finite."""
    return jnp.all(jnp.stack([jnp.all((jnp.asarray(a) > 0) & jnp.isfinite(a)) for a in parameters]))


class Gamma(ExponentialFamily):
    """x^(shape - 1) exp(-rate x) for x > 0, entry by entry."""

    shape_less_one: Float[Leaf, "*d"]
    rate: Float[Leaf, "*d"]

    @classmethod
    def from_shape_rate(cls, shape: Float[Leaf, "*d"], rate: Float[Leaf, "*d"]) -> Gamma:
        """The member in its usual parameters."""
        return cls(jnp.asarray(shape) - 1.0, jnp.asarray(rate))

    @classmethod
    def from_moments(cls, mean: Float[Leaf, "*d"], variance: Float[Leaf, "*d"]) -> Gamma:
        """The member with this mean and variance."""
        rate = jnp.asarray(mean) / variance
        return cls.from_shape_rate(mean * rate, rate)

    @property
    def shape(self) -> Float[Array, "*d"]:
        """The usual shape parameter."""
        return jnp.asarray(self.shape_less_one) + 1.0

    @property
    def is_proper(self) -> Bool[Array, ""]:
        return all_positive(self.shape, self.rate)

    @property
    def mean(self) -> Float[Array, "*d"]:
        return self.shape / self.rate

    @property
    def variance(self) -> Float[Array, "*d"]:
        return self.mean / self.rate

    @property
    def log_partition(self) -> Float[Array, ""]:
        return jnp.sum(gammaln(self.shape) - self.shape * jnp.log(jnp.asarray(self.rate)))

    @property
    def mean_parameters(self) -> tuple[Array, ...]:
        return digamma(self.shape) - jnp.log(jnp.asarray(self.rate)), -self.mean

    def statistics(self, theta: Float[Array, "*d"]) -> tuple[Array, ...]:
        return jnp.log(theta), -theta

    def transform(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*draws"]:
        return jax.random.gamma(key, self.shape, (*shape, *self.shape.shape)) / self.rate

    def kl(self, other: Gamma) -> Float[Array, ""]:
        excess = (jnp.asarray(other.rate) - self.rate) / self.rate
        log_ratio = jnp.log1p(excess)
        shapes = gammaln_excess(other.shape, self.shape) + (self.shape - other.shape) * log_ratio
        return jnp.sum(shapes + self.shape * (excess - log_ratio))


class Beta(ExponentialFamily):
    """x^(a - 1) (1 - x)^(b - 1) for 0 < x < 1, entry by entry."""

    successes: Float[Leaf, "*d"]
    failures: Float[Leaf, "*d"]

    @classmethod
    def from_concentrations(cls, a: Float[Leaf, "*d"], b: Float[Leaf, "*d"]) -> Beta:
        """The member in its usual parameters."""
        return cls(jnp.asarray(a) - 1.0, jnp.asarray(b) - 1.0)

    @classmethod
    def from_moments(cls, mean: Float[Leaf, "*d"], variance: Float[Leaf, "*d"]) -> Beta:
        """The member with this mean and variance."""
        total = jnp.asarray(mean) * (1.0 - jnp.asarray(mean)) / variance - 1.0
        return cls.from_concentrations(mean * total, (1.0 - mean) * total)

    @property
    def concentrations(self) -> tuple[Array, Array]:
        """The usual parameters (a, b)."""
        return jnp.asarray(self.successes) + 1.0, jnp.asarray(self.failures) + 1.0

    @property
    def is_proper(self) -> Bool[Array, ""]:
        return all_positive(*self.concentrations)

    @property
    def mean(self) -> Float[Array, "*d"]:
        a, b = self.concentrations
        return a / (a + b)

    @property
    def variance(self) -> Float[Array, "*d"]:
        a, b = self.concentrations
        return a * b / ((a + b) ** 2 * (a + b + 1.0))

    @property
    def log_partition(self) -> Float[Array, ""]:
        a, b = self.concentrations
        return jnp.sum(gammaln(a) + gammaln(b) - gammaln(a + b))

    @property
    def mean_parameters(self) -> tuple[Array, ...]:
        a, b = self.concentrations
        return digamma(a) - digamma(a + b), digamma(b) - digamma(a + b)

    def statistics(self, theta: Float[Array, "*d"]) -> tuple[Array, ...]:
        return jnp.log(theta), jnp.log1p(-theta)

    def transform(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*draws"]:
        a, b = self.concentrations
        return jax.random.beta(key, a, b, (*shape, *a.shape))

    def kl(self, other: Beta) -> Float[Array, ""]:
        (a, b), (other_a, other_b) = self.concentrations, other.concentrations
        apart = gammaln_excess(other_a, a) + gammaln_excess(other_b, b)
        return jnp.sum(apart - gammaln_excess(other_a + other_b, a + b))


class Dirichlet(ExponentialFamily):
    """prod_k x_k^(c_k - 1) on the simplex."""

    counts: Float[Leaf, " k"]

    @classmethod
    def from_concentration(cls, concentration: Float[Leaf, " k"]) -> Dirichlet:
        """The member in its usual parameter."""
        return cls(jnp.asarray(concentration) - 1.0)

    @classmethod
    def from_moments(cls, mean: Float[Leaf, " k"], variance: Float[Leaf, " k"]) -> Dirichlet:
        """The member with this mean, and with the total concentration that the first entry's variance implies."""
        mean = jnp.asarray(mean)
        total = mean[0] * (1.0 - mean[0]) / jnp.asarray(variance)[0] - 1.0
        return cls.from_concentration(total * mean)

    @property
    def concentration(self) -> Float[Array, " k"]:
        """The usual parameter."""
        return jnp.asarray(self.counts) + 1.0

    @property
    def is_proper(self) -> Bool[Array, ""]:
        return all_positive(self.concentration)

    @property
    def mean(self) -> Float[Array, " k"]:
        return self.concentration / jnp.sum(self.concentration)

    @property
    def variance(self) -> Float[Array, " k"]:
        return self.mean * (1.0 - self.mean) / (jnp.sum(self.concentration) + 1.0)

    @property
    def log_partition(self) -> Float[Array, ""]:
        return jnp.sum(gammaln(self.concentration)) - gammaln(jnp.sum(self.concentration))

    @property
    def mean_parameters(self) -> tuple[Array, ...]:
        return (digamma(self.concentration) - digamma(jnp.sum(self.concentration)),)

    def statistics(self, theta: Float[Array, " k"]) -> tuple[Array, ...]:
        return (jnp.log(theta),)

    def transform(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*draws k"]:
        return jax.random.dirichlet(key, self.concentration, shape)

    def kl(self, other: Dirichlet) -> Float[Array, ""]:
        mine, theirs = self.concentration, other.concentration
        return jnp.sum(gammaln_excess(theirs, mine)) - gammaln_excess(jnp.sum(theirs), jnp.sum(mine))
