"""What every solver of the local problem promises: on linear-Gaussian data its answer is known.

A solver is driven as the engines drive it. The problem is a linear regression with known noise, in the family of
`cavity`: the full Gaussian's answer is cavity * likelihood; a smaller family keeps its mean and its diagonal.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from cavity.core import Data, Problem
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.divergences import KL
from cavity.losses import NegativeLogLikelihood
from cavity.models import linear_regression
from cavity.simulation.drive import solve
from cavity.solvers import Gradient
from cavity.solvers.coordinates import NaturalCoordinates
from cavity.solvers.estimators import Exact
from tests.scenarios import linear, linear_posterior

NOISE_SD = 1.5
DIMENSION = 3
NUM_ROWS = 12
KEY = jax.random.key(0)
traces = 0


def natural_descent(rate, num_steps=1) -> Gradient:
    """Plain descent on the natural parameters, without noise: with one step, PVI is then global VI (property 3.1)."""
    return Gradient(optax.sgd, rate, num_steps, None, Exact(), NaturalCoordinates())


@eqx.filter_jit
def run(solver, problem: Problem):
    """As an engine drives it; counts how often it is traced."""
    global traces
    traces += 1
    return solve(solver, KEY, problem)


def solved(solver, problem: Problem):
    solver.check(problem.model, problem.loss, problem.divergence)
    return run(solver, problem)


def as_data(x, y, weight=None) -> Data:
    weight = np.ones(len(y)) if weight is None else weight
    return Data((jnp.asarray(x), jnp.asarray(y)), jnp.asarray(weight), jnp.asarray(len(y)))


def rows(seed=3):
    """Always as many, so that each solver is compiled once."""
    return linear(NUM_ROWS, DIMENSION - 1, NOISE_SD, seed)


def problem(family, data: Data, cavity_precision) -> Problem:
    """With a diagonal cavity around (0.3, 0.3, 0.3), which may be improper, and a standard normal start."""
    model = linear_regression(DIMENSION - 1, noise_sd=NOISE_SD, covariance=family)

    def shaped(diagonal):
        return jnp.diag(diagonal) if family is FullGaussian else diagonal

    precision = jnp.full(DIMENSION, cavity_precision)
    cavity, start = (
        family(0.3 * precision, shaped(precision)),
        family(jnp.zeros(DIMENSION), shaped(jnp.ones(DIMENSION))),
    )
    return Problem(model, NegativeLogLikelihood(), KL(), cavity, start, data)


def known_answer(problem: Problem):
    """Mean and precision of cavity * likelihood, by the normal equations."""
    x, y = (np.asarray(part) for part in problem.data.batch)
    h, precision = linear_posterior(x, y, NOISE_SD, np.inf, np.asarray(problem.data.weight))
    whole = np.asarray(problem.cavity.precision_matrix) + precision
    return np.linalg.solve(whole, np.asarray(problem.cavity.precision_mean) + h), whole


def assert_answer(solution, problem: Problem, rtol):
    mean, precision = known_answer(problem)
    family = type(problem.cavity)
    np.testing.assert_allclose(solution.tilted.mean, mean, rtol=rtol, atol=rtol)
    expected = precision if family is FullGaussian else np.diag(np.diag(precision))
    np.testing.assert_allclose(solution.tilted.precision_matrix, expected, rtol=rtol, atol=rtol)


def check_finds_the_conjugate_answer(solver, family, rtol=1e-9):
    """From a proper cavity, and E[loss] is that of the start, summed over rows."""
    this = problem(family, as_data(*rows()), 1.0)
    solution = solved(solver, this)
    assert_answer(solution, this, rtol)
    x, y = rows()
    design = np.column_stack([np.ones(len(x)), x])
    squares = y**2 + np.sum(design**2, axis=1)  # E (y - f)^2 with theta standard normal
    expected = np.sum(0.5 * squares / NOISE_SD**2 + 0.5 * np.log(2 * np.pi * NOISE_SD**2))
    np.testing.assert_allclose(solution.expected_loss, expected, rtol=1e-10)


def check_improper_cavity(solver, family, rtol=1e-9):
    """The cavity's precision is negative, the product's positive: the answer exists, and the solver finds it."""
    data = as_data(*rows())
    smallest = np.linalg.eigvalsh(known_answer(problem(family, data, 0.0))[1])[0]
    this = problem(family, data, -0.3 * smallest)
    assert not bool(this.cavity.is_proper)
    assert_answer(solved(solver, this), this, rtol)


def check_weights_count_rows(solver, family, rtol=1e-9):
    """A row of weight 2 is two rows; one of weight 0, whatever it holds, is none."""
    x, y = rows()
    # four rows twice and four once, in three ways of writing them down
    repeated = as_data(np.concatenate([x[:8], x[:4]]), np.concatenate([y[:8], y[:4]]))
    padding_x, padding_y = 5 + np.random.default_rng(0).normal(size=(4, x.shape[1])), np.full(4, -9.0)
    weighted = as_data(
        np.concatenate([x[:8], padding_x]), np.concatenate([y[:8], padding_y]), np.repeat([2.0, 1.0, 0.0], 4)
    )
    left, right = (solved(solver, problem(family, data, 1.0)) for data in (repeated, weighted))
    for a, b in zip(jax.tree.leaves(left.tilted), jax.tree.leaves(right.tilted), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(left.expected_loss, right.expected_loss, rtol=1e-10)


def check_one_trace_per_shape(solver, family):
    """Other numbers of the same shape run the same program."""
    x, y = rows()
    solved(solver, problem(family, as_data(x, y), 1.0))
    before = traces
    for shift in (0.25, 0.5):
        solved(solver, problem(family, as_data(x, y + shift), 1.0 + shift))
    assert traces == before


def check(solver, family, rtol=1e-9):
    """All of it; in one test, so that a solver is compiled once."""
    check_finds_the_conjugate_answer(solver, family, rtol)
    check_improper_cavity(solver, family, rtol)
    check_weights_count_rows(solver, family, rtol)
    check_one_trace_per_shape(solver, family)


def check_no_recompilation(*solvers, family=DiagonalGaussian):
    """A sweep over a solver's numbers is one program."""
    before = traces
    for solver in solvers:
        solved(solver, problem(family, as_data(*rows()), 1.0))
    assert traces <= before + 1
