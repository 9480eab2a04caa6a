"""Integrals (sums) of powers of a likelihood over all outcomes, with their slopes in the predictor."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.special import ive

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
from tests.contracts import likelihood as contract
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

power_of = pytest.mark.parametrize("power", [1.0, 1.05, 2.5])


def of_probabilities(probabilities, scores, power):
    """Log sum p^c, and its slope: the mean of c times the score, under weights p^c. Axes: rows, outcomes(, k)."""
    weights = probabilities**power
    total = weights.sum(axis=1)
    return np.log(total), power * np.sum(weights[..., None] * scores, axis=1) / total[:, None]


@power_of
def test_two_outcomes(power):
    f = np.linspace(-4, 4, 9)
    p = stats.logistic.cdf(np.column_stack([-f, f]))
    scores = np.stack([-p[:, 1], p[:, 0]], axis=1)[..., None]
    contract.check_power_integral(BernoulliLogit(), jnp.asarray(f[:, None]), power, *of_probabilities(p, scores, power))
    p, slope = stats.norm.cdf(np.column_stack([-f, f])), stats.norm.pdf(f)[:, None]
    scores = (slope * [-1, 1] / p)[..., None]
    contract.check_power_integral(
        BernoulliProbit(), jnp.asarray(f[:, None]), power, *of_probabilities(p, scores, power)
    )


@power_of
def test_classes(power):
    f = np.random.default_rng(0).normal(size=(7, 3))
    for likelihood, k in ((CategoricalSoftmax(3), 3), (CategoricalLogit(4), 3)):
        logits = f if isinstance(likelihood, CategoricalSoftmax) else np.column_stack([np.zeros(7), f])
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        # d log p_c / d f_j = [c = j] - p_j
        scores = (np.eye(logits.shape[1]) - p[:, None])[..., -k:]
        contract.check_power_integral(likelihood, jnp.asarray(f), power, *of_probabilities(p, scores, power))


def poisson_by_a_long_sum(rate, power):
    """In extended precision, over all counts with any weight: ratios of neighbours, then a sum of 1."""
    sd = np.sqrt(rate)
    counts = np.arange(max(0, int(rate - 15 * sd) - 20), int(rate + 15 * sd) + 60).astype(np.longdouble)
    steps = np.log(np.longdouble(rate)) - np.log(counts[1:])
    logs = np.concatenate([[0], np.cumsum(steps)])
    logs -= logs.max() + np.log(np.sum(np.exp(logs - logs.max())))
    weights = np.exp(power * logs)
    return float(np.log(weights.sum())), float(power * np.sum(weights * (counts - rate)) / weights.sum())


@settings(max_examples=6, deadline=None, derandomize=True)
@given(power=st.floats(1, 4), shift=st.floats(0, 1))
def test_counts(power, shift):
    """Rates from 1e-3 to 1e6, on both sides of where the counts are taken one by one."""
    f = np.append(np.log(np.logspace(-3, 6, 18)) - 0.3 * shift, np.log([199.0, 204.0, 1e6]))
    for log_rate in f:
        rate = np.exp(log_rate)
        value, slope = poisson_by_a_long_sum(rate, power)
        # log p is a difference of numbers as large as rate * log(rate), whose rounding the slope multiplies by y - rate
        rounding = 1e-13 + 4e-16 * power * rate * (1 + abs(log_rate))
        got, got_slope = contract.log_power_integral(PoissonLog(), jnp.array([[log_rate]]), jnp.asarray(power))
        np.testing.assert_allclose(got[0], value, rtol=1e-12, atol=rounding)
        np.testing.assert_allclose(got_slope[0, 0], slope, rtol=1e-10, atol=(1 + power * np.sqrt(rate)) * rounding)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(mean=st.floats(-3, 3), log_sd=st.floats(-2, 2), power=st.floats(1, 4))
def test_densities_on_a_line(mean, log_sd, power):
    sd = np.exp(log_sd)

    def integral(factor):
        def integrand(y):
            return stats.norm.pdf(y, mean, sd) ** power * factor((y - mean) / sd)

        return integrate.quad(integrand, mean - 12 * sd, mean + 12 * sd, epsabs=0, epsrel=1e-12)[0]

    whole = integral(lambda z: 1.0)
    # d log p / d log_sd = z^2 - 1, and by symmetry the mean has no slope
    slope = power * (integral(lambda z: z**2) / whole - 1)
    f = jnp.array([[mean, log_sd]])
    contract.check_power_integral(GaussianUnknownNoise(), f, power, np.log([whole]), [[0.0, slope]])
    contract.check_power_integral(GaussianNoise(sd), f[:, :1], power, np.log([whole]), [[0.0]])


@power_of
def test_densities_in_a_plane(power):
    covariance = np.array([[1.0, 0.6], [0.6, 0.8]])
    axis, step = np.linspace(-12, 12, 201, retstep=True)
    points = np.stack(np.meshgrid(axis, axis), -1)
    whole = np.sum(stats.multivariate_normal(np.zeros(2), covariance).pdf(points) ** power) * step**2
    f = np.random.default_rng(0).normal(size=(3, 2))
    likelihood = GaussianVector.from_covariance(covariance)
    contract.check_power_integral(likelihood, jnp.asarray(f), power, np.full(3, np.log(whole)), np.zeros((3, 2)))


def test_a_vector_of_gaussian_outcomes():
    """Its density and its mean."""
    covariance, rng = np.array([[1.0, 0.6], [0.6, 0.8]]), np.random.default_rng(0)
    likelihood, f, y = GaussianVector.from_covariance(covariance), rng.normal(size=(4, 2)), rng.normal(size=(4, 2))
    expected = [stats.multivariate_normal(f[i], covariance).logpdf(y[i]) for i in range(4)]
    np.testing.assert_allclose(likelihood.log_prob(jnp.asarray(f), y), expected, rtol=1e-12)
    np.testing.assert_array_equal(likelihood.mean(jnp.asarray(f)), f)
    white = likelihood.standardise(jnp.asarray(y - f))
    np.testing.assert_allclose(
        np.sum(white**2, axis=1), np.einsum("ni,ij,nj->n", y - f, np.linalg.inv(covariance), y - f), rtol=1e-12
    )


@thorough
def test_large_rates_keep_their_digits():
    """Beyond the sum the expansion takes over: against e^-2r I_0(2r) for the power 2, and continuous in the rate."""
    f = jnp.linspace(np.log(1e3), np.log(1e8), 30)[:, None]
    exact = np.log(ive(0, 2 * np.exp(np.asarray(f[:, 0]))))
    np.testing.assert_allclose(PoissonLog().log_power_integral(f, 2.0), exact, atol=1e-9)
    with jax.enable_x64(False):
        single = PoissonLog().log_power_integral(jnp.asarray(f, jnp.float32), jnp.float32(2.0))
    np.testing.assert_allclose(single, exact, atol=2e-5)
