"""The damped fixed-point iteration of the local problem as printed (PVI, section 3.3), without a line search.

At a stationary point of E_q[loss] + KL(q : cavity) the factor is `d/dmu E_q[-loss]` in mean parameters (eq. 3).
The damped iteration (eq. 4) moves q towards

    target = cavity * site(E_q[gradient], E_q[hessian])
    q      = q ** (1 - rho) * target ** rho

With one step, a synchronous schedule is global VI (property 3.3). In a family smaller than the full Gaussian, the
site's own mean ignores correlations, and the iteration is slow or oscillates. There the mean takes a Newton step with
the full expected Hessian, which has the same fixed points.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PRNGKeyArray

from cavity.core import Divergence, Loss, Model, Problem, Solution, Solver
from cavity.core.fields import as_count, as_number
from cavity.distributions.gaussian import Gaussian
from cavity.solvers.expectations import Expectation, default_expectation
from cavity.solvers.requirements import require_family, require_multiple_of_kl

NEWTON_LIMIT = 1000  # coefficients up to which the d x d Hessian is computed for a small family
G = TypeVar("G", bound=Gaussian)


class Derivatives(eqx.Module):
    """E_q[loss] at a member q, and its expected gradient and Hessian in theta."""

    expected_loss: Float[Array, ""]
    gradient: Float[Array, " d"]
    hessian: Float[Array, ...]


def derivatives(
    problem: Problem[Gaussian], q: Gaussian, expectation: Expectation | None, *, newton: bool
) -> Derivatives:
    """All that the undamped update at q needs; with `newton` the full Hessian, where the dimension allows it."""
    expectation = expectation or default_expectation(problem.model)
    full_hessian = q.has_correlations or (newton and q.dimension <= NEWTON_LIMIT)
    return Derivatives(*expectation.derivatives(problem, q, full_hessian=full_hessian))


def undamped(problem: Problem[G], q: G, at: Derivatives) -> G:
    """The target: eq. (3) at q, with the mean by Newton's method where the family is too small."""
    cavity, weight = problem.cavity, problem.kl_weight(at.gradient.dtype)
    # E[loss] + weight * KL has the minimisers of E[loss] / weight + KL
    gradient, hessian = at.gradient / weight, at.hessian / weight
    target = cavity * q.site(gradient, hessian)
    if q.has_correlations or hessian.ndim == 1:
        return target
    mean = q.mean
    slope = gradient + cavity.precision * mean - cavity.precision_mean
    curvature = cavity.precision_matrix + hessian
    return target.with_mean(mean - jnp.linalg.solve(curvature, slope))


def default_tolerance(dtype: DTypeLike) -> float:
    """A tolerance in nats that this precision can reach."""
    return 1e-10 if dtype == jnp.float64 else 1e-7


def check_suitable(model: Model, loss: Loss, divergence: Divergence, expectation: Expectation | None) -> None:
    """Raise UnsuitableError unless the family is Gaussian, the divergence a multiple of KL and expectations exist."""
    require_family(model, "this solver", Gaussian)
    require_multiple_of_kl(divergence, "this solver")
    (expectation or default_expectation(model)).check(model, loss)


class FixedPointState(eqx.Module):
    """The current member, E[loss] under the start, KL of the last undamped step in nats, and the steps taken."""

    q: Gaussian
    initial_loss: Float[Array, ""]
    gap: Float[Array, ""]
    steps: Int[Array, ""]


class FixedPoint(Solver):
    """Eq. (4) with a constant rho, all rows in each step; for Gaussian families and multiples of KL.

    Attributes:
        step_size: rho.
        max_steps: the maximum number of steps.
        tolerance: or when KL(next : current) of an undamped step falls below it, in nats; None is 1e-10, or 1e-7 in
            single precision.
        newton: take the mean's step with the full Hessian in families smaller than the full Gaussian.
        expectation: how expectations are computed; None chooses one for the model.
    """

    reports_exactly: ClassVar[bool] = True

    step_size: Float[Array, ""] = eqx.field(converter=as_number, default=1.0)
    max_steps: Int[Array, ""] = eqx.field(converter=as_count, default=100)
    tolerance: Float[Array, ""] | None = eqx.field(converter=as_number, default=None)
    newton: bool = eqx.field(static=True, default=True)
    expectation: Expectation | None = None

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        check_suitable(model, loss, divergence, self.expectation)

    def init(self, problem: Problem[Gaussian]) -> FixedPointState:
        unknown = jnp.full((), jnp.nan, problem.start.precision.dtype)
        return FixedPointState(problem.start, unknown, jnp.full_like(unknown, jnp.inf), jnp.asarray(0))

    def step(self, key: PRNGKeyArray, problem: Problem[Gaussian], state: FixedPointState) -> FixedPointState:
        q, rho = state.q, self.step_size.astype(state.gap.dtype)
        at = derivatives(problem, q, self.expectation, newton=self.newton)
        moved = q ** (1.0 - rho) * undamped(problem, q, at) ** rho
        return FixedPointState(
            q=moved,
            initial_loss=jnp.where(state.steps == 0, at.expected_loss, state.initial_loss),
            # KL is quadratic near zero: dividing by rho^2 gives the gap of the undamped step
            gap=moved.kl(q) / rho**2,
            steps=state.steps + 1,
        )

    def _small(self, state: FixedPointState) -> Bool[Array, ""]:
        default = default_tolerance(state.gap.dtype)
        return state.gap < (default if self.tolerance is None else self.tolerance)

    def done(self, state: FixedPointState) -> Bool[Array, ""]:
        return self._small(state) | (state.steps >= self.max_steps)

    def result(self, problem: Problem[Gaussian], state: FixedPointState) -> Solution:
        return Solution(state.q, state.initial_loss, state.steps, self._small(state))
