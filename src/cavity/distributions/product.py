"""A product of independent named blocks: different families for different parts of theta."""

from __future__ import annotations

import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from cavity.core import Distribution
from cavity.core.fields import Number
from cavity.distributions.natural import ExponentialFamily, require_proper, total


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

    blocks: dict[str, ExponentialFamily]

    def __mul__(self, other: BlockProduct) -> BlockProduct:
        return self._each(operator.mul, other)

    def __truediv__(self, other: BlockProduct) -> BlockProduct:
        return self._each(operator.truediv, other)

    def __pow__(self, exponent: Number) -> BlockProduct:
        return BlockProduct({name: block**exponent for name, block in self.blocks.items()})

    def _each(
        self, operation: Callable[[ExponentialFamily, ExponentialFamily], ExponentialFamily], other: BlockProduct
    ) -> BlockProduct:
        if self.blocks.keys() != other.blocks.keys():
            raise KeyError(f"blocks differ: {sorted(self.blocks)} and {sorted(other.blocks)}")
        return BlockProduct({name: operation(block, other.blocks[name]) for name, block in self.blocks.items()})

    @property
    def is_proper(self) -> Bool[Array, ""]:
        return jnp.all(jnp.stack([block.is_proper for block in self.blocks.values()]))

    @property
    def mean(self) -> dict[str, Array]:
        return {name: block.mean for name, block in self.blocks.items()}

    @property
    def variance(self) -> dict[str, Array]:
        return {name: block.variance for name, block in self.blocks.items()}

    @property
    def log_partition(self) -> Float[Array, ""]:
        """The sum of the blocks' log-partitions."""
        return total(block.log_partition for block in self.blocks.values())

    @property
    def entropy(self) -> Float[Array, ""]:
        return total(block.entropy for block in self.blocks.values())

    def cross(self, factor: BlockProduct) -> Float[Array, ""]:
        return total(block.cross(factor.blocks[name]) for name, block in self.blocks.items())

    def log_factor(self, theta: dict[str, Array]) -> Float[Array, ""]:
        """The log density without its normaliser."""
        return total(block.log_factor(theta[name]) for name, block in self.blocks.items())

    def log_prob(self, theta: dict[str, Array]) -> Float[Array, ""]:
        q = require_proper(self, "score with")
        return q.log_factor(theta) - q.log_partition

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> dict[str, Array]:
        # by sorted name: jax sorts the keys of a dict, so the order differs in compiled code
        keys = dict(zip(sorted(self.blocks), jax.random.split(key, len(self.blocks)), strict=True))
        return {name: block.sample(keys[name], shape) for name, block in self.blocks.items()}

    def kl(self, other: BlockProduct) -> Float[Array, ""]:
        return total(block.kl(other.blocks[name]) for name, block in self.blocks.items())
