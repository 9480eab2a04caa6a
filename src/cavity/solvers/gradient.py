"""Gradient descent on the natural parameters, by any optax optimiser, on the deterministic objective.

With one step of plain descent and a synchronous schedule this is global VI (PVI, property 3.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from cavity.distributions.gaussian import Gaussian
from cavity.errors import UnsuitableError
from cavity.interfaces import Divergence, Loss, Model, Problem, Solution, Solver
from cavity.solvers.expectations import default_expectation

if TYPE_CHECKING:
    import optax


class GradientState(eqx.Module):
    """The current member, the optimiser's state, and E[loss] under the start."""

    q: Any
    optimiser: PyTree
    initial_loss: Float[Array, ""]
    steps: Int[Array, ""]


class NaturalParameterDescent(Solver):
    """`num_steps` steps of an optax optimiser on eta, for Gaussian families; any divergence with an objective.

    Attributes:
        optimiser: an optax gradient transformation, such as `optax.sgd(1e-3)`.
        num_steps: how many steps; there is no other stopping rule.
    """

    optimiser: optax.GradientTransformation = eqx.field(static=True)
    num_steps: int = eqx.field(static=True, default=1)

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        if not isinstance(model.prior, Gaussian):
            raise UnsuitableError(f"this solver needs a Gaussian family; the prior is {type(model.prior).__name__}")
        default_expectation(model).check(model, loss)

    def init(self, problem: Problem) -> GradientState:
        loss = default_expectation(problem.model).value(problem, problem.start)
        return GradientState(problem.start, self.optimiser.init(problem.start), loss, jnp.asarray(0))

    def step(self, key: PRNGKeyArray, problem: Problem, state: GradientState) -> GradientState:
        def objective(q: Gaussian) -> Float[Array, ""]:
            expected = default_expectation(problem.model).value(problem, q)
            return expected + problem.divergence.objective(q, problem.cavity)

        updates, optimiser = self.optimiser.update(jax.grad(objective)(state.q), state.optimiser, state.q)
        moved = jax.tree.map(jnp.add, state.q, updates)
        return GradientState(moved, optimiser, state.initial_loss, state.steps + 1)

    def done(self, state: GradientState) -> Bool[Array, ""]:
        return state.steps >= self.num_steps

    def result(self, problem: Problem, state: GradientState) -> Solution:
        return Solution(state.q, state.initial_loss, state.steps, jnp.asarray(False))
