"""Natural gradient, or damped fixed-point, solution of the local problem (PVI, section 3.3).

At a stationary point of E_q[loss] + KL(q : cavity) the factor is `d/dmu E_q[-loss]` in mean parameters (eq. 3).
The damped iteration (eq. 4) moves q towards

    target = cavity * site(E_q[gradient], E_q[hessian])
    q      = q ** (1 - rho) * target ** rho

Here rho is 1 as long as the local free energy rises, and is halved when it does not. In a family smaller than
the full Gaussian, the site's own mean ignores correlations and the iteration creeps or oscillates; there the
mean takes a Newton step with the full expected Hessian, which has the same fixed points.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.divergences.kl import KL
from cavity.errors import UnsuitableError
from cavity.interfaces import Divergence, Loss, Model, Problem, Solution, Solver
from cavity.solvers.expectations import Expectation, default_expectation

NEWTON_LIMIT = 1000  # coefficients for which the d x d Hessian of a small family is formed
SMALLEST_STEP = 2.0**-30


class Evaluation(eqx.Module):
    """A member q with all that is known there: the objective, and the derivatives of E_q[loss]."""

    q: Any
    objective: Float[Array, ""]
    expected_loss: Float[Array, ""]
    gradient: Float[Array, " d"]
    hessian: Float[Array, ...]


class NaturalGradientState(eqx.Module):
    """Where the iteration stands.

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
    max_steps: Int[Array, ""]
    tolerance: Float[Array, ""]


class NaturalGradient(Solver):
    """Solves the local problem of a Gaussian family deterministically, with all rows in each step.

    Attributes:
        tolerance: stop when KL(next : current) of an undamped step falls below it, in nats; None is 1e-10, or
            1e-7 in single precision.
        max_steps: stop after so many trials.
        step_size: rho of the first trial; with `line_search` it adapts.
        line_search: halve rho until the local free energy rises. Without it, eq. (4) as printed.
        newton: take the mean's step with the full Hessian in families smaller than the full Gaussian.
        expectation: how expectations are computed; None chooses by the model.
    """

    tolerance: Float[Array, ""] | float | None = None
    max_steps: Int[Array, ""] | int = 100
    step_size: Float[Array, ""] | float = 1.0
    line_search: bool = eqx.field(static=True, default=True)
    newton: bool = eqx.field(static=True, default=True)
    expectation: Expectation | None = None

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        if not isinstance(model.prior, Gaussian):
            raise UnsuitableError(
                f"the natural-gradient solver needs a Gaussian family; the prior is {type(model.prior).__name__}"
            )
        if not isinstance(divergence, KL):
            raise UnsuitableError(
                f"the natural-gradient solver needs the divergence KL, not {type(divergence).__name__}; "
                "use a gradient solver"
            )
        (self.expectation or default_expectation(model)).check(model, loss)

    def _evaluate(self, problem: Problem, q: Gaussian) -> Evaluation:
        expectation = self.expectation or default_expectation(problem.model)
        full_hessian = isinstance(q, FullGaussian) or (self.newton and q.dimension <= NEWTON_LIMIT)
        loss, gradient, hessian = expectation.derivatives(problem, q, full_hessian=full_hessian)
        objective = loss + problem.divergence.objective(q, problem.cavity)
        # NaN (an improper q, an overflow) must lose every comparison
        return Evaluation(q, jnp.where(jnp.isnan(objective), jnp.inf, objective), loss, gradient, hessian)

    @property
    def fixed_steps(self) -> int | None:
        return None

    def init(self, problem: Problem) -> NaturalGradientState:
        first = self._evaluate(problem, problem.start)

        def tighten(evaluation: Evaluation) -> Evaluation:
            return self._evaluate(problem, evaluation.q**10.0)

        # a wide start may overflow (E[exp f] of counts): the same mean with less spread is as good a start
        current = jax.lax.while_loop(
            lambda e: ~jnp.isfinite(e.objective) & (jnp.max(jnp.abs(e.q.precision)) < 1e12), tighten, first
        )
        dtype = current.objective.dtype
        tolerance = (1e-10 if dtype == jnp.float64 else 1e-7) if self.tolerance is None else self.tolerance
        return NaturalGradientState(
            current=current,
            initial_loss=first.expected_loss,
            step_size=jnp.asarray(self.step_size, dtype),
            gap=jnp.asarray(jnp.inf, dtype),
            steps=jnp.asarray(0),
            max_steps=jnp.asarray(self.max_steps),
            tolerance=jnp.asarray(tolerance, dtype),
        )

    def step(self, key: PRNGKeyArray, problem: Problem, state: NaturalGradientState) -> NaturalGradientState:
        current, rho = state.current, state.step_size
        target = self._target(problem, current)
        trial = self._evaluate(problem, current.q ** (1.0 - rho) * target**rho)
        # KL is quadratic near zero: dividing by rho^2 gives the gap of the undamped step
        gap = trial.q.kl(current.q) / rho**2
        if not self.line_search:
            return eqx.tree_at(lambda s: (s.current, s.gap, s.steps), state, (trial, gap, state.steps + 1))
        # a sum over rows carries rounding noise, which near the optimum exceeds any true decrease
        slack = jnp.finfo(current.objective.dtype).eps ** 0.8 * (1.0 + jnp.abs(current.objective))
        better = trial.objective <= current.objective + slack
        kept = jax.tree.map(lambda new, old: jnp.where(better, new, old), trial, current)
        return NaturalGradientState(
            current=kept,
            initial_loss=state.initial_loss,
            step_size=jnp.where(better, jnp.minimum(2.0 * rho, 1.0), rho / 2.0),
            gap=gap,
            steps=state.steps + 1,
            max_steps=state.max_steps,
            tolerance=state.tolerance,
        )

    def _target(self, problem: Problem, current: Evaluation) -> Any:
        """The undamped update: eq. (3) at q, with the mean by Newton's method where the family is too small."""
        q, cavity = current.q, problem.cavity
        target = cavity * q.site(current.gradient, current.hessian)
        if isinstance(q, FullGaussian) or current.hessian.ndim == 1:
            return target
        mean = q.mean
        slope = current.gradient + cavity.precision * mean - cavity.precision_mean
        curvature = cavity.precision_matrix + current.hessian
        newton = mean - jnp.linalg.solve(curvature, slope)
        return target.with_mean(newton)

    def done(self, state: NaturalGradientState) -> Bool[Array, ""]:
        stuck = state.step_size < SMALLEST_STEP
        return (state.gap < state.tolerance) | (state.steps >= state.max_steps) | stuck

    def result(self, problem: Problem, state: NaturalGradientState) -> Solution:
        return Solution(
            tilted=state.current.q,
            expected_loss=state.initial_loss,
            steps=state.steps,
            converged=state.gap < state.tolerance,
        )
