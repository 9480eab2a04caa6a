"""Gaussians over pytrees of parameters, by way of the flat vector that the algebra uses."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.full import FullGaussian

Unravel = Callable[[Float[Array, " d"]], PyTree]


def diagonal_from_pytrees(mean: PyTree, variance: PyTree) -> tuple[DiagonalGaussian, Unravel]:
    """A mean-field Gaussian from pytrees of means and variances of the same structure, and the map back to a pytree.

    Example:
        >>> q, unravel = diagonal_from_pytrees({"w": np.ones(2), "b": 0.0}, {"w": np.ones(2), "b": 4.0})
        >>> unravel(q.mean)["w"].tolist()
        [1.0, 1.0]
    """
    flat, unravel = ravel_pytree(mean)
    return DiagonalGaussian.from_moments(flat, ravel_pytree(variance)[0]), unravel


def full_from_pytree(mean: PyTree, covariance: Float[Array, "d d"]) -> tuple[FullGaussian, Unravel]:
    """A Gaussian from a pytree of means and the covariance of their flat vector, and the map back to a pytree."""
    flat, unravel = ravel_pytree(mean)
    return FullGaussian.from_moments(flat, covariance), unravel


def entry_names(tree: PyTree) -> tuple[str, ...]:
    """One name per entry of the flat vector: the path of the leaf, and the index within it."""
    names: list[str] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        label = jax.tree_util.keystr(path, simple=True, separator=".") or "theta"
        shape = np.shape(leaf)
        if shape == ():
            names.append(label)
        else:
            names.extend(f"{label}[{','.join(map(str, index))}]" for index in np.ndindex(*shape))
    return tuple(names)
