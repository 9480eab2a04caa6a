"""A product of independent blocks with names: different families for different parts of theta."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from cavity.core import Distribution
from cavity.distributions.natural import require_proper


class BlockProduct(Distribution):
    """q(theta) = prod_name q_name(theta[name]); theta is a dict with the same names.

    Example:
        >>> from cavity.distributions import DiagonalGaussian, Gamma
        >>> effect = DiagonalGaussian.from_moments(jnp.zeros(2), jnp.ones(2))
        >>> rate = Gamma.from_shape_rate(jnp.asarray(2.0), jnp.asarray(4.0))
        >>> q = BlockProduct({"effect": effect, "rate": rate})
        >>> float((q * q).mean["rate"])
        0.375
    """

    blocks: dict[str, Any]

    def __mul__(self, other: BlockProduct) -> BlockProduct:
        return self._each(operator.mul, other)

    def __truediv__(self, other: BlockProduct) -> BlockProduct:
        return self._each(operator.truediv, other)

    def __pow__(self, exponent: Any) -> BlockProduct:
        return BlockProduct({name: block**exponent for name, block in self.blocks.items()})

    def _each(self, operation: Any, other: BlockProduct) -> BlockProduct:
        if self.blocks.keys() != other.blocks.keys():
            raise KeyError(f"blocks differ: {sorted(self.blocks)} and {sorted(other.blocks)}")
        return BlockProduct({name: operation(block, other.blocks[name]) for name, block in self.blocks.items()})

    @property
    def is_proper(self) -> Bool[Array, ""]:
        return jnp.all(jnp.stack([block.is_proper for block in self.blocks.values()]))

    @property
    def mean(self) -> dict[str, Array]:
        """E[theta], by block."""
        return {name: block.mean for name, block in self.blocks.items()}

    @property
    def variance(self) -> dict[str, Array]:
        """The marginal variances, by block."""
        return {name: block.variance for name, block in self.blocks.items()}

    @property
    def log_partition(self) -> Float[Array, ""]:
        """The sum of the blocks' log-partitions."""
        return sum(block.log_partition for block in self.blocks.values())  # pyright: ignore[reportReturnType]

    @property
    def entropy(self) -> Float[Array, ""]:
        """The sum of the blocks' entropies."""
        return sum(block.entropy for block in self.blocks.values())  # pyright: ignore[reportReturnType]

    def cross(self, factor: BlockProduct) -> Float[Array, ""]:
        """E_self[log factor(theta)], summed over blocks."""
        return sum(block.cross(factor.blocks[name]) for name, block in self.blocks.items())  # pyright: ignore[reportReturnType]

    def log_factor(self, theta: dict[str, Array]) -> Float[Array, ""]:
        """The log density without its normaliser."""
        return sum(block.log_factor(theta[name]) for name, block in self.blocks.items())  # pyright: ignore[reportReturnType]

    def log_prob(self, theta: dict[str, Array]) -> Float[Array, ""]:
        q = require_proper(self, "score with")
        return q.log_factor(theta) - q.log_partition

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> dict[str, Array]:
        # by name: jax sorts the keys of a dict, so compiled code sees another order than it was given
        keys = dict(zip(sorted(self.blocks), jax.random.split(key, len(self.blocks)), strict=True))
        return {name: block.sample(keys[name], shape) for name, block in self.blocks.items()}

    def kl(self, other: BlockProduct) -> Float[Array, ""]:
        return sum(block.kl(other.blocks[name]) for name, block in self.blocks.items())  # pyright: ignore[reportReturnType]
