"""What descent sees of the loss: right on average, for any number of samples, batch size, padding and weights.

One step of plain descent with step size 1 shows the estimate of the gradient, and its report that of the loss. Averages
over keys are compared with quadrature on all rows, in units of their standard error.
"""

from dataclasses import replace
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from cavity.core import Data, Problem
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.divergences import KL
from cavity.errors import UnsuitableError
from cavity.likelihoods import CategoricalSoftmax
from cavity.losses import NegativeLogLikelihood
from cavity.models import MLP, function_model, linear_regression, logistic_regression, softmax_regression
from cavity.models.neural.layers import num_weights
from cavity.simulation.stacks import pad
from cavity.solvers import Gradient
from cavity.solvers.estimators import Exact, LocalDraws, ParameterDraws
from cavity.solvers.gradient import mini_batch
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

NUM_ROWS, NUM_PADDED = 50, 64
NUM_KEYS = 4000


def rows(num_classes, num_rows=NUM_ROWS):
    """Two features, and weights between 0 and 3: a mean, or a sum that forgets them, is far off."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(num_rows, 2)), rng.integers(0, num_classes, num_rows).astype(float)
    return Data((x, y), rng.uniform(0, 3, num_rows), np.asarray(num_rows))


def problem(model, data, seed=1):
    """At a q that is neither the prior nor an optimum, with correlations where the family has them."""
    rng = np.random.default_rng(seed)
    d = model.prior.dimension
    mean, root = (
        0.5 * rng.normal(size=d),
        np.tril(0.3 * rng.normal(size=(d, d)), -1) + np.diag(rng.uniform(0.3, 0.9, d)),
    )
    full = isinstance(model.prior, FullGaussian)
    q = type(model.prior).from_moments(mean, root @ root.T if full else np.diag(root) ** 2)
    return Problem(model, NegativeLogLikelihood(), KL(), model.prior, q, jax.tree.map(jnp.asarray, data))


def estimate(solver, problem, keys):
    """The loss and the gradient of the whole objective, per key."""
    arrays, static = eqx.partition((solver, problem), eqx.is_array)

    def one(arrays, key):
        solver, problem = eqx.combine(arrays, static)
        before = solver.init(problem)
        after = solver.step(key, problem, before)
        step = jax.tree.map(jnp.subtract, before.coordinates, after.coordinates)
        return jnp.concatenate([solver.result(problem, after).expected_loss[None], ravel_pytree(step)[0]])

    return jax.jit(jax.vmap(one, in_axes=(None, 0)))(arrays, keys)


def descent(estimator, batch_size=None):
    return Gradient(optax.sgd, 1.0, num_steps=1, batch_size=batch_size, estimator=estimator)


def keys(seed, number=NUM_KEYS):
    return jax.random.split(jax.random.key(seed), number)


def mean_and_error(draws):
    return np.mean(draws, axis=0), np.std(draws, axis=0) / np.sqrt(len(draws))


def assert_unbiased(estimator, batch_size, problem, reference, seed=0):
    mean, error = mean_and_error(estimate(descent(estimator, batch_size), problem, keys(seed)))
    np.testing.assert_array_less(np.abs(mean - reference), 4 * error + 1e-9 * np.abs(reference) + 1e-12)
    # a missing factor of 50 / 64 (padding counted), or weights of 1 for their mean of 1.5, would show
    assert 4 * error[0] < 0.1 * abs(reference[0])


def exact(problem):
    return np.asarray(estimate(descent(Exact()), problem, keys(0, 1))[0])


@cache
def mean_field():
    """A problem that a test may pad, and what is true of it."""
    model = logistic_regression(2, covariance=DiagonalGaussian)
    return model, exact(problem(model, rows(2)))


@thorough
@pytest.mark.parametrize("estimator", [ParameterDraws, LocalDraws])
@pytest.mark.parametrize("num_samples", [1, 4])
@pytest.mark.parametrize("batch_size", [5, 50, None])
def test_neither_samples_nor_batches_nor_padding_nor_weights_matter(estimator, num_samples, batch_size):
    model, reference = mean_field()
    assert_unbiased(estimator(num_samples), batch_size, problem(model, pad(rows(2), NUM_PADDED)), reference)


@thorough
def test_the_reference_by_hand():
    """E_q[loss] of a linear regression, with weights and padding: a closed form."""
    model = linear_regression(2, noise_sd=0.8)
    this = problem(model, pad(rows(2), NUM_PADDED))
    x, y = rows(2).batch
    a = np.column_stack([np.ones(NUM_ROWS), x])
    mean, covariance = np.asarray(this.start.mean), np.asarray(this.start.covariance)
    square = (y - a @ mean) ** 2 + np.einsum("nd,de,ne->n", a, covariance, a)
    losses = 0.5 * square / 0.8**2 + np.log(0.8) + 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(exact(this)[0], rows(2).weight @ losses, rtol=1e-10)


@pytest.mark.slow
def test_several_predictors_per_row():
    """Predictors that share a covariance are drawn together."""
    this = problem(softmax_regression(2, 3, covariance=FullGaussian), rows(3))
    assert_unbiased(LocalDraws(1), 50, this, exact(this))


def network(sizes=(2, 4, 3)):
    """In double precision, so that only Monte Carlo noise is left."""
    d = num_weights(sizes)
    return MLP(DiagonalGaussian(jnp.zeros(d), jnp.ones(d)), CategoricalSoftmax(sizes[-1]), sizes)


@pytest.mark.slow
def test_local_draws_of_a_network_have_the_distribution_of_its_weights():
    """Layers are independent, so a row's predictors have the same distribution either way."""
    this = problem(network(), pad(rows(3, 12), 16))
    reference, error = mean_and_error(estimate(descent(ParameterDraws(8)), this, keys(1, 10_000)))
    mean, local_error = mean_and_error(estimate(descent(LocalDraws(), 5), this, keys(2, 10_000)))
    np.testing.assert_array_less(np.abs(mean - reference), 4 * np.hypot(error, local_error))
    assert 4 * np.hypot(error, local_error)[0] < 0.1 * reference[0]


