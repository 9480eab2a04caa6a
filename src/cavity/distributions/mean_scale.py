"""The mean-field Gaussian in the parameters that an optimiser changes: a mean and the logs of standard deviations.

Every value of these parameters is proper. Gradient descent evaluates its objective in them, because converting a scale
to a precision and back to a variance costs as much as all other element-wise work of a network's step.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from cavity.core.fields import Number
from cavity.distributions.diagonal import DiagonalGaussian, mean_field_map
from cavity.distributions.gaussian import GaussianDensity
from cavity.distributions.natural import inner


class MeanScale(GaussianDensity):
    """N(mean, diag(exp(log_scale))^2). Operations without a short form here are computed from `natural`.

    Attributes:
        centre: mu, the mean.
        log_scale: the log of each standard deviation.
    """

    centre: Float[Array, " d"]
    log_scale: Float[Array, " d"]

    @classmethod
    def of(cls, q: DiagonalGaussian) -> MeanScale:
        """The same density in these parameters."""
        return cls(q.mean, -0.5 * jnp.log(jnp.asarray(q.precision)))

    @property
    def natural(self) -> DiagonalGaussian:
        """The same density in natural parameters."""
        precision = jnp.exp(-2.0 * self.log_scale)
        return DiagonalGaussian(precision * self.mean, precision)

    @property
    def dimension(self) -> int:
        return self.centre.shape[-1]

    @property
    def mean(self) -> Float[Array, " d"]:
        return self.centre

    @property
    def variance(self) -> Float[Array, " d"]:
        return jnp.exp(2.0 * self.log_scale)

    @property
    def log_variance(self) -> Float[Array, " d"]:
        return 2.0 * self.log_scale

    @property
    def covariance(self) -> Float[Array, "d d"]:
        return jnp.diag(self.variance)

    @property
    def entropy(self) -> Float[Array, ""]:
        return jnp.sum(self.log_scale + 0.5 * (1.0 + jnp.log(2 * jnp.pi)))

    def cross(self, factor: DiagonalGaussian) -> Float[Array, ""]:
        return inner(factor, (self.mean, -0.5 * (self.variance + self.mean**2)))

    def map_moments(self, designs: Sequence[Float[Array, "n _"]]) -> tuple[Float[Array, "n k"], Float[Array, "n k k"]]:
        return mean_field_map(self.mean, self.variance, designs)

    def reparameterise(self, noise: Float[Array, "*shape d"]) -> Float[Array, "*shape d"]:
        return self.mean + jnp.exp(self.log_scale) * noise

    @property
    def root(self) -> tuple[Float[Array, ...], Float[Array, "d d"] | None]:
        return jnp.exp(self.log_scale), None

    def with_precision(self, where: Bool[Array, " d"], precision: Float[Array, " d"]) -> MeanScale:
        log_scale = jnp.where(where, -0.5 * jnp.log(jnp.where(where, precision, 1.0)), self.log_scale)
        return MeanScale(self.centre, log_scale)

    def __mul__(self, other: MeanScale | DiagonalGaussian) -> DiagonalGaussian:
        return self.natural * other.natural

    def __truediv__(self, other: MeanScale | DiagonalGaussian) -> DiagonalGaussian:
        return self.natural / other.natural

    def __pow__(self, exponent: Number) -> DiagonalGaussian:
        return self.natural**exponent

    @property
    def is_proper(self) -> Bool[Array, ""]:
        return self.natural.is_proper

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, ...]:
        return self.natural.sample(key, shape)

    def log_prob(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return self.natural.log_prob(theta)

    def kl(self, other: MeanScale | DiagonalGaussian) -> Float[Array, ""]:
        return self.natural.kl(other.natural)
