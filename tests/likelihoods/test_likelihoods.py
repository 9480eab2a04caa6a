"""The likelihoods by their contract, and the loss made of them."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cavity.likelihoods import (
    BernoulliLogit,
    BernoulliProbit,
    CategoricalLogit,
    GaussianNoise,
    GaussianUnknownNoise,
    PoissonLog,
)
from cavity.losses import NegativeLogLikelihood
from cavity.models import logistic_regression, softmax_regression
from tests.contracts import likelihood as contract
from tests.marks import thorough
from tests.scenarios import hermite

RNG = np.random.default_rng(0)
BINARY = (jnp.array([0.0, 1.0]), jnp.ones(2))
CLASSES = (jnp.arange(4.0), jnp.ones(4))
COUNTS = (jnp.arange(200.0), jnp.ones(200))
LINE = (jnp.linspace(-60, 60, 24001), jnp.full(24001, 120 / 24000))

# likelihood, all outcomes with their weights, some outcomes
CASES = {
    "logit": (BernoulliLogit(), BINARY, RNG.integers(0, 2, 5)),
    "probit": (BernoulliProbit(), BINARY, RNG.integers(0, 2, 5)),
    "categorical": (CategoricalLogit(4), CLASSES, RNG.integers(0, 4, 5)),
    "poisson": (PoissonLog(), COUNTS, RNG.integers(0, 9, 5)),
    "gaussian": (GaussianNoise(0.7), LINE, RNG.normal(size=5)),
    "unknown noise": (GaussianUnknownNoise(), LINE, RNG.normal(size=5)),
}
case_of = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def predictors(likelihood):
    return jnp.asarray(np.random.default_rng(1).normal(size=(5, likelihood.num_predictors)))


@thorough
@case_of
def test_normalises_with_the_right_mean(case):
    likelihood, (outcomes, weights), _ = case
    f = predictors(likelihood)
    contract.check_normalises(likelihood, f, outcomes, weights)
    contract.check_mean(likelihood, f, outcomes, weights, classes=isinstance(likelihood, CategoricalLogit))


@case_of
def test_elementwise(case):
    likelihood, _, y = case
    contract.check_elementwise(likelihood, predictors(likelihood), jnp.asarray(y, float))


def test_against_scipy():
    f, rng = np.linspace(-3, 3, 7), np.random.default_rng(2)
    column = jnp.asarray(f[:, None])
    y = rng.integers(0, 2, 7).astype(float)
    log_prob = BernoulliLogit().log_prob(column, y)
    np.testing.assert_allclose(log_prob, stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-f))), rtol=1e-12)
    np.testing.assert_allclose(
        BernoulliProbit().log_prob(column, y), stats.bernoulli.logpmf(y, stats.norm.cdf(f)), rtol=1e-9
    )
    counts = rng.integers(0, 8, 7).astype(float)
    np.testing.assert_allclose(
        PoissonLog().log_prob(column, counts), stats.poisson.logpmf(counts, np.exp(f)), rtol=1e-10
    )
    z = rng.normal(size=7)
    np.testing.assert_allclose(GaussianNoise(0.7).log_prob(column, z), stats.norm.logpdf(z, f, 0.7), rtol=1e-12)
    both = jnp.stack([column[:, 0], jnp.full(7, np.log(0.7))], -1)
    np.testing.assert_allclose(GaussianUnknownNoise().log_prob(both, z), stats.norm.logpdf(z, f, 0.7), rtol=1e-12)


@settings(max_examples=20, deadline=None)
@given(f=st.floats(-500, 500), y=st.integers(0, 1))
def test_no_overflow_in_the_tails(f, y):
    column = jnp.array([f])
    for likelihood in (BernoulliLogit(), BernoulliProbit(), CategoricalLogit(2)):
        assert jnp.isfinite(likelihood.log_prob(column, float(y)))
    # both round 1 + e^f, so they agree to the rounding of 1
    logit = BernoulliLogit().log_prob(column, float(y))
    np.testing.assert_allclose(CategoricalLogit(2).log_prob(column, float(y)), logit, rtol=1e-14, atol=1e-15)


def test_reference_class_is_the_first():
    f = jnp.array([[1.0, -2.0]])
    expected = np.exp([0.0, 1.0, -2.0]) / np.exp([0.0, 1.0, -2.0]).sum()
    np.testing.assert_allclose(CategoricalLogit(3).mean(f)[0], expected, rtol=1e-12)
    for c in range(3):
        np.testing.assert_allclose(CategoricalLogit(3).log_prob(f, jnp.array([c]))[0], np.log(expected[c]), rtol=1e-12)


MEANS, VARIANCES = (a.ravel() for a in np.meshgrid(np.linspace(-2, 2, 5), [0.1, 1.0, 4.0]))


def expected_by_quadrature(function, num_nodes=200):
    nodes, weights = hermite(num_nodes)
    return function(MEANS[:, None] + np.sqrt(VARIANCES)[:, None] * nodes) @ weights


def test_expected_means():
    exact = 1e-9
    probit = expected_by_quadrature(stats.norm.cdf)
    contract.check_expected_mean(BernoulliProbit(), jnp.asarray(MEANS), jnp.asarray(VARIANCES), probit, exact)
    rate = expected_by_quadrature(np.exp)
    contract.check_expected_mean(PoissonLog(), jnp.asarray(MEANS), jnp.asarray(VARIANCES), rate, exact)
    for likelihood in (GaussianNoise(0.7), GaussianUnknownNoise()):
        contract.check_expected_mean(likelihood, jnp.asarray(MEANS), jnp.asarray(VARIANCES), MEANS, exact)


@pytest.mark.parametrize(
    ("likelihood", "good", "bad", "remedy"),
    [
        (BernoulliLogit(), [0, 1], [0, 2], "code it as 0 and 1"),
        (BernoulliProbit(), [0, 1], [-1, 1], "code it as 0 and 1"),
        (CategoricalLogit(3), [0, 2], [1, 3], "code the 3 classes as 0 to 2"),
        (CategoricalLogit(3), [0, 2], [0.5], "code the 3 classes as 0 to 2"),
        (PoissonLog(), [0, 5], [-1, 1], "counts"),
        (PoissonLog(), [0, 5], [0.5], "counts"),
    ],
)
def test_outcomes_are_checked(likelihood, good, bad, remedy):
    contract.check_rejects(likelihood, np.array(good), np.array(bad), remedy)


def test_known_noise_may_be_a_whole_number():
    got = GaussianNoise(2).log_prob(jnp.array([[1.5]]), jnp.array([3.0]))
    np.testing.assert_allclose(got, stats.norm.logpdf(3.0, 1.5, 2.0), rtol=1e-12)


def test_any_number_is_a_gaussian_outcome():
    assert GaussianNoise(1.0).check(np.array([-1e9, 0.5])) is None
    assert GaussianUnknownNoise().check(np.array([-1e9, 0.5])) is None


@pytest.mark.parametrize("model", [logistic_regression(2), softmax_regression(2, 3)], ids=["logistic", "softmax"])
def test_loss_of_theta_is_loss_of_the_predictor(model):
    """The two faces of a loss agree, in nats, one number per row (neither summed nor averaged)."""
    rng = np.random.default_rng(3)
    x, y = jnp.asarray(rng.normal(size=(6, 2))), jnp.asarray(rng.integers(0, 2, 6), float)
    theta = jnp.asarray(rng.normal(size=model.prior.dimension))
    loss = NegativeLogLikelihood()
    beta = np.asarray(theta).reshape(-1, 3)
    f = jnp.asarray(np.column_stack([np.ones(6), x]) @ beta.T)
    np.testing.assert_allclose(loss(model, theta, (x, y)), loss.of_predictor(model.likelihood, f, y), rtol=1e-12)
    np.testing.assert_allclose(loss(model, theta, (x, y)), -model.row_log_prob(theta, (x, y)), rtol=1e-12)
    assert loss(model, theta, (x, y)).shape == (6,)


@pytest.mark.parametrize(("mean", "variance"), [(-5.0, 0.5), (6.0, 0.3), (0.3, 4.0)])
def test_the_expected_share_of_a_rare_outcome(mean, variance):
    """The probit approximation is a fifth too large at the first of these."""
    f = np.linspace(mean - 12 * np.sqrt(variance), mean + 12 * np.sqrt(variance), 200_001)
    density = np.exp(-0.5 * (f - mean) ** 2 / variance)
    expected = np.sum(density / (1 + np.exp(-f))) / np.sum(density)
    found = BernoulliLogit().expected_mean(jnp.array([mean]), jnp.array([variance]))
    np.testing.assert_allclose(found, [expected], rtol=1e-6)
