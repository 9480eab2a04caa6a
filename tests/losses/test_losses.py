"""The losses by their contract: limits, printed formulas, closed forms, bounds, and means over samples and batches."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.likelihoods import (
    BernoulliLogit,
    BernoulliProbit,
    CategoricalLogit,
    CategoricalSoftmax,
    GaussianNoise,
    GaussianUnknownNoise,
    GaussianVector,
    PoissonLog,
)
from cavity.losses import (
    Beta,
    Gamma,
    GeneralisedCrossEntropy,
    NegativeLogLikelihood,
    ScoreMatching,
    SquaredExponential,
    Tempered,
)
from cavity.models import Regression, linear_regression, logistic_regression, normal_location
from cavity.simulation.stacks import pad
from cavity.solvers.estimators import Exact, LocalDraws, ParameterDraws
from cavity.solvers.gradient import mini_batch
from tests.contracts import loss as contract
from tests.marks import thorough
from tests.solvers.test_estimators import NUM_PADDED, keys, mean_and_error, problem, rows

pytestmark = pytest.mark.usefixtures("quick_to_compile")

NUM_ROWS = 12
NOISE = np.array([[1.0, 0.6], [0.6, 0.8]])

# likelihood, random outcomes
LIKELIHOODS = {
    "gaussian": (GaussianNoise(0.7), lambda rng: 2 * rng.normal(size=NUM_ROWS)),
    "unknown noise": (GaussianUnknownNoise(), lambda rng: 2 * rng.normal(size=NUM_ROWS)),
    "vector": (GaussianVector(jnp.asarray(np.linalg.cholesky(NOISE))), lambda rng: 2 * rng.normal(size=(NUM_ROWS, 2))),
    "logit": (BernoulliLogit(), lambda rng: rng.integers(0, 2, NUM_ROWS)),
    "probit": (BernoulliProbit(), lambda rng: rng.integers(0, 2, NUM_ROWS)),
    "categorical": (CategoricalLogit(3), lambda rng: rng.integers(0, 3, NUM_ROWS)),
    "softmax": (CategoricalSoftmax(3), lambda rng: rng.integers(0, 3, NUM_ROWS)),
    "poisson": (PoissonLog(), lambda rng: rng.poisson(2.0, NUM_ROWS)),
}
likelihood_of = pytest.mark.parametrize("name", LIKELIHOODS)


def robust(likelihood, epsilon):
    """The losses whose limit at epsilon = 0 is the negative log likelihood."""
    losses = [Beta(epsilon), Gamma(1.0 + epsilon)]
    return [*losses, GeneralisedCrossEntropy(epsilon)] if likelihood.is_discrete else losses


def pulls(name, epsilon, f, y):
    """Values and slopes of the robust losses, of a likelihood tempered by 1, and of the likelihood; always n rows."""
    likelihood = LIKELIHOODS[name][0]
    losses = [*robust(likelihood, epsilon), Tempered(1.0), NegativeLogLikelihood()]
    values, slopes = contract.pulls(losses, likelihood, jnp.asarray(f, float), jnp.asarray(y, float))
    return np.concatenate([np.asarray(values)[..., None], slopes], axis=-1)


@thorough
@likelihood_of
@settings(max_examples=5, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**20))
def test_the_limit_is_the_negative_log_likelihood(name, seed):
    """At draws of Gaussians, in value and in gradient: the constants that the papers leave out are included."""
    rng = np.random.default_rng(seed)
    k = LIKELIHOODS[name][0].num_predictors
    f = 0.6 * rng.normal(size=k) + rng.normal(size=(NUM_ROWS, k)) @ (0.4 * rng.normal(size=(k, k)))
    y = LIKELIHOODS[name][1](rng)
    *_, tempered, reference = pulls(name, 1e-7, f, y)
    np.testing.assert_allclose(tempered, reference, rtol=1e-14)
    contract.check_limit(lambda epsilon: pulls(name, epsilon, f, y)[:-2], reference, 1e-7)


def model_of(name):
    """A location, or a regression with two features and an intercept for each predictor."""
    likelihood = LIKELIHOODS[name][0]
    if name == "vector":
        return normal_location(2, noise_covariance=NOISE)
    k = likelihood.num_predictors
    prior = FullGaussian(jnp.zeros(3 * k), jnp.eye(3 * k))
    return Regression(prior, likelihood, ("a", "b"), True, tuple(f"f{i}" for i in range(k)), (False,) * k)


@pytest.mark.parametrize("name", ["unknown noise", "vector", "logit", "categorical", "poisson"])
def test_faces_of_a_loss(name):
    rng = np.random.default_rng(1)
    model, y = model_of(name), jnp.asarray(LIKELIHOODS[name][1](rng), float)
    batch = y if name == "vector" else (jnp.asarray(rng.normal(size=(NUM_ROWS, 2))), y)
    losses = [Beta(0.5)]
    if name == "logit":
        losses += [NegativeLogLikelihood(), Gamma(1.5), GeneralisedCrossEntropy(0.5), Tempered(0.3, Gamma(1.5))]
    contract.check_faces_agree(losses, model, jnp.asarray(rng.normal(size=model.prior.dimension)), batch)


# p(y | f) of all outcomes by SciPy
PROBABILITIES = {
    "logit": lambda f: stats.logistic.cdf([-f, f]),
    "probit": lambda f: stats.norm.cdf([-f, f]),
    "poisson": lambda f: stats.poisson.pmf(np.arange(200), np.exp(f)),
}


@pytest.mark.parametrize("name", PROBABILITIES)
@pytest.mark.parametrize("size", [0.05, 0.5, 1.0])
def test_printed_formulas(name, size):
    """FedGVI, appendix D.1 and equation 8, with the constants of our docstrings."""
    f, y = np.linspace(-2, 2, NUM_ROWS), np.arange(NUM_ROWS) % 2
    beta, gamma, cross_entropy = pulls(name, size, f[:, None], y)[:3, :, 0]
    every = np.stack([PROBABILITIES[name](value) for value in f])
    p, integral, power = every[np.arange(NUM_ROWS), y], np.sum(every ** (1 + size), axis=1), 1 + size
    np.testing.assert_allclose(beta, -(p**size) / size + integral / (1 + size) + 1 / size - 1, rtol=1e-9)
    printed = -power / (power - 1) * p ** (power - 1) / integral ** ((power - 1) / power)
    np.testing.assert_allclose(gamma, printed + power / (power - 1), rtol=1e-9)
    np.testing.assert_allclose(cross_entropy, (1 - p**size) / size, rtol=1e-9)


@pytest.mark.parametrize("size", [0.05, 0.5, 1.0])
def test_printed_formulas_of_densities(size):
    f, y, sd, power = np.linspace(-2, 2, NUM_ROWS), np.linspace(3, -1, NUM_ROWS), 0.7, 1 + size
    p = stats.norm.pdf(y, f, sd)
    line, step = np.linspace(-15 * sd, 15 * sd, 3001, retstep=True)
    integral = np.sum(stats.norm.pdf(line, 0, sd) ** power) * step
    expected = [
        -(p**size) / size + integral / power + 1 / size - 1,
        power / size * (1 - p**size / integral ** (size / power)),
    ]
    np.testing.assert_allclose(pulls("gaussian", size, f[:, None], y)[:2, :, 0], expected, rtol=1e-9)
    both = np.column_stack([f, np.full(NUM_ROWS, np.log(sd))])
    np.testing.assert_allclose(pulls("unknown noise", size, both, y)[:2, :, 0], expected, rtol=1e-9)


def test_cross_entropy_of_one_is_the_probability_of_an_error():
    f, y = np.random.default_rng(0).normal(size=(NUM_ROWS, 2)), np.arange(NUM_ROWS) % 3
    probability = np.exp(np.column_stack([np.zeros(NUM_ROWS), f]))
    right = probability[np.arange(NUM_ROWS), y] / probability.sum(axis=1)
    np.testing.assert_allclose(pulls("categorical", 1.0, f, y)[2, :, 0], 1 - right, rtol=1e-12)


FAR = np.logspace(0, 4, NUM_ROWS)
# predictors and outcomes ever less likely
UNLIKELY = {
    "gaussian": (np.zeros((NUM_ROWS, 1)), FAR),
    "unknown noise": (np.zeros((NUM_ROWS, 2)), FAR),
    "vector": (np.zeros((NUM_ROWS, 2)), np.outer(FAR, [1.0, -0.5])),
    "logit": (-FAR[:, None], np.ones(NUM_ROWS)),
    "probit": (-FAR[:, None], np.ones(NUM_ROWS)),
    "categorical": (np.outer(FAR, [0.5, -1.0]), np.full(NUM_ROWS, 2)),
    "softmax": (np.outer(FAR, [0.5, 0.7, -1.0]), np.full(NUM_ROWS, 2)),
    "poisson": (np.zeros((NUM_ROWS, 1)), np.round(FAR)),
}


# the integral of p^power at the last of them; of classes and of two outcomes it is 1 at most, and there
WHOLE = dict.fromkeys(LIKELIHOODS, lambda power: 1.0) | {
    "gaussian": lambda power: (2 * np.pi * 0.7**2) ** ((1 - power) / 2) / np.sqrt(power),
    "unknown noise": lambda power: (2 * np.pi) ** ((1 - power) / 2) / np.sqrt(power),
    "vector": lambda power: np.linalg.det(2 * np.pi * NOISE) ** ((1 - power) / 2) / power,
    "poisson": lambda power: np.sum(stats.poisson.pmf(np.arange(100), 1.0) ** power),
}


@thorough
@likelihood_of
@pytest.mark.parametrize("size", [0.3, 1.0])
def test_an_outlier_costs_and_pulls_only_so_much(name, size):
    f, y = UNLIKELY[name]
    every = pulls(name, size, f, y)
    values, slopes = every[..., 0], every[..., 1:]
    bounds = [1 / size + WHOLE[name](1 + size) / (1 + size) - 1, (1 + size) / size, 1 / size]
    for i in range(len(every) - 2):
        contract.check_bounded(values[i], slopes[i], bounds[i], values[-1], slopes[-1])


@cache
def grid(k, reach=9.0, step=0.15):
    """The trapezoid rule for a standard normal, exact to rounding for any Gaussian that is not far narrower."""
    axis = np.arange(-reach, reach + step, step)
    nodes = np.stack([a.ravel() for a in np.meshgrid(*[axis] * k, indexing="ij")], -1)
    return nodes, np.prod(stats.norm.pdf(nodes) * step, axis=1)


def on_a_grid(loss, likelihood, mean, covariance, y):
    nodes, weights = grid(mean.shape[-1])
    f = mean[:, None] + jnp.einsum("nkl,sl->nsk", jnp.linalg.cholesky(covariance), nodes)
    return loss.of_predictor(likelihood, f, y[:, None]) @ weights


@pytest.mark.parametrize("k", [1, 2])
@settings(max_examples=5, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**20))
@thorough
def test_closed_forms_of_the_expected_loss(k, seed):
    """For Gaussian noise, where q enters through its mean and its variance; and their limit."""
    rng = np.random.default_rng(seed)
    root = np.tril(rng.normal(size=(5, k, k)), -1) * 0.4 + np.eye(k) * rng.uniform(0.2, 0.8, (5, 1, k))
    moments = rng.normal(size=(5, k)), root @ np.swapaxes(root, 1, 2)
    y, noise = 2 * rng.normal(size=(5, k)), rng.uniform(0.5, 1.5)
    likelihood = GaussianNoise(noise) if k == 1 else GaussianVector(jnp.asarray(np.linalg.cholesky(noise * NOISE)))
    case = likelihood, *(jnp.asarray(part) for part in (*moments, y[:, 0] if k == 1 else y))
    losses = [NegativeLogLikelihood(), Beta(rng.uniform(0.01, 1.5)), Gamma(rng.uniform(1.01, 2.5))]
    plain, *_ = contract.check_expected(losses, *case, on_a_grid, rtol=1e-9)
    near = contract.check_expected([losses[0], Beta(1e-7), Gamma(1 + 1e-7)], *case, on_a_grid, rtol=1e-9)
    np.testing.assert_allclose(near, plain, rtol=1e-4)


def test_no_closed_form_where_there_is_none():
    moments = jnp.zeros((2, 1)), jnp.ones((2, 1, 1)), jnp.ones(2)
    for loss in [NegativeLogLikelihood(), *robust(BernoulliLogit(), 0.5), Tempered(2.0), Tempered(2.0, Beta(0.5))]:
        assert loss.expected(BernoulliLogit(), *moments) is None


def test_tempering_scales_everything():
    model = model_of("gaussian")
    batch = (jnp.array([[1.0, -1.0], [0.3, 0.5]]), jnp.array([3.0, -1.0]))
    theta, moments = jnp.array([0.2, -0.4, 1.0]), (jnp.array([[0.3], [1.0]]), jnp.array([[[0.5]], [[1.5]]]))
    f, y = model.predictor(theta, batch)
    for loss in (NegativeLogLikelihood(), Beta(0.5)):
        tempered = Tempered(0.25, loss)
        plain, expected = loss(model, theta, batch), loss.expected(model.likelihood, *moments, y)
        np.testing.assert_allclose(tempered(model, theta, batch), 0.25 * plain, rtol=1e-14)
        np.testing.assert_allclose(tempered.of_predictor(model.likelihood, f, y), 0.25 * plain, rtol=1e-12)
        np.testing.assert_allclose(tempered.expected(model.likelihood, *moments, y), 0.25 * expected, rtol=1e-14)
        assert tempered.needs_proper_cavity == loss.needs_proper_cavity


def test_powers_of_the_likelihood():
    """None where the loss is not a multiple of the negative log likelihood."""
    scores = ScoreMatching(SquaredExponential(2.0))
    assert NegativeLogLikelihood().likelihood_power == 1
    assert scores.likelihood_power == 1
    assert Tempered(0.25).likelihood_power == 0.25
    assert Tempered(0.25, Tempered(3.0)).likelihood_power == 0.75
    assert Tempered(0.25, scores).likelihood_power == 0.25
    for loss in (*robust(BernoulliLogit(), 0.5), Tempered(0.25, Beta(0.5))):
        assert loss.likelihood_power is None


MODELS = {
    "linear": (
        linear_regression(2, noise_sd=0.8, covariance=DiagonalGaussian),
        [Beta(0.6), Gamma(1.4), Tempered(0.3, Beta(0.6)), ScoreMatching(SquaredExponential(2.0))],
    ),
    "logistic": (
        logistic_regression(2, covariance=DiagonalGaussian),
        [GeneralisedCrossEntropy(0.7), Tempered(0.3, Gamma(1.4))],
    ),
}


@cache
def seen(name):
    """In a cavity, with the rows that each loss sees there; and what quadrature over all rows says."""
    model, losses = MODELS[name]
    this = problem(model, pad(rows(2), NUM_PADDED))
    views = [loss.in_context(model, this.cavity, this.data) for loss in losses]
    problems = [replace(this, loss=loss, data=data) for loss, data in views]
    exact = jax.jit(lambda: jnp.stack([Exact()(jax.random.key(0), each, each.start) for each in problems]))
    return problems, np.asarray(exact())


@thorough
@pytest.mark.parametrize(
    ("model", "estimator", "batch_size"),
    [
        ("linear", ParameterDraws(4), 5),
        ("linear", LocalDraws(1), None),
        ("logistic", LocalDraws(4), 5),
        ("logistic", ParameterDraws(1), None),
    ],
    ids=str,
)
def test_neither_samples_nor_batches_matter(model, estimator, batch_size):
    """On average over keys each loss is what quadrature over all rows says, whatever the padding and the weights."""
    problems, reference = seen(model)

    def estimate(key):
        batch_key, draw_key = jax.random.split(key)
        for each in problems:
            data = each.data if batch_size is None else mini_batch(batch_key, each.data, batch_size)
            yield estimator(draw_key, replace(each, data=data), each.start)

    mean, error = mean_and_error(jax.jit(jax.vmap(lambda key: jnp.stack([*estimate(key)])))(keys(0)))
    np.testing.assert_array_less(np.abs(mean - reference), 4 * error)
    # a missing factor of 50 / 64 (padding counted), or weights of 1 for their mean of 1.5, would show
    assert (4 * error < 0.1 * np.abs(reference)).all()
