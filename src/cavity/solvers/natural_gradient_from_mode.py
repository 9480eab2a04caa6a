"""Natural gradient from the tilted mode, for likelihoods that are not sums over rows (mixed models).

    target = cavity * site(E_q[gradient], E_q[hessian])
    q      = q ** (1 - rho) * target ** rho

as in `natural_gradient`, with expectations over a fixed set of points (`point_set`). Every trial costs one evaluation
of the loss per point. The first trial is the posterior, whose expected loss the client reports. Where that is far from
the optimum (under a broad prior its points lie where the likelihood is flat, or overflows), the second trial is a
Gaussian at the tilted mode,

    mode = argmax of log cavity - loss,     precision = hessian of the loss there + precision of the cavity,

found by Newton's method with damping. Its Hessians are differences of gradients: they decide where the search starts,
not where it ends. Then steps of the natural gradient follow, with Anderson acceleration; a step after which the local
free energy of the same points is not better is replaced by a plain one, which is shortened until it is. The cavity may
be improper, and the answer may have less precision than the cavity.

A solve that starts far from its answer need not be exact, since the posterior will change as much again: it ends when
a step is a small share of the way from the posterior.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from cavity.core import Divergence, Loss, Model, Problem, Solution, Solver
from cavity.core.fields import as_count, as_number
from cavity.distributions import FullGaussian
from cavity.solvers.acceleration import Memory
from cavity.solvers.expectations import Expectation
from cavity.solvers.fixed_point import Derivatives, undamped
from cavity.solvers.laplace import newton_step, positive
from cavity.solvers.point_set import PointSet, value_and_slopes
from cavity.solvers.requirements import require_family, require_multiple_of_kl

T = TypeVar("T", bound=eqx.Module)
SMALLEST_STEP = 2.0**-30
SMALLEST_INEXACT = 2.0**-6  # of a loss with a resolution: shorter steps fail where its derivative is not exact enough
NEAR = 0.5  # nats: KL of an undamped step from the posterior, below which no mode is searched
SHARE = 1e-5  # of KL(answer : posterior) is small enough a step
MODE_STEPS = 40
MODE_GAIN = 1e-3  # nats that a step towards the mode must gain
LARGEST_DAMPING = 1e12


class Trial(eqx.Module):
    """A member q with the local objective at it and the derivatives of its expected loss."""

    q: FullGaussian
    objective: Float[Array, ""]
    at: Derivatives


class FromModeState(eqx.Module):
    """The state of the iteration.

    Attributes:
        current: the best trial so far.
        initial_loss: E[loss] under the problem's start.
        step_size: rho of the next plain step.
        accelerated: whether the next step is an accelerated one.
        memory: for acceleration.
        gap: KL between q and the undamped update, the measure of convergence, in nats.
        way: KL between q and the problem's start, in nats.
        resolution: nats up to which the loss and its derivatives belong together.
        steps: trials so far.
    """

    current: Trial
    initial_loss: Float[Array, ""]
    step_size: Float[Array, ""]
    accelerated: Bool[Array, ""]
    memory: Memory
    gap: Float[Array, ""]
    way: Float[Array, ""]
    resolution: Float[Array, ""]
    steps: Int[Array, ""]


class NaturalGradientFromMode(Solver):
    """Solves the local problem of a full Gaussian deterministically, from the tilted mode.

    Attributes:
        tolerance: stop when KL(next : current) of an undamped step falls below it, in nats; None is 1e-9, or
            1e-6 in single precision.
        max_steps: the maximum number of trials.
        expectation: how expectations are computed; a set of points in theta by default.
    """

    reports_exactly: ClassVar[bool] = True

    tolerance: Float[Array, ""] | None = eqx.field(converter=as_number, default=None)
    max_steps: Int[Array, ""] = eqx.field(converter=as_count, default=100)
    expectation: Expectation = PointSet()

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        require_family(model, "the natural gradient from the tilted mode", FullGaussian)
        require_multiple_of_kl(divergence, "the natural gradient from the tilted mode")
        self.expectation.check(model, loss)

    def init(self, problem: Problem) -> FromModeState:
        q = problem.start  # evaluated by the first step
        infinite = jnp.full((), jnp.inf, q.precision.dtype)
        at = Derivatives(infinite, jnp.zeros_like(q.precision_mean), jnp.zeros_like(q.precision))
        return FromModeState(
            current=Trial(q, infinite, at),
            initial_loss=infinite,
            step_size=jnp.ones_like(infinite),
            accelerated=jnp.asarray(False),
            memory=Memory.empty(q),
            gap=infinite,
            way=jnp.zeros_like(infinite),
            resolution=jnp.full_like(infinite, problem.model.resolution),
            steps=jnp.asarray(0),
        )

    def step(self, key: PRNGKeyArray, problem: Problem, state: FromModeState) -> FromModeState:
        current, rho, is_first = state.current, state.step_size, state.steps == 0
        target = undamped(problem, current.q, current.at)
        residual = target / current.q
        usable = jnp.isfinite(current.objective)
        near = usable & target.is_proper & (target.kl(current.q) < NEAR)
        at_mode = ~is_first & (((state.steps == 1) & ~near) | ~usable)
        is_natural = ~is_first & ~at_mode
        around_mode = _mode(problem, current.q.mean, at_mode)
        # a Gaussian at the mode with an infinite loss is too wide: less so each time
        tight = around_mode ** jnp.where(state.steps == 1, 1.0, 10.0 ** (state.steps - 1).astype(rho.dtype))
        plain = current.q * residual**rho
        natural = _select(state.accelerated, state.memory.next(current.q, residual), plain)
        q = _select(is_first, current.q, _select(at_mode, tight, natural))
        trial = self._evaluate(problem, q)
        # the rounding error of a sum over rows exceeds any true decrease near the optimum
        slack = jnp.finfo(rho.dtype).eps ** 0.8 * (1.0 + jnp.abs(current.objective)) + state.resolution
        better = is_first | (trial.objective <= current.objective + jnp.where(usable, slack, 0.0))
        shorter = is_natural & ~better & ~state.accelerated
        longer = is_natural & better
        # KL is quadratic near zero: dividing by rho^2 gives the gap of the undamped step
        of_step = trial.q.kl(current.q) / jnp.where(state.accelerated, 1.0, rho**2)
        is_open = is_natural & (better | ~state.accelerated)
        return FromModeState(
            current=_select(better, trial, current),
            initial_loss=jnp.where(is_first, trial.at.expected_loss, state.initial_loss),
            step_size=jnp.where(shorter, rho / 2.0, jnp.where(longer, jnp.minimum(2.0 * rho, 1.0), rho)),
            accelerated=is_natural & better,
            memory=state.memory.added(current.q, residual, is_natural & (state.accelerated | (rho == 1.0))),
            gap=jnp.where(is_open, of_step, jnp.inf),
            way=jnp.where(better, trial.q.kl(problem.start), state.way),
            resolution=state.resolution,
            steps=state.steps + 1,
        )

    def _evaluate(self, problem: Problem, q: FullGaussian) -> Trial:
        at = Derivatives(*self.expectation.derivatives(problem, q, full_hessian=True))
        objective = at.expected_loss + problem.divergence.objective(q, problem.cavity)
        finite = jnp.isfinite(objective) & jnp.all(jnp.isfinite(at.gradient)) & jnp.all(jnp.isfinite(at.hessian))
        return Trial(q, jnp.where(finite, objective, jnp.inf), at)

    def _small(self, state: FromModeState) -> Bool[Array, ""]:
        default = 1e-9 if state.gap.dtype == jnp.float64 else 1e-6
        tolerance = default if self.tolerance is None else self.tolerance
        return state.gap < jnp.maximum(jnp.maximum(tolerance, state.resolution), SHARE * state.way)

    def done(self, state: FromModeState) -> Bool[Array, ""]:
        stuck = state.step_size < jnp.where(state.resolution > 0, SMALLEST_INEXACT, SMALLEST_STEP)
        return self._small(state) | (state.steps >= self.max_steps) | stuck

    def result(self, problem: Problem, state: FromModeState) -> Solution:
        return Solution(state.current.q, state.initial_loss, state.steps, self._small(state))


class _Mode(NamedTuple):
    theta: Float[Array, " d"]
    value: Float[Array, ""]
    slope: Float[Array, " d"]
    precision: Float[Array, "d d"]
    damping: Float[Array, ""]
    is_open: Bool[Array, ""]
    steps: Int[Array, ""]


def _mode(problem: Problem, start: Float[Array, " d"], wanted: Bool[Array, ""]) -> FullGaussian:
    """A Gaussian at the tilted mode, by Newton's method; no step is taken where it is not wanted."""

    def step(at: _Mode) -> _Mode:
        move, gain = newton_step(at.slope, at.precision, at.damping)
        trial = at.theta + jnp.where(at.steps == 0, 0.0, move)
        value, slope, precision = _differences(problem, trial)
        better = (at.steps == 0) | (value <= at.value)
        gain = jnp.where(at.steps == 0, jnp.inf, gain)
        return _Mode(
            theta=jnp.where(better, trial, at.theta),
            value=jnp.where(better, value, at.value),
            slope=jnp.where(better, slope, at.slope),
            precision=jnp.where(better, precision, at.precision),
            damping=jnp.where(better, at.damping / 10.0, at.damping * 8.0),
            is_open=(gain > MODE_GAIN) & (at.damping < LARGEST_DAMPING),
            steps=at.steps + 1,
        )

    unknown = jnp.full((), jnp.inf, start.dtype)
    damping = jnp.full((), 1e-3, start.dtype)
    first = _Mode(
        start,
        unknown,
        jnp.zeros_like(start),
        jnp.asarray(problem.start.precision),
        damping,
        jnp.asarray(wanted),
        jnp.asarray(0),
    )
    found = jax.lax.while_loop(lambda at: at.is_open & (at.steps < MODE_STEPS), step, first)
    precision = positive(found.precision, jnp.zeros_like(found.damping))
    return FullGaussian(precision @ found.theta, precision)


