"""Gradient descent on the local objective by any optax optimiser, with mini-batches and Monte Carlo samples.

    minimise  (N / B) * sum over a batch of B rows of E_q[loss]  +  divergence(q : cavity)

The divergence is in closed form. With plain descent in natural coordinates, no noise, all rows and one step, a
synchronous schedule is global VI (PVI, property 3.1).
"""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from cavity.core import Data, Divergence, Loss, Model, Problem, Solution, Solver
from cavity.core.fields import Count, as_count, as_number
from cavity.distributions.gaussian import Gaussian, GaussianDensity
from cavity.errors import CavityError
from cavity.solvers.coordinates import Coordinates, MomentCoordinates, is_mean_field
from cavity.solvers.estimators import Estimator, default_estimator
from cavity.solvers.optimiser import MakeOptimiser, Optimiser
from cavity.solvers.plateau import Plateau, PlateauState, has_reached, updated
from cavity.solvers.requirements import check_batches, require_family
from cavity.solvers.start import FromPosterior, Start


def mini_batch(key: PRNGKeyArray, data: Data, size: int) -> Data:
    """Draw `size` of the true rows with replacement, weighted so that sums over them are unbiased.

    The draw depends on the true number of rows only, so padding does not change it.
    """
    places = jax.random.randint(key, (size,), 0, data.num_rows)
    # the barrier prevents XLA from gathering again wherever a row is used
    batch, weight = jax.lax.optimization_barrier(jax.tree.map(lambda leaf: leaf[places], (data.batch, data.weight)))
    return Data(batch, weight * (data.num_rows.astype(weight.dtype) / size), jnp.asarray(size))


def pull_to_cavity(problem: Problem[Gaussian], system: Coordinates, coordinates: PyTree) -> Float[Array, ""]:
    """The divergence from the cavity, with q in the cheapest form that the divergence accepts."""
    form = system.member if problem.divergence.asks_moments_only else system.natural
    return problem.divergence.objective(form(coordinates, problem.start), problem.cavity)


def stay_inside(problem: Problem[Gaussian], system: Coordinates, coordinates: PyTree) -> PyTree:
    """The coordinates after a step, moved back to where the divergence is finite.

    Mean field needs no such step: its derivatives lead back.
    """
    if is_mean_field(coordinates):
        return coordinates
    q = system.member(coordinates, problem.start)
    admitted = problem.divergence.inside(q, problem.cavity)
    return coordinates if admitted is q else system.of(admitted)


class GradientState(eqx.Module):
    """The state of the descent.

    Attributes:
        coordinates: the current member.
        optimiser: the optimiser's state.
        plateau: the state of the convergence test.
        initial_loss: an estimate of E[loss] under the problem's start, on the first batch; NaN before the first step,
            and where the descent does not start at the problem's start.
        steps: steps taken.
    """

    coordinates: PyTree
    optimiser: PyTree
    plateau: PlateauState | None
    initial_loss: Float[Array, ""]
    steps: Int[Array, ""]


class Gradient(Solver):
    """Stochastic gradient descent for Gaussian families; any loss, any divergence with an objective.

    Attributes:
        optimiser: a function that makes an optax gradient transformation from a step size, such as `optax.adam`. Define
            your own once, outside a sweep: a new function is compiled again.
        step_size: the step size of the optimiser.
        num_steps: the maximum number of steps.
        batch_size: rows per step; None takes all.
        estimator: of the expected loss; None is local reparameterisation where the model supports it, else draws of
            theta.
        coordinates: the parameters that the optimiser changes.
        plateau: a convergence test; None takes all `num_steps`.
        start: where a solve begins; for a network use `Tight(0.03, jitter=0.1)`.
    """

    optimiser: MakeOptimiser = eqx.field(static=True)
    step_size: Float[Array, ""] = eqx.field(converter=as_number)
    num_steps: Int[Array, ""] = eqx.field(converter=as_count, default=1000)
    batch_size: int | None = eqx.field(static=True, default=128)
    estimator: Estimator | None = None
    coordinates: Coordinates = MomentCoordinates()
    plateau: Plateau | None = None
    start: Start = FromPosterior()

    def __check_init__(self) -> None:
        if not callable(self.optimiser):
            raise CavityError("the optimiser is a function of the step size, such as optax.adam, not what it returns")
        if self.batch_size is not None and self.batch_size < 1:
            raise CavityError(f"batch_size must be at least 1, not {self.batch_size}; None takes all rows")

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        require_family(model, "gradient descent", Gaussian)
        check_batches(model, self.batch_size)
        self._estimator(model).check(model, loss)

    def _estimator(self, model: Model) -> Estimator:
        return default_estimator(model) if self.estimator is None else self.estimator

    def _expected_loss(self, key: PRNGKeyArray, problem: Problem[Gaussian], q: GaussianDensity) -> Float[Array, ""]:
        batch_key, draw_key = jax.random.split(key)
        data = problem.data if self.batch_size is None else mini_batch(batch_key, problem.data, self.batch_size)
        return self._estimator(problem.model)(draw_key, replace(problem, data=data), q)

    def _optimiser(self, coordinates: PyTree) -> Optimiser:
        # in the precision of the coordinates, which a step size in double precision would promote
        return self.optimiser(self.step_size.astype(jax.tree.leaves(coordinates)[0].dtype))

    def steps_for(self, num_rows: Count) -> int | None:
        return None if self.plateau is not None else int(self.num_steps)

    def init(self, problem: Problem[Gaussian]) -> GradientState:
        start = problem.divergence.inside(self.start(problem), problem.cavity)
        coordinates = self.coordinates.of(start)
        return GradientState(
            coordinates=coordinates,
            optimiser=self._optimiser(coordinates).init(coordinates),
            plateau=None if self.plateau is None else self.plateau.init(start.mean.dtype),
            initial_loss=jnp.full((), jnp.nan, start.mean.dtype),
            steps=jnp.asarray(0),
        )

    def step(self, key: PRNGKeyArray, problem: Problem[Gaussian], state: GradientState) -> GradientState:
        def objective(coordinates: PyTree) -> tuple[Float[Array, ""], Float[Array, ""]]:
            loss = self._expected_loss(key, problem, self.coordinates.member(coordinates, problem.start))
            return loss + pull_to_cavity(problem, self.coordinates, coordinates), loss

        (value, loss), gradient = jax.value_and_grad(objective, has_aux=True)(state.coordinates)
        updates, optimiser = self._optimiser(gradient).update(gradient, state.optimiser, state.coordinates)
        is_start = (state.steps == 0) & self.start.is_posterior
        initial_loss = jnp.asarray(jnp.where(is_start, loss, state.initial_loss))
        moved = jax.tree.map(jnp.add, state.coordinates, updates)
        return GradientState(
            coordinates=stay_inside(problem, self.coordinates, moved),
            optimiser=optimiser,
            plateau=updated(self.plateau, state.plateau, value, loss),
            initial_loss=initial_loss,
            steps=state.steps + 1,
        )

    def done(self, state: GradientState) -> Bool[Array, ""]:
        return (state.steps >= self.num_steps) | has_reached(self.plateau, state.plateau)

    def result(self, problem: Problem[Gaussian], state: GradientState) -> Solution:
        tilted = self.coordinates.natural(state.coordinates, problem.start)
        return Solution(
            tilted=problem.divergence.inside(tilted, problem.cavity),
            expected_loss=state.initial_loss,
            steps=state.steps,
            converged=has_reached(self.plateau, state.plateau),
        )
