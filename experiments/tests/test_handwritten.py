"""The engine against programs that do not use Cavity: the references of the benchmark."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity.aggregation import Fixed
from cavity.distributions.quadrature import normal_nodes
from cavity.models import linear_regression, logistic_regression
from cavity.solvers import Conjugate, FixedPoint
from cavity_experiments import handwritten
from cavity_experiments.core_speed import Contestant, logistic_rows, product_shapes, shared_out

NUM_CLIENTS, NUM_COLUMNS, NUM_ROUNDS = 4, 3, 6


def stacked(rows):
    return (jnp.asarray(leaf).reshape(NUM_CLIENTS, -1, *leaf.shape[1:]) for leaf in rows)


def block(model, rows, solver, damping):
    method = cavity.PVI(model, solver=solver, damping=damping)
    contestant = Contestant(method, shared_out(rows, NUM_CLIENTS), 0)
    server, rounds = contestant.engine.advance(contestant.server, NUM_ROUNDS)
    return server.posterior, [rounds[i] for i in range(NUM_ROUNDS)]


def assert_same_run(posterior, rounds, by_hand):
    h, precision, changes, free_energies = by_hand
    np.testing.assert_allclose(posterior.precision_mean, h, rtol=1e-11)
    np.testing.assert_allclose(posterior.precision, precision, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose([r.bound for r in rounds], free_energies, rtol=1e-11)
    np.testing.assert_allclose([r.gaps.max() for r in rounds], changes, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("num_steps", [1, 3])
def test_logistic_regression_by_natural_gradient(num_steps):
    rows, (nodes, weights) = logistic_rows(1, 40 * NUM_CLIENTS, NUM_COLUMNS), normal_nodes(1)
    model = logistic_regression(NUM_COLUMNS, prior_scale=1.0, intercept=False)
    run = block(model, rows, FixedPoint(max_steps=num_steps, tolerance=0.0), Fixed(1.0))
    nodes, weights = jnp.asarray(nodes[:, 0]), jnp.asarray(weights)
    by_hand = handwritten.newton_rounds(*stacked(rows), nodes, weights, num_rounds=NUM_ROUNDS, num_steps=num_steps)
    assert_same_run(*run, by_hand)


def test_linear_regression_in_closed_form():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(10 * NUM_CLIENTS, NUM_COLUMNS))
    rows = (x, x[:, 0] + rng.normal(size=len(x)))
    model = linear_regression(NUM_COLUMNS, noise_sd=1.0, prior_scale=1.0, intercept=False)
    run = block(model, rows, Conjugate(), Fixed(0.5))
    by_hand = handwritten.conjugate_rounds(*stacked(rows), jnp.asarray(0.5), num_rounds=NUM_ROUNDS)
    assert_same_run(*run, by_hand)


def test_the_products_of_a_network_are_counted():
    """One hidden layer: means and variances forwards (2 x 2), to the weights (2 x 2), to the hidden layer (2)."""
    shapes = list(product_shapes((784, 200, 10), 512))
    assert len(shapes) == 10
    assert sum(2 * n * k * m for n, k, m in shapes) == 2 * 2 * 512 * (2 * 784 * 200 + 3 * 200 * 10)


def test_no_line_of_cavity_in_the_yardstick():
    source = Path(handwritten.__file__).read_text()
    assert "import cavity" not in source
    assert "from cavity" not in source
