"""Covariance functions: those of tinygp, with a length scale per input.

All kernels of tinygp can be used, and sums, products and multiples of them; their numbers are hyperparameters:

    squared_exponential(3) + 0.5 * matern32(3) * of_some(periodic(7.0), [0])

Needs the extra `cavity[gp]`.
"""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from tinygp import kernels
from tinygp.kernels.distance import L2Distance
from tinygp.kernels.stationary import Stationary

from cavity.core.fields import Number
from cavity.errors import CavityError


class SquaredExponential(kernels.Kernel):
    """scale^2 exp(-r^2 / 2), where r^2 is the sum over inputs of (difference / length scale)^2.

    Distances are computed with a matrix product, since they take most of the time of a step.
    """

    length_scales: Float[Array, " d"]
    scale: Float[Array, ""]

    def evaluate(self, X1: Float[Array, " d"], X2: Float[Array, " d"]) -> Float[Array, ""]:
        return self.scale**2 * jnp.exp(-0.5 * jnp.sum(((X1 - X2) / self.length_scales) ** 2))

    def evaluate_diag(self, X: Float[Array, " d"]) -> Float[Array, ""]:
        return self.scale**2

    def __call__(self, X1: Float[Array, "n d"], X2: Float[Array, "m d"] | None = None) -> Array:
        if X2 is None:
            return super().__call__(X1)
        a, b = X1 / self.length_scales, X2 / self.length_scales
        squares = jnp.sum(a**2, axis=1)[:, None] + jnp.sum(b**2, axis=1) - 2.0 * a @ b.T
        return self.scale**2 * jnp.exp(-0.5 * jnp.maximum(squares, 0.0))


class Scaled(kernels.Kernel):
    """A stationary kernel of unit scale, after each input was divided by its length scale.

    tinygp's own kernels use the sum of absolute differences as distance; here it is the Euclidean distance.
    """

    length_scales: Float[Array, " d"]
    shape: type[Stationary] = eqx.field(static=True)

    def evaluate(self, X1: Float[Array, " d"], X2: Float[Array, " d"]) -> Float[Array, ""]:
        return self.shape(distance=L2Distance()).evaluate(X1 / self.length_scales, X2 / self.length_scales)


class OfSome(kernels.Kernel):
    """A kernel of some of the inputs."""

    kernel: kernels.Kernel
    active: tuple[int, ...] = eqx.field(static=True)

    def evaluate(self, X1: Float[Array, " d"], X2: Float[Array, " d"]) -> Float[Array, ""]:
        places = jnp.asarray(self.active)
        return self.kernel.evaluate(X1[places], X2[places])


def squared_exponential(num_inputs: int, length_scales: Number | None = None, scale: float = 1.0) -> kernels.Kernel:
    """Smooth functions; length scales start at sqrt(num_inputs), about the distance of standardised rows."""
    return SquaredExponential(_scales(num_inputs, length_scales), jnp.asarray(scale, float))


def matern32(num_inputs: int, length_scales: Number | None = None) -> kernels.Kernel:
    """Functions with one derivative."""
    return Scaled(_scales(num_inputs, length_scales), kernels.Matern32)


def matern52(num_inputs: int, length_scales: Number | None = None) -> kernels.Kernel:
    """Functions with two derivatives."""
    return Scaled(_scales(num_inputs, length_scales), kernels.Matern52)


def periodic(period: float = 1.0, roughness: float = 1.0) -> kernels.Kernel:
    """exp(-roughness sin^2(pi r / period)), of one input: `of_some(periodic(7.0), [0])`."""
    return kernels.ExpSineSquared(scale=jnp.asarray(period, float), gamma=jnp.asarray(roughness, float))


def of_some(kernel: kernels.Kernel, active: Sequence[int]) -> kernels.Kernel:
    """The kernel as a function of these inputs alone."""
    return OfSome(kernel, tuple(active))


def _scales(num_inputs: int, length_scales: Number | None) -> Float[Array, " d"]:
    start = num_inputs**0.5 if length_scales is None else length_scales
    return jnp.broadcast_to(jnp.asarray(start, float), (num_inputs,))


def positive_leaves(part: PyTree, what: str) -> tuple[str, ...]:
    """The names of all hyperparameters of a kernel or likelihood; CavityError where one is not positive."""
    paths, _ = jax.tree_util.tree_flatten_with_path(part)
    names = []
    for path, leaf in paths:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        numbers = np.atleast_1d(np.asarray(leaf, float))
        if not (np.isfinite(numbers).all() and (numbers > 0).all()):
            raise CavityError(
                f"the {what}'s {name} is {numbers.tolist()}; it must be positive, because its log is learned"
            )
        shape = np.shape(leaf)
        names += [name if not shape else f"{name}[{', '.join(map(str, i))}]" for i in np.ndindex(*shape)]
    return tuple(names)
