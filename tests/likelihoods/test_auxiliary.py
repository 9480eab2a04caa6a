"""Likelihoods with parameters beside the linear predictor, and those with other links, against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from cavity.core import OutcomeDraws
from cavity.likelihoods import (
    BernoulliCloglog,
    BernoulliLogit,
    BernoulliProbit,
    BinomialTrials,
    GammaLog,
    NegativeBinomialLog,
    OrdinalLogit,
    OrdinalProbit,
    StudentTUnknownScale,
)
from tests.contracts import likelihood as contract
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

RNG = np.random.default_rng(0)
F = RNG.normal(size=(6, 4))
COUNTS = np.array([0.0, 1.0, 3.0, 15.0, 17.0, 300.0])
AMOUNTS = np.array([0.001, 0.2, 1.0, 3.0, 40.0, 12_000.0])
LEVELS = np.array([0, 1, 2, 3, 4, 2])


def cloglog(f):
    return -np.expm1(-np.exp(f[:, 0]))


def ordinal_probabilities(cdf, f, num_levels):
    """Of every level, from thresholds that start at 0; the smaller tail keeps its digits."""
    gaps = np.cumsum(np.exp(f[:, 1 : num_levels - 1]), axis=1)
    ends = np.full((len(f), 1), np.inf)
    at = np.column_stack([-ends, -f[:, 0], gaps - f[:, :1], ends])
    return np.where(at[:, 1:] + at[:, :-1] > 0, cdf(-at[:, :-1]) - cdf(-at[:, 1:]), cdf(at[:, 1:]) - cdf(at[:, :-1]))


# likelihood, outcomes, log p by SciPy
CASES = {
    "cloglog": (BernoulliCloglog(), [0, 1, 1, 0, 1, 0], lambda f, y: stats.bernoulli.logpmf(y, cloglog(f))),
    "gamma": (
        GammaLog(),
        AMOUNTS,
        lambda f, y: stats.gamma.logpdf(y, np.exp(f[:, 1]), scale=np.exp(f[:, 0] - f[:, 1])),
    ),
    "negative binomial": (
        NegativeBinomialLog(),
        COUNTS,
        lambda f, y: stats.nbinom.logpmf(y, np.exp(f[:, 1]), 1 / (1 + np.exp(f[:, 0] - f[:, 1]))),
    ),
    "student t": (
        StudentTUnknownScale(3.0),
        AMOUNTS,
        lambda f, y: stats.t.logpdf(y, 3.0, f[:, 0], np.exp(f[:, 1])),
    ),
    "student t, unknown degrees": (
        StudentTUnknownScale(None),
        AMOUNTS,
        lambda f, y: stats.t.logpdf(y, np.exp(f[:, 2]), f[:, 0], np.exp(f[:, 1])),
    ),
    "ordinal logit": (
        OrdinalLogit(5),
        LEVELS,
        lambda f, y: np.log(ordinal_probabilities(special.expit, f, 5)[np.arange(6), y]),
    ),
    "ordinal probit": (
        OrdinalProbit(5),
        LEVELS,
        lambda f, y: np.log(ordinal_probabilities(special.ndtr, f, 5)[np.arange(6), y]),
    ),
}
case_of = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@thorough
@case_of
def test_log_prob_is_that_of_scipy(case):
    likelihood, y, expected = case
    for stretch in (0.3, 1.0, *([] if likelihood.has_classes else [2.5])):  # also shapes above 16
        f = stretch * F[:, : likelihood.num_predictors] + (stretch - 1.0)
        found = likelihood.log_prob(jnp.asarray(f), jnp.asarray(np.asarray(y, float)))
        np.testing.assert_allclose(found, expected(f, np.asarray(y)), rtol=1e-9, atol=1e-9)


@thorough
@case_of
def test_rows_are_independent_of_the_shape_of_the_batch(case):
    likelihood, y, _ = case
    f = jnp.asarray(F[:, : likelihood.num_predictors])
    contract.check_elementwise(likelihood, f, jnp.asarray(np.asarray(y, float)))


@thorough
@case_of
def test_single_precision_keeps_the_digits_of_gradients(case):
    likelihood, y, _ = case
    for shift in (0.0, 1.0 if likelihood.has_classes else 5.0):
        f = F[:, : likelihood.num_predictors] + shift

        @jax.jit
        def slope(f, y):
            return jax.grad(lambda f: jnp.sum(likelihood.log_prob(f, y)))(f)

        exact = slope(jnp.asarray(f), jnp.asarray(np.asarray(y, float)))
        single = slope(jnp.asarray(f, jnp.float32), jnp.asarray(np.asarray(y), jnp.float32))
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, exact, rtol=2e-4, atol=2e-3)


@thorough
@case_of
def test_drawn_outcomes_have_the_mean(case):
    likelihood, _, _ = case
    assert isinstance(likelihood, OutcomeDraws)
    at = jnp.array([0.4, -0.5, 1.0, -0.5])[: likelihood.num_predictors]
    f = jnp.broadcast_to(at, (20_000, len(at)))
    drawn = np.asarray(likelihood.draw(jax.random.key(0), f))
    assert likelihood.check(drawn) is None
    if isinstance(likelihood, (OrdinalLogit, OrdinalProbit)):
        drawn = np.eye(5)[drawn]
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert np.all(np.abs(drawn.mean(axis=0) - np.asarray(likelihood.mean(f)[0])) < 4 * error + 1e-12)


def test_large_shapes_are_the_poisson_and_the_normal_distribution():
    f = jnp.array([[np.log(4.0), 25.0]])
    found = NegativeBinomialLog().log_prob(f, jnp.array([7.0]))
    np.testing.assert_allclose(found, stats.poisson.logpmf(7, 4.0), rtol=1e-8)
    single = NegativeBinomialLog().log_prob(f.astype(jnp.float32), jnp.array([7.0], jnp.float32))
    np.testing.assert_allclose(single, stats.poisson.logpmf(7, 4.0), rtol=1e-5)
    shape = 1e6
    found = GammaLog().log_prob(jnp.array([[np.log(5.0), np.log(shape)]]), jnp.array([5.003]))
    np.testing.assert_allclose(found, stats.gamma.logpdf(5.003, shape, scale=5.0 / shape), rtol=1e-7)


@thorough
@pytest.mark.parametrize("likelihood", [OrdinalLogit(3), OrdinalProbit(3)], ids=["logit", "probit"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_narrow_and_distant_levels_have_finite_slopes(likelihood, dtype):
    both = jax.jit(jax.value_and_grad(likelihood.log_prob))
    for f in ([0.0, -9.0], [12.0, -4.0], [-12.0, 1.0], [30.0, 3.0]):
        for y in (0.0, 1.0, 2.0):
            value, slope = both(jnp.array(f, dtype), jnp.asarray(y, dtype))
            assert np.isfinite(value)
            assert np.isfinite(slope).all()
    # a narrow level: its probability is the width times the density
    density = stats.norm.pdf(0.7) if isinstance(likelihood, OrdinalProbit) else stats.logistic.pdf(0.7)
    found = likelihood.log_prob(jnp.array([0.7, np.log(1e-6)], dtype), 1.0)
    np.testing.assert_allclose(found, np.log(1e-6 * density), rtol=1e-6)


def test_a_binomial_is_its_trials_one_by_one():
    successes, trials = np.array([0.0, 2.0, 5.0, 30.0]), np.array([3.0, 2.0, 9.0, 100.0])
    y = jnp.stack([jnp.asarray(successes), jnp.asarray(trials)], axis=-1)
    f = jnp.array([[-2.0], [0.3], [0.1], [-1.0]])
    for trial in (BernoulliLogit(), BernoulliProbit(), BernoulliCloglog()):
        found = BinomialTrials(trial).log_prob(f, y)
        p = np.asarray(trial.mean(f))
        np.testing.assert_allclose(found, stats.binom.logpmf(successes, trials, p), rtol=1e-9)
        np.testing.assert_allclose(BinomialTrials(trial).mean(f), p, rtol=1e-12)
        grid = BinomialTrials(trial).log_prob(jnp.stack([f, f + 0.5], axis=1), y[:, None])
        np.testing.assert_allclose(grid[:, 0], found, rtol=1e-12)


def test_expected_means():
    mean, variance = jnp.array([-1.0, 0.5]), jnp.array([0.2, 1.0])
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    at = np.asarray(mean)[:, None] + np.sqrt(variance)[:, None] * nodes
    event = (-np.expm1(-np.exp(at))) @ weights / weights.sum()
    contract.check_expected_mean(BernoulliCloglog(), mean, variance, event, 1e-7)
    for likelihood in (GammaLog(), NegativeBinomialLog()):
        contract.check_expected_mean(likelihood, mean, variance, np.exp(mean + variance / 2), 1e-9)


def test_integral_of_a_power_of_a_gamma_density():
    f, power = np.array([0.3, 0.8]), 1.5
    y = np.linspace(1e-6, 60, 600_001)
    density = stats.gamma.pdf(y, np.exp(f[1]), scale=np.exp(f[0] - f[1]))
    expected = np.log(np.trapezoid(density**power, y))
    np.testing.assert_allclose(GammaLog().log_power_integral(jnp.asarray(f), power), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("likelihood", "good", "bad", "remedy"),
    [
        (GammaLog(), [0.1, 5], [0.0, 1.0], "Leave these rows out"),
        (NegativeBinomialLog(), [0, 5], [-1, 1], "counts"),
        (NegativeBinomialLog(), [0, 5], [0.5, 1], "counts"),
        (OrdinalLogit(3), [0, 2], [1, 3], "code the 3 classes as 0 to 2"),
        (BinomialTrials(BernoulliLogit()), [[0, 2], [2, 2]], [[3, 2]], "check which column has the trials"),
        (BinomialTrials(BernoulliLogit()), [[0, 2]], [[0.5, 2]], "must be counts"),
        (BernoulliCloglog(), [0, 1], [1, 2], "code it as 0 and 1"),
    ],
)
def test_outcomes_are_checked(likelihood, good, bad, remedy):
    contract.check_rejects(likelihood, np.array(good), np.array(bad), remedy)


def test_floors_bound_the_noise():
    at_floor = GammaLog(0.01).log_prob(jnp.array([[0.0, 40.0]]), jnp.array([1.01]))
    np.testing.assert_allclose(at_floor, stats.gamma.logpdf(1.01, 1e4, scale=1e-4), rtol=1e-6)
    at_floor = StudentTUnknownScale(4.0, 0.01).log_prob(jnp.array([[0.0, -40.0]]), jnp.array([0.02]))
    np.testing.assert_allclose(at_floor, stats.t.logpdf(0.02, 4.0, 0.0, 0.01), rtol=1e-6)
