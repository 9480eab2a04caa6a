"""Means, covariances and intervals of parameters whose logs are Gaussian."""

import numpy as np
import pytest

from cavity.models.glm.auxiliary import Auxiliary, auxiliary_scale, threshold_scale

MEAN = np.array([0.4, -1.2, 0.3, -0.5])
ROOT = np.tril(0.2 * np.random.default_rng(0).normal(size=(4, 4)), -1) + np.diag([0.3, 0.2, 0.4, 0.25])
COVARIANCE = ROOT @ ROOT.T
SHAPE = auxiliary_scale(
    ("intercept", "age", "log_sigma", "log_df"),
    ("", "log_sigma", "log_df"),
    (False, True, True),
    (Auxiliary("sigma", True), Auxiliary("df")),
)
THRESHOLDS = threshold_scale(("intercept", "age", "log_gap[b|c]", "log_gap[c|d]"), ("a|b", "b|c", "c|d"))


def drawn(num=400_000):
    return MEAN + np.random.default_rng(1).normal(size=(num, 4)) @ ROOT.T


def test_names_and_values():
    assert SHAPE.names == ("intercept", "age", "sigma", "df")
    np.testing.assert_allclose(SHAPE.apply(MEAN), [0.4, -1.2, np.exp(0.3), np.exp(-0.5)])
    assert THRESHOLDS.names == ("a|b", "b|c", "c|d", "age")
    first, second = -0.4 + np.exp(0.3), -0.4 + np.exp(0.3) + np.exp(-0.5)
    np.testing.assert_allclose(THRESHOLDS.apply(MEAN), [-0.4, first, second, -1.2])


@pytest.mark.parametrize("scale", [SHAPE, THRESHOLDS], ids=["shape", "thresholds"])
def test_moments_and_intervals_are_those_of_draws(scale):
    draws = scale.apply(drawn())
    mean, covariance = scale.moments(MEAN, COVARIANCE)
    error = draws.std(0) / np.sqrt(len(draws))
    assert np.all(np.abs(mean - draws.mean(0)) < 5 * error)
    np.testing.assert_allclose(covariance, np.cov(draws, rowvar=False), rtol=0.02, atol=2e-3)
    lower, upper = scale.interval(MEAN, COVARIANCE, 0.9)
    expected = np.quantile(draws, [0.05, 0.95], axis=0)
    np.testing.assert_allclose([lower, upper], expected, atol=0.03)


def test_an_interval_of_one_exponential_is_exact():
    lower, upper = SHAPE.interval(MEAN, COVARIANCE, 0.95)
    half = 1.959963984540054 * np.sqrt(COVARIANCE[2, 2])
    np.testing.assert_allclose([lower[2], upper[2]], np.exp([0.3 - half, 0.3 + half]), rtol=1e-9)


def test_parameters_reported_as_logs_have_no_scale():
    assert auxiliary_scale(("intercept", "log_noise_sd"), ("", "log_noise_sd"), (False, True), (Auxiliary(""),)) is None


def test_further_parameters_are_reported_as_they_are():
    names = ("intercept", "age", "log_gap[b|c]", "log_tau")
    found = threshold_scale(names, ("a|b", "b|c"), num_others=1)
    assert found.names == ("a|b", "b|c", "age", "log_tau")
    np.testing.assert_allclose(found.apply(np.array([0.4, 1.0, 0.0, -2.0])), [-0.4, 0.6, 1.0, -2.0])
