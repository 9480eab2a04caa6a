"""Natural gradient with a line search: the fixed-point iteration of PVI's section 3.3, made safe.

    target = cavity * site(E_q[gradient], E_q[hessian])
    q      = q ** (1 - rho) * target ** rho

Here rho is 1 as long as the local free energy increases, and is halved when it does not.
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from cavity.core import Divergence, Loss, Model, Problem, Solution, Solver
from cavity.core.fields import as_count, as_number
from cavity.distributions.gaussian import Gaussian
from cavity.solvers.expectations import Expectation
from cavity.solvers.fixed_point import Derivatives, check_suitable, default_tolerance, derivatives, undamped

SMALLEST_STEP = 2.0**-30
NEAR = 1e-2  # KL of an undamped step, in nats
MAX_EXCESS = 10.0  # nats per coefficient that the variance of a start may add to its loss; below 1/2 at an optimum


class Evaluation(eqx.Module):
    """A member q with the objective and the derivatives of E_q[loss] at it."""

    q: Gaussian
    objective: Float[Array, ""]
    at: Derivatives


class NaturalGradientState(eqx.Module):
    """The state of the iteration.

    Attributes:
        current: the best q so far.
        initial_loss: E[loss] under the problem's start.
        step_size: rho of the next trial.
        gap: KL between q and the undamped update, the measure of convergence, in nats.
        steps: trials so far.
    """

    current: Evaluation
    initial_loss: Float[Array, ""]
    step_size: Float[Array, ""]
    gap: Float[Array, ""]
    steps: Int[Array, ""]


class NaturalGradient(Solver):
    """Solves the local problem of a Gaussian family deterministically, with all rows in each step.

    Attributes:
        tolerance: stop when KL(next : current) of an undamped step falls below it, in nats; None is 1e-10, or
            1e-7 in single precision.
        max_steps: the maximum number of trials.
        newton: take the mean's step with the full Hessian in families smaller than the full Gaussian.
        expectation: how expectations are computed; None chooses one for the model.
    """

    reports_exactly: ClassVar[bool] = True

    tolerance: Float[Array, ""] | None = eqx.field(converter=as_number, default=None)
    max_steps: Int[Array, ""] = eqx.field(converter=as_count, default=100)
    newton: bool = eqx.field(static=True, default=True)
    expectation: Expectation | None = None

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        check_suitable(model, loss, divergence, self.expectation)

    def _evaluate(self, problem: Problem[Gaussian], q: Gaussian) -> Evaluation:
        at = derivatives(problem, q, self.expectation, newton=self.newton)
        objective = at.expected_loss + problem.divergence.objective(q, problem.cavity)
        # so that NaN (an improper q, an overflow) loses every comparison
        return Evaluation(q, jnp.where(jnp.isnan(objective), jnp.inf, objective), at)

    def init(self, problem: Problem[Gaussian]) -> NaturalGradientState:
        first = self._evaluate(problem, problem.start)
        at_mean = problem.loss.total(problem.model, problem.start.mean, problem.data)
        limit = MAX_EXCESS * problem.start.dimension

        def too_wide(evaluation: Evaluation) -> Bool[Array, ""]:
            excess = evaluation.at.expected_loss - at_mean
            return ~(excess <= limit) & (jnp.max(jnp.abs(evaluation.q.precision)) < 1e12)

        # a wide start may have a huge loss (E[exp f] of counts): the same mean with less variance is a better start
        current = jax.lax.while_loop(too_wide, lambda wide: self._evaluate(problem, wide.q**10.0), first)
        dtype = current.objective.dtype
        return NaturalGradientState(
            current=current,
            initial_loss=first.at.expected_loss,
            step_size=jnp.ones((), dtype),
            gap=jnp.asarray(jnp.inf, dtype),
            steps=jnp.asarray(0),
        )

    def step(self, key: PRNGKeyArray, problem: Problem[Gaussian], state: NaturalGradientState) -> NaturalGradientState:
        current, rho = state.current, state.step_size
        target = undamped(problem, current.q, current.at)
        trial = self._evaluate(problem, current.q ** (1.0 - rho) * target**rho)
        # the rounding error of a sum over rows exceeds any true decrease near the optimum
        slack = jnp.finfo(current.objective.dtype).eps ** 0.8 * (1.0 + jnp.abs(current.objective))
        better = trial.objective <= current.objective + slack
        return NaturalGradientState(
            current=jax.tree.map(lambda new, old: jnp.where(better, new, old), trial, current),
            initial_loss=state.initial_loss,
            step_size=jnp.where(better, jnp.minimum(2.0 * rho, 1.0), rho / 2.0),
            # KL is quadratic near zero: dividing by rho^2 gives the gap of the undamped step
            gap=trial.q.kl(current.q) / rho**2,
            steps=state.steps + 1,
        )

    def _small(self, state: NaturalGradientState) -> Bool[Array, ""]:
        default = default_tolerance(state.gap.dtype)
        return state.gap < (default if self.tolerance is None else self.tolerance)

    def done(self, state: NaturalGradientState) -> Bool[Array, ""]:
        stuck = state.step_size < SMALLEST_STEP
        return self._small(state) | (state.steps >= self.max_steps) | stuck

    def result(self, problem: Problem[Gaussian], state: NaturalGradientState) -> Solution:
        return Solution(state.current.q, state.initial_loss, state.steps, self._small(state))


def near_optimum(problem: Problem[Gaussian]) -> NaturalGradientState:
    """A state within about `NEAR` nats of the optimum, for methods that diverge from a distant start."""
    solver, key = NaturalGradient(tolerance=NEAR), jax.random.key(0)  # the method uses no randomness
    return jax.lax.while_loop(
        lambda state: ~solver.done(state), lambda state: solver.step(key, problem, state), solver.init(problem)
    )