def _differences(problem: Problem, theta: Float[Array, " d"]) -> tuple[Array, Array, Array]:
    """Loss minus log cavity at theta, its gradient, and its Hessian by differences of gradients."""
    weight, cavity = problem.kl_weight(theta.dtype), problem.cavity
    size = 1.0 / jnp.sqrt(jnp.abs(jnp.diagonal(problem.start.precision)))
    step = jnp.diag((1e-3 if theta.dtype == jnp.float64 else 3e-2) * jnp.minimum(size, 1.0))
    values, slopes = value_and_slopes(problem, jnp.concatenate([theta[None], theta + step, theta - step]))
    above, below = jnp.split(slopes[1:] / weight, 2)
    hessian = (above - below) / (2.0 * jnp.diagonal(step)[:, None])
    pull = cavity.precision @ theta - cavity.precision_mean
    value = values[0] / weight + 0.5 * theta @ (pull - cavity.precision_mean)
    precision = 0.5 * (hessian + hessian.T) + cavity.precision
    finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(precision))
    return jnp.asarray(jnp.where(finite, value, jnp.inf)), slopes[0] / weight + pull, precision


def _select(condition: Bool[Array, ""], new: T, old: T) -> T:
    return jax.tree.map(lambda new, old: jnp.where(condition, new, old), new, old)
