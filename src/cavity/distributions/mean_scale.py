"""The mean-field Gaussian in the numbers that an optimiser changes: a mean and the logs of standard deviations.

Every value of them is proper. Descent evaluates its objective here, because the way from a scale to a precision and
back to a variance costs as much as all other element-wise work of a network's step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from cavity.core import Distribution
from cavity.distributions.diagonal import DiagonalGaussian, mean_field_map
from cavity.distributions.natural import inner


class MeanScale(Distribution):
    """N(mean, diag(exp(log_scale))^2). What has no short form here is asked of `natural`, the same density.

    Attributes:
        mean: mu.
        log_scale: the log of each standard deviation.
    """

    mean: Float[Array, " d"]
    log_scale: Float[Array, " d"]

    @classmethod
    def of(cls, q: DiagonalGaussian) -> MeanScale:
        """The same density in these numbers."""
        return cls(q.mean, -0.5 * jnp.log(jnp.asarray(q.precision)))

    @property
    def natural(self) -> DiagonalGaussian:
        """The same density in natural parameters."""
        precision = jnp.exp(-2.0 * self.log_scale)
        return DiagonalGaussian(precision * self.mean, precision)

    @property
    def dimension(self) -> int:
        """d, the length of theta."""
        return self.mean.shape[-1]

    @property
    def variance(self) -> Float[Array, " d"]:
        """The marginal variances."""
        return jnp.exp(2.0 * self.log_scale)

    @property
    def covariance(self) -> Float[Array, "d d"]:
        """As a full matrix."""
        return jnp.diag(self.variance)

    @property
    def entropy(self) -> Float[Array, ""]:
        """-E_q[log q], in nats."""
        return jnp.sum(self.log_scale + 0.5 * (1.0 + jnp.log(2 * jnp.pi)))

    def cross(self, factor: DiagonalGaussian) -> Float[Array, ""]:
        """E_self[log factor(theta)], the factor not normalised and perhaps improper."""
        return inner(factor, (self.mean, -0.5 * (self.variance + self.mean**2)))

    def map_moments(self, designs: Sequence[Float[Array, "n _"]]):
        """Mean and covariance of f_k = X_k theta_k per row."""
        return mean_field_map(self.mean, self.variance, designs)

    def reparameterise(self, noise: Float[Array, "*shape d"]) -> Float[Array, "*shape d"]:
        """Standard normal noise as draws of q."""
        return self.mean + jnp.exp(self.log_scale) * noise

    def __mul__(self, other: Any) -> DiagonalGaussian:
        return self.natural * _natural(other)

    def __truediv__(self, other: Any) -> DiagonalGaussian:
        return self.natural / _natural(other)

    def __pow__(self, exponent: Any) -> DiagonalGaussian:
        return self.natural**exponent

    @property
    def is_proper(self) -> Bool[Array, ""]:
        return self.natural.is_proper

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, ...]:
        return self.natural.sample(key, shape)

    def log_prob(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return self.natural.log_prob(theta)

    def kl(self, other: Any) -> Float[Array, ""]:
        return self.natural.kl(_natural(other))


def _natural(q: Any) -> Any:
    return q.natural if isinstance(q, MeanScale) else q
