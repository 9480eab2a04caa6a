"""Running maxima and linear recurrences from the end of a vector.

A vector of n numbers is cut into about sqrt(n) blocks of as many numbers. A loop runs through all blocks at once, and
another carries the result of each block to the one before. The programs are small; those of `jax.lax.cumsum` and
`associative_scan` grow with log n, and so does the time to compile them.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def maximum_from_the_end(values: Float[Array, " n"]) -> Float[Array, " n"]:
    """m_k = max(values_k, ..., values_n)."""
    blocks = _blocks(values, -jnp.inf)

    def step(largest: Array, value: Array) -> tuple[Array, Array]:
        largest = jnp.maximum(largest, value)
        return largest, largest

    lowest = jnp.full(blocks.shape[1], -jnp.inf, values.dtype)
    in_block = jax.lax.scan(step, lowest, blocks, reverse=True)[1]
    after = jax.lax.scan(step, lowest[0], in_block[0], reverse=True)[1]
    return _unblocked(jnp.maximum(in_block, jnp.append(after[1:], lowest[0])), len(values))


def recurrence_from_the_end(ratio: Float[Array, " n"], added: Float[Array, " n"]) -> Float[Array, " n"]:
    """s_k = ratio_k s_{k+1} + added_k, with s_{n+1} = 0; differentiable in `added`."""
    ratios, blocks = _blocks(ratio, 1.0), _blocks(added, 0.0)

    def step(carry: tuple[Array, Array], each: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        (product, total), (ratio, added) = carry, each
        new = product * ratio, ratio * total + added
        return new, new

    zeros = jnp.zeros_like(blocks[0])
    products, totals = jax.lax.scan(step, (jnp.ones_like(zeros), zeros), (ratios, blocks), reverse=True)[1]

    def carry(after: Array, each: tuple[Array, Array]) -> tuple[Array, Array]:
        product, total = each
        return product * after + total, after

    after = jax.lax.scan(carry, zeros[0], (products[0], totals[0]), reverse=True)[1]
    return _unblocked(totals + products * after, len(ratio))


def _blocks(values: Float[Array, " n"], end: float) -> Float[Array, "length blocks"]:
    """One column per block; the last one is filled up."""
    length = max(1, math.isqrt(len(values)))
    num_blocks = -(-len(values) // length)
    filled = jnp.pad(values, (0, num_blocks * length - len(values)), constant_values=end)
    return filled.reshape(num_blocks, length).T


def _unblocked(blocks: Float[Array, "length blocks"], size: int) -> Float[Array, " n"]:
    return blocks.T.reshape(-1)[:size]