@pytest.mark.parametrize(
    "model", [logistic_regression(2, covariance=DiagonalGaussian), network()], ids=["regression", "network"]
)
@thorough
def test_padding_does_not_change_a_single_draw(model):
    """Not only on average: the same key gives the same estimate, so engines that pad differently agree."""
    solver = descent(LocalDraws(2))
    plain = estimate(solver, problem(model, rows(2)), keys(3, 4))
    padded = estimate(solver, problem(model, pad(rows(2), NUM_PADDED)), keys(3, 4))
    np.testing.assert_allclose(padded, plain, rtol=1e-10, atol=1e-10)


def test_local_draws_have_less_variance():
    """What they are for: rows of a batch do not share their noise."""
    this = problem(mean_field()[0], rows(2))
    _, shared = mean_and_error(estimate(descent(ParameterDraws()), this, keys(4)))
    _, local = mean_and_error(estimate(descent(LocalDraws()), this, keys(4)))
    assert local[0] < 0.7 * shared[0]


def test_a_row_that_no_coefficient_sees_has_a_gradient():
    """A row of zeros has a predictor without variance, where the derivative of a root is infinite."""
    data = replace(rows(3), batch=(np.zeros((NUM_ROWS, 2)), rows(3).batch[1]))
    for make in (logistic_regression, partial(softmax_regression, num_classes=3)):
        this = problem(make(2, intercept=False, covariance=DiagonalGaussian), data)
        assert np.isfinite(estimate(descent(LocalDraws()), this, keys(0, 2))).all()


def test_mini_batches_are_drawn_from_the_true_rows():
    """With replacement, each equally likely, and weighted to an unbiased sum."""
    data = rows(2)
    numbered = Data(np.arange(NUM_ROWS), data.weight, data.num_rows)
    padded = pad(numbered, NUM_PADDED)
    padded = replace(padded, batch=np.arange(NUM_PADDED))
    draw = jax.jit(jax.vmap(lambda key, data: mini_batch(key, data, 5), in_axes=(0, None)))
    batches = draw(keys(5), jax.tree.map(jnp.asarray, padded))
    unpadded = draw(keys(5), jax.tree.map(jnp.asarray, numbered))
    np.testing.assert_array_equal(batches.batch, unpadded.batch)
    np.testing.assert_array_equal(batches.weight, unpadded.weight)
    assert np.unique(batches.batch).tolist() == list(range(NUM_ROWS))
    np.testing.assert_allclose(batches.weight, data.weight[batches.batch] * NUM_ROWS / 5, rtol=1e-12)
    mean, error = mean_and_error(np.sum(batches.weight, axis=1))
    assert abs(mean - data.weight.sum()) < 4 * error
    assert (np.asarray(batches.num_rows) == 5).all()


@thorough
def test_batches_larger_than_the_data():
    """A batch size is one for all clients, also for those with fewer rows."""
    this = problem(mean_field()[0], rows(2, 3))
    assert_unbiased(LocalDraws(), 128, this, exact(this))


def test_unsuitable_models_are_refused():
    own = function_model(lambda p, batch: -0.5 * (batch - p) ** 2, 0.0)
    with pytest.raises(UnsuitableError, match="ParameterDraws"):
        LocalDraws().check(own, NegativeLogLikelihood())
    ParameterDraws().check(own, NegativeLogLikelihood())
    Exact().check(own, NegativeLogLikelihood())
