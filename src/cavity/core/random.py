"""Random numbers for code in which their cost matters."""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, UInt32


def standard_normal(key: PRNGKeyArray, num_rows: int, num_columns: int, dtype: DTypeLike) -> Float[Array, "n k"]:
    """Independent N(0, 1) numbers. A row does not depend on the number of rows, so padding does not change a draw.

    They are concatenated from two halves, which makes XLA store them. Otherwise XLA would compute them again wherever
    they are used, forwards and backwards: a third of the time of a network's step on a CPU.
    """
    half = -(-num_columns // 2)
    draws = jax.random.normal(key, (num_rows, 2, half), dtype)
    return jnp.concatenate([draws[:, 0], draws[:, 1]], axis=1)[:, :num_columns]


def normal_of(key: PRNGKeyArray, numbers: UInt32[Array, "u 2"], size: int, dtype: DTypeLike) -> Float[Array, "u size"]:
    """`size` standard normal numbers for each 64-bit number, independent of the other numbers in the array.

    The numbers are the counters of one Threefry hash; folding them into keys would need three. Two halves are
    concatenated for the reason given in `standard_normal`.
    """
    half = -(-len(numbers) // 2)
    counters = numbers[:, 1, None] + jnp.arange(size, dtype=jnp.uint32)
    first = jnp.broadcast_to(numbers[:, :1], counters.shape)
    hashed = threefry_2x32(jax.random.key_data(key), jnp.stack([first, counters]))
    return jnp.concatenate([_normal(hashed[:, :half], dtype), _normal(hashed[:, half:], dtype)])


def _normal(bits: UInt32[Array, "2 u size"], dtype: DTypeLike) -> Float[Array, "u size"]:
    """Pairs of words as normal numbers, by the inverse of the distribution function."""
    if dtype == jnp.float64:
        mantissa = (bits[0].astype(jnp.uint64) << 32 | bits[1].astype(jnp.uint64)) >> 11
        uniform = (mantissa.astype(dtype) + 0.5) * 2.0**-53
    else:
        uniform = ((bits[0] >> 9).astype(dtype) + jnp.asarray(0.5, dtype)) * jnp.asarray(2.0**-23, dtype)
    return jnp.sqrt(2.0).astype(dtype) * jax.lax.erf_inv(2 * uniform - 1)


def name_number(name: str) -> int:
    """A number that depends on a client's name only, for its randomness."""
    return zlib.crc32(name.encode())
