"""L-BFGS on the deterministic objective: for smooth problems whose Hessian is too large to compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from cavity.core import Divergence, Loss, Model, Problem, Solution, Solver
from cavity.core.fields import Number, as_count, as_number
from cavity.distributions.gaussian import Gaussian
from cavity.solvers.coordinates import Coordinates, MomentCoordinates
from cavity.solvers.expectations import default_expectation
from cavity.solvers.gradient import pull_to_cavity
from cavity.solvers.optimiser import Optimiser
from cavity.solvers.requirements import require_family


def lbfgs_step(
    lbfgs: Optimiser, objective: Callable[[PyTree], Float[Array, ""]], coordinates: PyTree, optimiser: PyTree
) -> tuple[PyTree, PyTree, Float[Array, ""]]:
    """One step: the new coordinates, the optimiser's state, and the largest entry of the gradient before the step."""
    import optax

    value, gradient = optax.value_and_grad_from_state(objective)(coordinates, state=optimiser)
    updates, optimiser = lbfgs.update(gradient, optimiser, coordinates, value=value, grad=gradient, value_fn=objective)
    slope = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(gradient)]))
    return jax.tree.map(jnp.add, coordinates, updates), optimiser, slope


def is_flat(slope: Float[Array, ""], tolerance: Number | None) -> Bool[Array, ""]:
    """Whether no entry of the gradient exceeds the tolerance; None is 1e-6, or 1e-2 in single precision."""
    default = 1e-6 if slope.dtype == jnp.float64 else 1e-2
    return slope < (default if tolerance is None else tolerance)


class LBFGSState(eqx.Module):
    """The state of the descent; `slope` is the largest entry of the gradient."""

    coordinates: PyTree
    optimiser: PyTree
    initial_loss: Float[Array, ""]
    slope: Float[Array, ""]
    steps: Int[Array, ""]


class LBFGS(Solver):
    """Limited-memory BFGS with a zoom line search, all rows in each step; any divergence with an objective.

    Attributes:
        tolerance: stop when no entry of the gradient exceeds this, in nats per unit of a coordinate; None is 1e-6,
            or 1e-2 in single precision.
        max_steps: the maximum number of steps.
        memory: the number of past gradients that are kept.
        coordinates: the parameters that are optimised.
    """

    reports_exactly: ClassVar[bool] = True

    tolerance: Float[Array, ""] | None = eqx.field(converter=as_number, default=None)
    max_steps: Int[Array, ""] = eqx.field(converter=as_count, default=200)
    memory: int = eqx.field(static=True, default=20)
    coordinates: Coordinates = MomentCoordinates()

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        require_family(model, "L-BFGS", Gaussian)
        default_expectation(model).check(model, loss)

    def _optimiser(self) -> Optimiser:
        import optax

        return optax.lbfgs(memory_size=self.memory)

    def init(self, problem: Problem[Gaussian]) -> LBFGSState:
        coordinates = self.coordinates.of(problem.divergence.inside(problem.start, problem.cavity))
        loss = default_expectation(problem.model).value(problem, problem.start)
        slope = jnp.full((), jnp.inf, loss.dtype)
        return LBFGSState(coordinates, self._optimiser().init(coordinates), loss, slope, jnp.asarray(0))

    def step(self, key: PRNGKeyArray, problem: Problem[Gaussian], state: LBFGSState) -> LBFGSState:
        def objective(coordinates: PyTree) -> Float[Array, ""]:
            q = self.coordinates.member(coordinates, problem.start)
            expected = default_expectation(problem.model).value(problem, q)
            value = expected + pull_to_cavity(problem, self.coordinates, coordinates)
            return jnp.where(jnp.isnan(value), jnp.inf, value)  # so that an overflow loses every comparison

        moved, optimiser, slope = lbfgs_step(self._optimiser(), objective, state.coordinates, state.optimiser)
        return LBFGSState(moved, optimiser, state.initial_loss, slope, state.steps + 1)

    def done(self, state: LBFGSState) -> Bool[Array, ""]:
        return is_flat(state.slope, self.tolerance) | (state.steps >= self.max_steps)

    def result(self, problem: Problem[Gaussian], state: LBFGSState) -> Solution:
        tilted = self.coordinates.natural(state.coordinates, problem.start)
        return Solution(tilted, state.initial_loss, state.steps, is_flat(state.slope, self.tolerance))
