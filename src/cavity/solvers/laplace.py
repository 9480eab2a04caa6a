"""Laplace's method: the tilted distribution as a Gaussian around its mode, by Newton's method with damping.

    mode       = argmin over theta of loss(theta) - log cavity(theta)
    precision  = hessian of the loss at the mode + precision of the cavity

At a fixed point of all clients this is the Laplace approximation of the pooled posterior. Steps are measured in units
of the curvature, so that the scale of the parameters does not matter; a step that does not go downhill is shortened.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from cavity.core import Divergence, Loss, Model, Problem, Solution, Solver
from cavity.core.fields import as_count, as_number
from cavity.distributions import FullGaussian
from cavity.solvers.fixed_point import default_tolerance
from cavity.solvers.requirements import require_family, require_multiple_of_kl

FIRST_DAMPING = 1e-4  # as a share of the curvature
MAX_DAMPING = 1e12
FLATTEST = 1e-12  # share of the largest curvature below which a direction counts as flat


class LaplaceState(eqx.Module):
    """The state of the descent.

    Attributes:
        mean: the best theta so far.
        value: the objective there, without constants.
        slope: its gradient.
        hessian: of the loss.
        initial_loss: the loss at the start.
        damping: added to the curvature in the next trial, as a share of it.
        gap: the decrease in nats that an undamped step would give.
        steps: trials so far.
    """

    mean: Float[Array, " d"]
    value: Float[Array, ""]
    slope: Float[Array, " d"]
    hessian: Float[Array, "d d"]
    initial_loss: Float[Array, ""]
    damping: Float[Array, ""]
    gap: Float[Array, ""]
    steps: Int[Array, ""]


class Laplace(Solver):
    """For full Gaussians, any twice differentiable loss, and multiples of KL; all rows in each step.

    Attributes:
        tolerance: stop when a step would gain less than this, in nats; None is 1e-10, or 1e-7 in single precision.
        max_steps: the maximum number of trials.
    """

    tolerance: Float[Array, ""] | None = eqx.field(converter=as_number, default=None)
    max_steps: Int[Array, ""] = eqx.field(converter=as_count, default=100)

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        require_family(model, "Laplace's method", FullGaussian)
        require_multiple_of_kl(divergence, "Laplace's method")

    def init(self, problem: Problem[FullGaussian]) -> LaplaceState:
        mean = problem.start.mean  # evaluated by the first trial, whose slope is zero
        infinite = jnp.full((), jnp.inf, mean.dtype)
        slope, hessian = jnp.zeros_like(mean), jnp.zeros((len(mean), len(mean)), mean.dtype)
        first = jnp.asarray(FIRST_DAMPING, mean.dtype)
        return LaplaceState(mean, infinite, slope, hessian, infinite, first, infinite, jnp.asarray(0))

    def step(self, key: PRNGKeyArray, problem: Problem[FullGaussian], state: LaplaceState) -> LaplaceState:
        move, gap = newton_step(state.slope, state.hessian + problem.cavity.precision, state.damping)
        loss, value, slope, hessian = _look(problem, state.mean + move)
        is_first = state.steps == 0
        slack = jnp.finfo(value.dtype).eps ** 0.8 * (1.0 + jnp.abs(state.value))  # rounding of a sum over rows
        better = (value <= state.value + slack) & jnp.all(jnp.isfinite(hessian))
        trial = (state.mean + move, value, slope, hessian)
        here = (state.mean, state.value, state.slope, state.hessian)
        mean, value, slope, hessian = jax.tree.map(lambda new, old: jnp.where(better, new, old), trial, here)
        damping = jnp.where(better, state.damping / 10.0, jnp.minimum(state.damping * 8.0, MAX_DAMPING))
        gap = jnp.where(is_first, jnp.inf, gap)
        initial_loss = jnp.where(is_first, loss, state.initial_loss)
        return LaplaceState(mean, value, slope, hessian, initial_loss, damping, gap, state.steps + 1)

    def _small(self, state: LaplaceState) -> Bool[Array, ""]:
        default = default_tolerance(state.gap.dtype)
        return state.gap < (default if self.tolerance is None else self.tolerance)

    def done(self, state: LaplaceState) -> Bool[Array, ""]:
        return self._small(state) | (state.steps >= self.max_steps) | (state.damping >= MAX_DAMPING)

    def result(self, problem: Problem[FullGaussian], state: LaplaceState) -> Solution:
        precision = state.hessian + problem.cavity.precision
        precision = positive(0.5 * (precision + precision.T), jnp.zeros_like(state.damping))
        tilted = FullGaussian(precision @ state.mean, precision)
        return Solution(tilted, state.initial_loss, state.steps, self._small(state))


def _look(problem: Problem[FullGaussian], theta: Float[Array, " d"]) -> tuple[Array, Array, Array, Array]:
    """The loss at theta, the objective, its gradient, and the Hessian of the loss."""
    weight = problem.kl_weight(theta.dtype)
    cavity = problem.cavity

    def total(theta: Array) -> Array:
        return problem.loss.total(problem.model, theta, problem.data) / weight

    def slope_and_value(theta: Array) -> tuple[Array, tuple[Array, Array]]:
        value, slope = jax.value_and_grad(total)(theta)
        return slope, (value, slope)

    hessian, (loss, slope) = jax.jacfwd(slope_and_value, has_aux=True)(theta)
    pull = cavity.precision @ theta - cavity.precision_mean
    objective = loss + 0.5 * theta @ (pull - cavity.precision_mean)
    objective = jnp.asarray(
        jnp.where(jnp.isnan(objective), jnp.inf, objective)
    )  # so that an overflow loses every comparison
    return loss * weight, objective, slope + pull, hessian


def newton_step(
    slope: Float[Array, " d"], curvature: Float[Array, "d d"], damping: Float[Array, ""]
) -> tuple[Array, Array]:
    """The damped step, and the decrease that an undamped one would give."""
    gap = 0.5 * slope @ jnp.linalg.solve(positive(curvature, jnp.zeros_like(damping)), slope)
    return -jnp.linalg.solve(positive(curvature, damping), slope), gap


def positive(curvature: Float[Array, "d d"], damping: Float[Array, ""]) -> Float[Array, "d d"]:
    """The curvature with absolute eigenvalues plus a share of its diagonal, computed in units of its diagonal."""
    unit = jnp.sqrt(jnp.maximum(jnp.abs(jnp.diagonal(curvature)), jnp.finfo(curvature.dtype).tiny))
    values, vectors = jnp.linalg.eigh(curvature / unit / unit[:, None])
    size = jnp.abs(values)
    raised = jnp.maximum(size, FLATTEST * jnp.max(size)) + damping
    return (vectors * raised) @ vectors.T * unit * unit[:, None]
