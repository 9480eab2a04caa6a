"""Gradient ascent on a pytree of parameters by any optax optimiser, with its state as plain arrays.

So a state can be written to a file without knowing the optimiser, and a sweep over step sizes compiles once.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from cavity.core.fields import as_count, as_number, require
from cavity.core.types import Leaf
from cavity.errors import CavityError

if TYPE_CHECKING:
    import optax  # not at run time: `import cavity` stays fast

MakeOptimiser = Callable[[jax.Array], "optax.GradientTransformation"]  # from a step size, such as optax.adam


class AscentState(eqx.Module):
    """Steps taken, and the leaves of the optimiser's own state."""

    count: Int[Leaf, ""]
    leaves: tuple[PyTree, ...]


class Axes(eqx.Module):
    """A linear change of variables for an optimiser, such as whitening by a Gaussian: parameters = `back`(white)."""

    @abc.abstractmethod
    def along(self, gradient: PyTree) -> PyTree:
        """The gradient in the whitened variables, from the gradient in the parameters: the transpose of `back`."""

    @abc.abstractmethod
    def back(self, update: PyTree) -> PyTree:
        """The change of the parameters that a change of the whitened variables gives; linear."""


class Ascent(eqx.Module):
    """Any optax optimiser, with a step size that decreases to zero as half a cosine over `num_steps` steps.

    Attributes:
        optimiser: makes an optax gradient transformation from a step size, such as `optax.adam`; known by its identity.
        step_size: at the first step.
        num_steps: the step at which the step size reaches zero; None keeps it constant.
    """

    optimiser: MakeOptimiser = eqx.field(static=True)
    step_size: Float[Array, ""] = eqx.field(converter=as_number)
    num_steps: Int[Array, ""] | None = eqx.field(converter=lambda n: None if n is None else as_count(n), default=None)

    def __check_init__(self) -> None:
        if not callable(self.optimiser):
            raise CavityError("the optimiser is a function of the step size, such as optax.adam, not what it returns")
        require(self.step_size, lambda size: size > 0, "the step size must be positive")
        if self.num_steps is not None:
            require(self.num_steps, lambda n: n > 0, "the number of steps must be positive")

    def init(self, parameters: PyTree) -> AscentState:
        """The state before the first step."""
        state = self.optimiser(self.step_size).init(parameters)
        return AscentState(jnp.asarray(0, jnp.int32), tuple(jax.tree.leaves(state)))

    def step(
        self,
        parameters: PyTree,
        state: AscentState,
        gradient: PyTree,
        axes: Axes | None = None,
        scale: float | Leaf = 1.0,
    ) -> tuple[PyTree, AscentState]:
        """The parameters after one step of ascent, in their own precision; in the variables of `axes` if given.

        `scale` multiplies the step size.
        """
        gradient = gradient if axes is None else axes.along(gradient)
        dtype = jnp.result_type(*jax.tree.leaves(parameters))
        size = self.step_size * scale
        if self.num_steps is not None:
            done = jnp.minimum(jnp.asarray(state.count) / self.num_steps, 1.0)
            size = size * 0.5 * (1.0 + jnp.cos(jnp.pi * done))
        optimiser = self.optimiser(size.astype(dtype))
        structure = jax.tree.structure(jax.eval_shape(optimiser.init, parameters))
        downhill = jax.tree.map(jnp.negative, gradient)
        updates, inner = optimiser.update(downhill, jax.tree.unflatten(structure, list(state.leaves)), parameters)
        updates = updates if axes is None else axes.back(updates)
        moved = jax.tree.map(lambda p, u: jnp.asarray(p + u, dtype), parameters, updates)
        return moved, AscentState(jnp.asarray(state.count) + 1, tuple(jax.tree.leaves(inner)))
