"""E_q[loss] over a fixed set of points in theta, for likelihoods that are not sums over rows.

    theta_s = mu + L x_s,   L L' = Sigma,   E_q[loss]  ~  sum_s w_s loss(theta_s)

The x_s are quasi-Monte Carlo points of equal weight, antithetic, with mean 0 and covariance I exactly; of up to three
parameters a Gauss-Hermite grid of as many points, which is more exact. They never change. So this is a function of mu
and Sigma without noise, it is exact for a quadratic loss, and its value, its derivatives and the fixed point of all
clients belong together: derivatives are those of the sum itself,

    d/dmu = sum_s w_s g_s,     d/dL = sum_s w_s g_s x_s',     g_s = gradient of the loss at theta_s,

and the expected Hessian is 2 d/dSigma. Price's identity with Hessians at the points would hold up to the error of the
points only, and steps by it would not descend near the optimum.

A loss of all rows is expensive, so there are few points, which are taken in groups: one value and one gradient per
point is kept.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cavity.core import Loss, Model, Problem
from cavity.distributions.gaussian import Gaussian, GaussianDensity
from cavity.distributions.quadrature import hermite_grid, in_groups, quasi_normal_points
from cavity.solvers.expectations import Derivatives, Expectation
from cavity.solvers.requirements import require_family

NUM_POINTS = 64
GRID_ORDERS = {1: 32, 2: 8, 3: 5}  # nodes per parameter
AT_ONCE = 1 << 12  # rows times points that are evaluated together


def num_points(dimension: int) -> int:
    """Points for so many parameters: more than the numbers in a mean and a covariance need."""
    return max(NUM_POINTS, 8 * dimension)


class PointSet(Expectation):
    """An average over fixed points.

    Attributes:
        count: an even number of quasi-Monte Carlo points; None chooses by the number of parameters.
    """

    count: int | None = eqx.field(static=True, default=None)

    def check(self, model: Model, loss: Loss) -> None:
        require_family(model, "an expectation over points in theta", Gaussian)

    def points(self, dimension: int) -> tuple[Float[np.ndarray, "s d"], Float[np.ndarray, " s"]]:
        """The x_s and w_s."""
        if self.count is None and dimension in GRID_ORDERS:
            return hermite_grid(dimension, GRID_ORDERS[dimension])
        points = quasi_normal_points(dimension, self.count or num_points(dimension))
        return points, np.full(len(points), 1.0 / len(points))

    def value(self, problem: Problem[Gaussian], q: GaussianDensity) -> Float[Array, ""]:
        theta, weights = self._placed(q.mean, q.covariance)
        return weights @ in_groups(
            lambda one: problem.loss.total(problem.model, one, problem.data), theta, _together(problem)
        )

    def derivatives(self, problem: Problem[Gaussian], q: Gaussian, *, full_hessian: bool) -> Derivatives:
        theta, to_moments, weights = jax.vjp(self._placed, q.mean, q.covariance, has_aux=True)
        values, slopes = value_and_slopes(problem, theta)
        gradient, bend = to_moments(weights[:, None] * slopes)
        hessian = bend + bend.T
        return weights @ values, gradient, hessian if full_hessian else jnp.diagonal(hessian)

    def _placed(
        self, mean: Float[Array, " d"], covariance: Float[Array, "d d"]
    ) -> tuple[Float[Array, "s d"], Float[Array, " s"]]:
        points, weights = (jnp.asarray(part, mean.dtype) for part in self.points(len(mean)))
        return mean + points @ jnp.linalg.cholesky(covariance).T, weights


def value_and_slopes(
    problem: Problem[Gaussian], theta: Float[Array, "s d"]
) -> tuple[Float[Array, " s"], Float[Array, "s d"]]:
    """The loss of all rows and its gradient, at each of these points."""

    def one(theta: Array) -> tuple[Array, Array]:
        return jax.value_and_grad(lambda theta: problem.loss.total(problem.model, theta, problem.data))(theta)

    return in_groups(one, theta, _together(problem))


def _together(problem: Problem[Gaussian]) -> int:
    return AT_ONCE // len(problem.data.weight)
