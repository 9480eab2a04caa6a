"""Laplace's method as a solver: closed forms, pooled modes by scipy, and that units of parameters do not matter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import cavity
from cavity.algorithms import PVI
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.divergences import Renyi
from cavity.errors import UnsuitableError
from cavity.losses import NegativeLogLikelihood
from cavity.models import function_model, linear_regression, logistic_regression
from cavity.solvers.laplace import Laplace
from tests.marks import thorough


def rows(num_rows=90, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, 2))
    return x, (rng.random(num_rows) < 1 / (1 + np.exp(-(0.5 + x @ [1.0, -2.0])))).astype(int)


def shared(x, y, num_clients=3):
    return {f"c{i}": (x[i::num_clients], y[i::num_clients]) for i in range(num_clients)}


@thorough
def test_gaussian_rows_give_the_exact_posterior():
    x, _ = rows()
    y = x @ [1.0, -2.0] + 0.3
    model = linear_regression(2, noise_sd=0.7)
    exact = cavity.run(PVI(model), shared(x, y)).posterior
    found = cavity.run(PVI(model, solver=Laplace()), shared(x, y)).posterior
    assert cavity.kl(found, exact) < 1e-10


@thorough
@pytest.mark.parametrize("num_clients", [1, 4])
def test_the_fixed_point_is_the_pooled_laplace_approximation(num_clients):
    x, y = rows()
    model = logistic_regression(2, prior_scale=1.5)
    design = np.column_stack([np.ones(len(x)), x])
    signs = 2 * y - 1

    def downhill(theta):
        margin = signs * (design @ theta)
        value = np.logaddexp(0, -margin).sum() + 0.5 * np.sum(theta**2 / prior_variance)
        slope = -(design * (signs / (1 + np.exp(margin)))[:, None]).sum(0) + theta / prior_variance
        return value, slope

    prior_variance = np.asarray(model.prior.variance)
    mode = minimize(downhill, np.zeros(3), jac=True, tol=1e-14, options={"gtol": 1e-12}).x
    share = 1 / (1 + np.exp(-design @ mode))
    precision = design.T @ (design * (share * (1 - share))[:, None]) + np.diag(1 / prior_variance)
    fit = cavity.run(PVI(model, solver=Laplace()), shared(x, y, num_clients), tolerance=1e-12)
    np.testing.assert_allclose(fit.posterior.mean, mode, atol=1e-6)
    np.testing.assert_allclose(fit.posterior.precision, precision, rtol=1e-5)


def with_units(unit):
    """Noise of unknown size around a level, written in some unit; theta is (level, log of the noise)."""

    def log_likelihood(theta, y):
        return jax.scipy.stats.norm.logpdf(y, theta[0] * unit, jnp.exp(theta[1]))

    variance = jnp.asarray([100.0 / unit**2, 100.0])
    prior = FullGaussian.from_moments(jnp.zeros(2), jnp.diag(variance))
    return function_model(log_likelihood, np.zeros(2), prior=prior)


@pytest.mark.slow
def test_units_of_parameters_do_not_matter():
    y = np.random.default_rng(1).normal(30.0, 0.2, 60)
    clients = {"a": y[:20], "b": y[20:]}
    fits = {unit: cavity.run(PVI(with_units(unit), solver=Laplace()), clients) for unit in (1.0, 1e5, 1e-5)}
    plain = np.asarray(fits[1.0].posterior.mean)
    for unit, fit in fits.items():
        np.testing.assert_allclose(fit.posterior.mean[0] * unit, y.mean(), rtol=1e-4)
        np.testing.assert_allclose(fit.posterior.mean, plain * [1 / unit, 1.0], rtol=1e-5)
        scale = np.sqrt(np.diag(np.asarray(fit.posterior.covariance)))
        np.testing.assert_allclose(scale[0] * unit, 0.2 / np.sqrt(60), rtol=0.2)


def test_a_saddle_is_left_downhill():
    """At the start the curvature points the wrong way: -(theta^2 - 4)^2 has maxima at 2 and -2, a minimum at 0."""
    prior = FullGaussian.from_moments(jnp.asarray([0.1]), jnp.asarray([[100.0]]))
    model = function_model(lambda theta, y: -((theta[0] ** 2 - 4.0) ** 2) + 0.0 * y, np.zeros(1), prior=prior)
    fit = cavity.run(PVI(model, solver=Laplace()), {"a": np.zeros(1)})
    assert fit.posterior.mean[0] == pytest.approx(2.0, abs=1e-3)
    assert fit.posterior.precision[0, 0] == pytest.approx(32.0, rel=1e-2)


def test_a_step_into_the_impossible_is_taken_back():
    """A Newton step from 0 overflows exp; counts of e^10 are reached all the same."""
    prior = FullGaussian.from_moments(jnp.zeros(1), jnp.asarray([[1e4]]))
    model = function_model(lambda theta, y: y * theta[0] - jnp.exp(theta[0]), np.zeros(1), prior=prior)
    y = np.full(20, float(round(np.exp(10.0))))
    fit = cavity.run(PVI(model, solver=Laplace()), {"a": y})
    assert fit.posterior.mean[0] == pytest.approx(np.log(y[0]), abs=1e-5)


def test_what_it_is_not_for():
    diagonal = logistic_regression(2, covariance=DiagonalGaussian)
    with pytest.raises(UnsuitableError, match="full Gaussian"):
        PVI(diagonal, solver=Laplace())
    with pytest.raises(UnsuitableError, match="multiple of"):
        Laplace().check(logistic_regression(2), NegativeLogLikelihood(), Renyi(1.5))
