"""Arrays on the host, in double precision: what the server stores, sums and judges."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree


def to_host(tree: PyTree) -> PyTree:
    """The same tree with numpy leaves, floating ones in float64: what the server stores and sums."""
    return jax.tree.map(_on_host, tree)


def _on_host(leaf: Any) -> Any:
    if not eqx.is_array_like(leaf):
        return leaf
    array = np.asarray(leaf)
    return array.astype(np.float64) if is_floating(array) else array


def is_proper(distribution: Any) -> bool:
    """Whether a posterior is proper, decided in float64 even where the rest of the program is in float32."""
    with jax.enable_x64(True):
        return bool(_jitted_is_proper(distribution))


@eqx.filter_jit
def _jitted_is_proper(distribution: Any) -> Any:
    return distribution.is_proper


def is_finite(tree: PyTree) -> bool:
    """Whether no floating leaf holds a NaN or an infinity."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return all(np.isfinite(leaf).all() for leaf in leaves if is_floating(leaf))


def is_floating(array: Any) -> bool:
    """Whether it holds floating numbers, of whatever width."""
    return jax.numpy.issubdtype(array.dtype, jax.numpy.floating)  # numpy does not count bfloat16
