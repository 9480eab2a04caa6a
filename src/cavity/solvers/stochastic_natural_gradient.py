"""Natural gradient by Monte Carlo, with mini-batches (PVI, section 3.3 and appendix B.6).

With theta = mu + L noise, the gradient and Hessian of E_q[loss] in theta follow from first derivatives alone:

    E_q[gradient] = mean of g,      E_q[hessian] = mean of g (theta - mu)' Lambda     (g the gradient at theta)

The step on the precision is the retraction of Lin, Schmidt and Khan (2020), Lambda + rho G + rho^2/2 G Lambda^-1 G
with G = target - Lambda: it agrees with eq. (4) to first order, has the same fixed points, and stays positive definite
however noisy G is.
"""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from cavity.core import Divergence, Loss, Model, Problem, Solution, Solver
from cavity.core.fields import Count, as_count, as_number
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.solvers.gradient import mini_batch
from cavity.solvers.requirements import check_batches, require_family, require_multiple_of_kl

Family = FullGaussian | DiagonalGaussian


class StochasticNaturalGradientState(eqx.Module):
    """The current mean and precision (a matrix, or its diagonal), and the number of steps."""

    mean: Float[Array, " d"]
    precision: Float[Array, ...]
    steps: Int[Array, ""]


class StochasticNaturalGradient(Solver):
    """For full and diagonal Gaussians and any differentiable loss; multiples of KL.

    Attributes:
        num_steps: the number of steps.
        step_size: rho of the first step; it falls as step_size / (1 + decay * step).
        decay: see `step_size`.
        batch_size: rows per step; None takes all.
        num_samples: draws of theta per step, half of them antithetic.
    """

    num_steps: Int[Array, ""] = eqx.field(converter=as_count, default=500)
    step_size: Float[Array, ""] = eqx.field(converter=as_number, default=0.1)
    decay: Float[Array, ""] = eqx.field(converter=as_number, default=0.01)
    batch_size: int | None = eqx.field(static=True, default=128)
    num_samples: int = eqx.field(static=True, default=8)

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        require_family(model, "the stochastic natural gradient", FullGaussian, DiagonalGaussian)
        require_multiple_of_kl(divergence, "the stochastic natural gradient")
        check_batches(model, self.batch_size)

    def steps_for(self, num_rows: Count) -> int:
        return int(self.num_steps)

    def init(self, problem: Problem[Family]) -> StochasticNaturalGradientState:
        return StochasticNaturalGradientState(problem.start.mean, jnp.asarray(problem.start.precision), jnp.asarray(0))

    def step(
        self, key: PRNGKeyArray, problem: Problem[Family], state: StochasticNaturalGradientState
    ) -> StochasticNaturalGradientState:
        mean, precision, cavity = state.mean, state.precision, problem.cavity
        batch_key, draw_key = jax.random.split(key)
        data = problem.data if self.batch_size is None else mini_batch(batch_key, problem.data, self.batch_size)
        batch = replace(problem, data=data)
        half = jax.random.normal(draw_key, (-(-self.num_samples // 2), len(mean)), mean.dtype)
        q = _member(problem, mean, precision)
        draws = q.reparameterise(jnp.concatenate([half, -half]))

        def total(theta: Float[Array, " d"]) -> Float[Array, ""]:
            return batch.loss.total(batch.model, theta, batch.data)

        # E[loss] + weight * KL has the minimisers of E[loss] / weight + KL
        slopes = jax.vmap(jax.grad(total))(draws) / problem.kl_weight(mean.dtype)
        gradient = jnp.mean(slopes, axis=0)
        rho = (self.step_size / (1.0 + self.decay * state.steps)).astype(mean.dtype)
        if precision.ndim == 2:
            hessian = slopes.T @ ((draws - mean) @ precision) / len(draws)
            correction = cavity.precision + 0.5 * (hessian + hessian.T) - precision
            moved = precision + rho * correction + 0.5 * rho**2 * correction @ q.covariance @ correction
            slope = gradient + cavity.precision @ mean - cavity.precision_mean
            mean = mean - rho * jnp.linalg.solve(moved, slope)
        else:
            correction = cavity.precision + jnp.mean(slopes * (draws - mean) * precision, axis=0) - precision
            moved = precision + rho * correction + 0.5 * rho**2 * correction**2 / precision
            mean = mean - rho * (gradient + cavity.precision * mean - cavity.precision_mean) / moved
        return StochasticNaturalGradientState(mean, moved, state.steps + 1)

    def done(self, state: StochasticNaturalGradientState) -> Bool[Array, ""]:
        return state.steps >= self.num_steps

    def result(self, problem: Problem[Family], state: StochasticNaturalGradientState) -> Solution:
        tilted = _member(problem, state.mean, state.precision)
        unknown = jnp.full((), jnp.nan, state.mean.dtype)
        return Solution(tilted, unknown, state.steps, jnp.asarray(False))


def _member(problem: Problem[Family], mean: Float[Array, " d"], precision: Float[Array, ...]) -> Family:
    return type(problem.start)(precision @ mean if precision.ndim == 2 else precision * mean, precision)
