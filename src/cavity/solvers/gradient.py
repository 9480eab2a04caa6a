"""Gradient descent on the local objective by any optax optimiser, with mini-batches and Monte Carlo samples.

    minimise  (N / B) * sum over a batch of B rows of E_q[loss]  +  divergence(q : cavity)

The divergence is in closed form. With plain descent in natural coordinates, no noise, all rows and one step, a
synchronous schedule is global VI (PVI, property 3.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from cavity.core import Data, Divergence, Loss, Model, PredictorDraws, Problem, RowModel, Solution, Solver
from cavity.core.fields import as_count, as_number
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.mean_scale import MeanScale
from cavity.errors import CavityError, UnsuitableError
from cavity.solvers.coordinates import Coordinates, MomentCoordinates
from cavity.solvers.estimators import Estimator, LocalDraws, ParameterDraws
from cavity.solvers.plateau import Plateau
from cavity.solvers.start import FromPosterior, Start


def mini_batch(key: PRNGKeyArray, data: Data, size: int) -> Data:
    """`size` rows drawn with replacement from the true rows, weighted so that sums over them are unbiased.

    Only the true number of rows enters, so padding does not change the draw.
    """
    places = jax.random.randint(key, (size,), 0, data.num_rows)
    # the barrier keeps XLA from gathering anew wherever a row is used
    batch, weight = jax.lax.optimization_barrier(jax.tree.map(lambda leaf: leaf[places], (data.batch, data.weight)))
    return Data(batch, weight * (data.num_rows.astype(weight.dtype) / size), jnp.asarray(size))


def check_batches(model: Model, batch_size: int | None) -> None:
    """Raise UnsuitableError where rows would be drawn from a likelihood that is not a sum over rows."""
    if batch_size is not None and not isinstance(model, RowModel):
        raise UnsuitableError(
            f"the likelihood of {type(model).__name__} is not a sum over rows (`RowModel`), so that no mini-batch "
            "estimates it; take all rows in each step with batch_size=None, or use NaturalGradient"
        )


def pull_to_cavity(problem: Problem, system: Coordinates, coordinates: PyTree) -> Float[Array, ""]:
    """The divergence from the cavity, of q in the cheapest form that the divergence takes."""
    form = system.member if problem.divergence.asks_moments_only else system.natural
    return problem.divergence.objective(form(coordinates, problem.start), problem.cavity)


def stay_inside(problem: Problem, system: Coordinates, coordinates: PyTree) -> PyTree:
    """The coordinates after a step, back where the divergence is finite. Mean field finds its own way back."""
    if isinstance(coordinates, MeanScale):
        return coordinates
    q = system.member(coordinates, problem.start)
    admitted = problem.divergence.inside(q, problem.cavity)
    return coordinates if admitted is q else system.of(admitted)


class GradientState(eqx.Module):
    """Where the descent stands.

    Attributes:
        coordinates: the current member.
        optimiser: the optimiser's state.
        plateau: what the stopping rule remembers.
        initial_loss: an estimate of E[loss] under the problem's start, on the first batch; NaN before the first step,
            and where the descent starts elsewhere.
        steps: steps taken.
    """

    coordinates: PyTree
    optimiser: PyTree
    plateau: PyTree
    initial_loss: Float[Array, ""]
    steps: Int[Array, ""]


class Gradient(Solver):
    """Stochastic gradient descent for Gaussian families; any loss, any divergence with an objective.

    Attributes:
        optimiser: a function that makes an optax gradient transformation from a step size, such as `optax.adam`. It is
            known by its identity: define your own once, and not in each turn of a sweep.
        step_size: what the optimiser is made with.
        num_steps: at most so many steps.
        batch_size: rows per step; None takes all.
        estimator: of the expected loss; None takes local reparameterisation where the model can, else draws of theta.
        coordinates: what the optimiser changes.
        plateau: a convergence test; None takes all `num_steps`.
        start: where a solve begins; a network wants `Tight(0.03, jitter=0.1)`.
    """

    optimiser: Callable[[Any], Any] = eqx.field(static=True)
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
        if not isinstance(model.prior, Gaussian):
            raise UnsuitableError(f"gradient descent needs a Gaussian family, not {type(model.prior).__name__}")
        check_batches(model, self.batch_size)
        self._estimator(model).check(model, loss)

    def _estimator(self, model: Model) -> Estimator:
        if self.estimator is not None:
            return self.estimator
        return LocalDraws() if isinstance(model, PredictorDraws) else ParameterDraws()

    def _expected_loss(self, key: PRNGKeyArray, problem: Problem, q: Any) -> Float[Array, ""]:
        batch_key, draw_key = jax.random.split(key)
        data = problem.data if self.batch_size is None else mini_batch(batch_key, problem.data, self.batch_size)
        return self._estimator(problem.model)(draw_key, replace(problem, data=data), q)

    def _optimiser(self, coordinates: PyTree) -> Any:
        # in the precision of what it changes, which a step size in double precision would promote
        return self.optimiser(self.step_size.astype(jax.tree.leaves(coordinates)[0].dtype))

    def steps_for(self, num_rows: Any) -> Any:
        return None if self.plateau is not None else int(self.num_steps)

    def init(self, problem: Problem) -> GradientState:
        start = problem.divergence.inside(self.start(problem), problem.cavity)
        coordinates = self.coordinates.of(start)
        return GradientState(
            coordinates=coordinates,
            optimiser=self._optimiser(coordinates).init(coordinates),
            plateau=None if self.plateau is None else self.plateau.init(start.mean.dtype),
            initial_loss=jnp.full((), jnp.nan, start.mean.dtype),
            steps=jnp.asarray(0),
        )

    def step(self, key: PRNGKeyArray, problem: Problem, state: GradientState) -> GradientState:
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
            plateau=None if self.plateau is None else self.plateau.update(state.plateau, value, loss),
            initial_loss=initial_loss,
            steps=state.steps + 1,
        )

    def done(self, state: GradientState) -> Bool[Array, ""]:
        spent = state.steps >= self.num_steps
        return spent if self.plateau is None else spent | self.plateau.reached(state.plateau)

    def result(self, problem: Problem, state: GradientState) -> Solution:
        reached = jnp.asarray(False) if self.plateau is None else self.plateau.reached(state.plateau)
        tilted = self.coordinates.natural(state.coordinates, problem.start)
        return Solution(
            tilted=problem.divergence.inside(tilted, problem.cavity),
            expected_loss=state.initial_loss,
            steps=state.steps,
            converged=reached,
        )
