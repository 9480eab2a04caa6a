"""Arrays on the host, in double precision, as the server stores, sums and checks them."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, PyTree

from cavity.core.types import Leaf


def to_host(tree: PyTree) -> PyTree:
    """The same tree with numpy leaves, floating-point ones in float64, as the server stores and sums them."""
    return jax.tree.map(_on_host, tree)


def _on_host(leaf: PyTree) -> PyTree:
    if not eqx.is_array_like(leaf):
        return leaf
    array = np.asarray(leaf)
    return array.astype(np.float64) if is_floating(array) else array


def is_proper(distribution: PyTree) -> bool:
    """Whether a posterior is proper, decided in float64 even where the rest of the program uses float32."""
    with jax.enable_x64(True):
        return bool(_jitted_is_proper(distribution))


@eqx.filter_jit
def _jitted_is_proper(distribution: PyTree) -> Bool[Array, ""]:
    return distribution.is_proper


def is_finite(tree: PyTree) -> bool:
    """Whether no floating-point leaf holds a NaN or an infinity."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return all(np.isfinite(leaf).all() for leaf in leaves if is_floating(leaf))


def is_floating(array: Leaf | np.generic) -> bool:
    """Whether an array holds floating-point numbers, of any width."""
    return jax.numpy.issubdtype(array.dtype, jax.numpy.floating)  # numpy does not count bfloat16
