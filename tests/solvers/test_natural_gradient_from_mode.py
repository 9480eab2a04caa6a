"""The natural gradient from the tilted mode: the promises of every solver, and the optimum of the point set's bound."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from cavity.core import Data, Model, Problem
from cavity.distributions import FullGaussian
from cavity.divergences import KL
from cavity.losses import NegativeLogLikelihood
from cavity.simulation.drive import solve
from cavity.solvers import NaturalGradientFromMode, PointSet
from cavity.solvers.acceleration import MEMORY, Memory
from tests.contracts import solver as contract
from tests.marks import thorough


def test_contract():
    contract.check(NaturalGradientFromMode(tolerance=1e-14), FullGaussian, rtol=1e-6)


class Scales(Model):
    """Normal outcomes around 0 with an unknown log sd, plus a mean: not a sum over rows as far as a solver knows."""

    prior: FullGaussian

    @property
    def parameter_names(self):
        return ("mean", "log sd")

    def log_prob(self, theta, data):
        y, weight = jnp.asarray(data.batch), jnp.asarray(data.weight)
        each = -0.5 * ((y - theta[0]) * jnp.exp(-theta[1])) ** 2 - theta[1] - 0.9189385332046727
        return jnp.sum(weight * each)

    def prepare(self, batch):
        return np.asarray(batch, float)


def gaussian(mean, sd):
    return FullGaussian.from_moments(jnp.asarray(mean, float), jnp.diag(jnp.asarray(sd, float) ** 2))


def problem(y, cavity, start):
    y = np.asarray(y, float)
    model = Scales(gaussian([0.0, 0.0], [10.0, 10.0]))
    data = Data(jnp.asarray(y), jnp.ones(len(y)), jnp.asarray(len(y)))
    return Problem(model, NegativeLogLikelihood(), KL(), cavity, start, data)


@jax.jit
def solution_of(this):
    return solve(NaturalGradientFromMode(), jax.random.key(0), this)


def optimum(this):
    """The minimiser of the bound over the same points, by scipy in (mean, Cholesky factor): an independent route."""
    points, weights = PointSet().points(2)

    def bound(v):
        mean, root = v[:2], jnp.array([[jnp.exp(v[2]), 0.0], [v[3], jnp.exp(v[4])]])
        theta = mean + jnp.asarray(points) @ root.T
        loss = jnp.asarray(weights) @ jax.vmap(lambda t: -this.model.log_prob(t, this.data))(theta)
        second = root @ root.T + jnp.outer(mean, mean)
        cavity = this.cavity.precision_mean @ mean - 0.5 * jnp.trace(this.cavity.precision @ second)
        return loss - cavity - v[2] - v[4]

    start = np.array([1.0, 0.0, -1.0, 0.0, -1.0])
    found = minimize(jax.jit(jax.value_and_grad(bound)), start, jac=True, method="BFGS", options={"gtol": 1e-9})
    v = found.x
    root = np.array([[np.exp(v[2]), 0.0], [v[3], np.exp(v[4])]])
    return v[:2], root @ root.T


Y = [1.3, 0.2, 2.9, -0.8, 1.9, 1.1]
CAVITIES = {
    "proper": gaussian([0.0, 0.0], [2.0, 1.0]),
    "broad": gaussian([0.0, 0.0], [100.0, 10.0]),
    "improper": FullGaussian(jnp.asarray([0.0, 0.1]), jnp.diag(jnp.asarray([0.1, -1.0]))),
}


@pytest.mark.parametrize("name", CAVITIES)
def test_it_finds_the_optimum_of_the_bound(name):
    """From a broad start, at which the loss is astronomical; the precision of the factor may be negative."""
    this = problem(Y, CAVITIES[name], gaussian([0.0, 0.0], [100.0, 10.0]))
    found = solution_of(this)
    assert bool(found.converged)
    again = solution_of(problem(Y, CAVITIES[name], found.tilted))  # a second visit is exact
    mean, covariance = optimum(this)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(again.tilted.mean, mean, atol=1e-4 * sd.min())
    np.testing.assert_allclose(again.tilted.covariance, covariance, rtol=1e-3, atol=1e-5)
    assert float(found.tilted.kl(again.tilted)) < 1e-3


def test_a_start_at_the_answer_takes_few_steps():
    cavity = CAVITIES["proper"]
    first = solution_of(problem(Y, cavity, gaussian([0.0, 0.0], [100.0, 10.0])))
    second = solution_of(problem(Y, cavity, first.tilted))
    third = solution_of(problem(Y, cavity, second.tilted))
    assert int(third.steps) <= 3
    assert int(first.steps) <= 20


@thorough
def test_clients_beside_each_other_do_not_disturb_each_other():
    starts = [gaussian([0.0, 0.0], [100.0, 10.0]), gaussian([1.0, 0.0], [0.5, 0.4])]
    problems = [problem(Y, CAVITIES["proper"], start) for start in starts]
    alone = [solution_of(this).tilted for this in problems]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)
    together = jax.jit(jax.vmap(lambda this: solve(NaturalGradientFromMode(), jax.random.key(0), this).tilted))(stacked)
    for i, q in enumerate(alone):
        np.testing.assert_allclose(together.precision[i], q.precision, rtol=1e-6)
        np.testing.assert_allclose(together.precision_mean[i], q.precision_mean, rtol=1e-6, atol=1e-9)


def test_acceleration_solves_a_linear_iteration():
    """q <- A q + b in natural parameters, with oscillating and slow directions: exact after a few steps."""
    goal = gaussian([0.5, -1.0], [1.0, 0.5])
    rates = FullGaussian(jnp.asarray([-0.9, 0.95]), jnp.asarray([[-0.9, 0.0], [0.0, 0.95]]))

    def target(q):
        return jax.tree.map(lambda a, g, r: g + r * (a - g), q, goal, rates)

    q = gaussian([0.2, -0.5], [1.5, 0.8])
    memory = Memory.empty(q)
    for _ in range(MEMORY - 1):
        residual = target(q) / q
        new = memory.next(q, residual)
        memory, q = memory.added(q, residual, jnp.asarray(True)), new
    assert float(q.kl(goal)) < 1e-8
