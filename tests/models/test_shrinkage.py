"""Priors outside the family on the coefficients of a regression: SciPy's densities, grids, and pooled VI by BFGS."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize

import cavity
from cavity.distributions import DiagonalGaussian, FullGaussian, IsotropicGaussian
from cavity.errors import CavityError
from cavity.losses import Tempered
from cavity.models import CommonScale, Horseshoe, Laplace, linear_regression, logistic_regression, with_shrinkage_prior
from cavity.models.numpyro.globals_only import SERVER
from tests import scenarios
from tests.gaussian_vi import closest_gaussian
from tests.marks import exhaustive, thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")


def log_half_cauchy(log_value, scale=1.0):
    return stats.halfcauchy(scale=scale).logpdf(np.exp(log_value)) + log_value


def laplace(beta):
    return stats.laplace(scale=0.7).logpdf(beta).sum(-1)


def common_scale(theta):
    log_sd = theta[..., -1]
    normal = stats.norm(0, np.exp(log_sd)[..., None]).logpdf(theta[..., :-1]).sum(-1)
    return normal + stats.halfnorm(scale=0.7).logpdf(np.exp(log_sd)) + log_sd


def horseshoe(theta):
    num = theta.shape[-1] // 2
    beta, local, tau = theta[..., :num], theta[..., num:-1], theta[..., -1]
    normal = stats.norm(0, np.exp(local + tau[..., None])).logpdf(beta).sum(-1)
    return normal + log_half_cauchy(local).sum(-1) + log_half_cauchy(tau, 0.7)


PRIORS = {"laplace": (Laplace(0.7), laplace, 2), "common": (CommonScale(0.7), common_scale, 3)}
PRIORS["horseshoe"] = (Horseshoe(0.7), horseshoe, 5)
prior_of = pytest.mark.parametrize("name", PRIORS)


@prior_of
def test_densities_are_those_of_scipy(name):
    prior, expected, size = PRIORS[name]
    theta = np.random.default_rng(0).normal(size=(20, size))
    np.testing.assert_allclose(jax.vmap(prior.log_prob)(jnp.asarray(theta)), expected(theta), rtol=1e-10)


@prior_of
def test_expectations_are_means_over_draws(name):
    prior, log_density, size = PRIORS[name]
    rng = np.random.default_rng(1)
    root = np.tril(0.3 * rng.normal(size=(size, size)), -1) + 0.4 * np.eye(size)
    mean = 0.5 * rng.normal(size=size)
    values = log_density(mean + rng.normal(size=(400_000, size)) @ root.T)
    found = prior.expected_log_prob(jnp.asarray(mean), jnp.asarray(root @ root.T))
    assert float(found) == pytest.approx(values.mean(), abs=4 * values.std() / np.sqrt(len(values)))


X1, Y1 = np.array([0.3, -1.2, 0.8, 1.5, -0.4, 0.1, 2.0]), np.array([0.5, -0.9, 0.1, 1.1, 0.2, -0.6, 0.7])
PARTS = {"pooled": [np.arange(7)], "three": [np.array([0]), np.array([1, 2, 3]), np.array([4, 5, 6])]}


@cache
def one_slope(kind, scale, partition):
    model = with_shrinkage_prior(linear_regression(1, noise_sd=1.0, intercept=False), kind(scale))
    clients = scenarios.clients(X1[:, None], Y1, PARTS[partition])
    return cavity.run(cavity.PVI(model), clients, rounds=500, tolerance=1e-13)


def log_likelihood(beta):
    return stats.norm(np.multiply.outer(beta, X1), 1.0).logpdf(Y1).sum(-1)


def closest_to_kinked(log_joint):
    """The best Gaussian by Gauss-Legendre sums on either side of zero, where the density has a kink."""
    nodes, weights = np.polynomial.legendre.leggauss(200)

    def objective(free):
        mean, sd, total = free[0], np.exp(free[1]), 0.0
        for low, high in ((mean - 10 * sd, 0.0), (0.0, mean + 10 * sd)):
            beta = low + (high - low) * (nodes + 1) / 2
            total += (high - low) / 2 * weights @ (stats.norm(mean, sd).pdf(beta) * log_joint(beta))
        return -total - free[1]

    found = minimize(objective, [0.1, -1.5], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
    return found.x[0], np.exp(found.x[1])


@pytest.mark.parametrize("partition", PARTS)
@thorough
def test_laplace_is_the_best_gaussian_of_a_grid(partition):
    fit = one_slope(Laplace, 0.2, partition)

    def log_joint(beta):
        return log_likelihood(beta) + stats.laplace(scale=0.2).logpdf(beta)

    mean, sd = closest_to_kinked(log_joint)
    assert float(fit.posterior.mean[0]) == pytest.approx(mean, abs=1e-5)
    assert float(jnp.sqrt(fit.posterior.variance[0])) == pytest.approx(sd, abs=1e-5)
    grid = np.linspace(-3, 3, 60_001)
    density = np.exp(log_joint(grid))
    evidence = np.log(np.trapezoid(density, grid))
    log_q = stats.norm(mean, sd).logpdf(grid)
    missing = np.trapezoid(np.exp(log_q) * (log_q - log_joint(grid)), grid) + evidence
    assert fit.log_evidence == pytest.approx(evidence - missing, abs=1e-5)
    # and close to the posterior itself, not to that of a Gaussian prior of this variance
    posterior_mean = np.trapezoid(density * grid, grid) / np.exp(evidence)
    assert mean == pytest.approx(posterior_mean, abs=0.05 * sd)


@exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("partition", PARTS)
def test_a_horseshoe_is_pooled_vi(partition):
    """Slope, local scale and tau by a Gauss-Hermite grid in three dimensions."""
    fit = one_slope(Horseshoe, 0.7, partition)
    mean, covariance = closest_gaussian(
        lambda theta: log_likelihood(theta[:, 0]) + horseshoe(theta), np.zeros(3), np.array([0.3, 1.0, 1.0])
    )
    np.testing.assert_allclose(fit.posterior.mean, mean, atol=2e-4)
    np.testing.assert_allclose(fit.posterior.covariance, covariance, atol=5e-4)


@cache
def several(name, partition, family=FullGaussian):
    problem = scenarios.logistic(num_rows=90, num_features=3)
    parts = [np.arange(90)] if partition == "pooled" else scenarios.label_sorted(problem.y, 3)
    model = with_shrinkage_prior(logistic_regression(3, covariance=family), PRIORS[name][0])
    clients = scenarios.clients(problem.x, problem.y, parts)
    return cavity.run(cavity.PVI(model), clients, rounds=500, tolerance=1e-10), problem


@exhaustive
@pytest.mark.slow
@prior_of
def test_the_partition_does_not_matter(name):
    fit, pooled = several(name, "sorted")[0], several(name, "pooled")[0]
    assert fit.converged
    assert cavity.kl(fit.posterior, pooled.posterior) < 1e-6
    assert fit.log_evidence == pytest.approx(pooled.log_evidence, abs=1e-5)
    assert SERVER in fit.server.entries


@pytest.mark.slow
def test_weights_are_those_of_the_true_prior():
    """Intercept N(0, 2.5^2), slopes with the horseshoe; the base has dropped out."""
    fit, problem = several("horseshoe", "sorted")
    weights = fit.importance_weights(50)
    theta = weights.draws
    f = theta[:, :4] @ np.column_stack([np.ones(90), problem.x]).T
    joint = np.sum(problem.y * f - np.logaddexp(0, f), axis=1) + stats.norm(0, 2.5).logpdf(theta[:, 0])
    q = stats.multivariate_normal(np.asarray(fit.posterior.mean), np.asarray(fit.posterior.covariance))
    np.testing.assert_allclose(weights.log_weights, joint + horseshoe(theta[:, 1:]) - q.logpdf(theta), atol=1e-8)
    assert fit.predict(np.zeros((2, 3))).mean.shape == (2,)
    assert "prior sd from the prior mean" not in str(fit.summary())


@pytest.mark.slow
def test_mean_field_settles_too():
    fit, _ = several("common", "sorted", DiagonalGaussian)
    assert fit.converged
    assert cavity.kl(fit.posterior, several("common", "pooled", DiagonalGaussian)[0].posterior) < 1e-6


def test_names_and_places():
    model = with_shrinkage_prior(linear_regression(["dose"]), Horseshoe(1.0))
    assert model.parameter_names == ("intercept", "dose", "log_noise_sd", "log_local[dose]", "log_tau")
    assert model.places == (1, 3, 4)
    classes = with_shrinkage_prior(cavity.models.softmax_regression(["dose"], 3), Laplace(1.0))
    assert [classes.parameter_names[i] for i in classes.places] == ["class 1: dose", "class 2: dose"]


@thorough
def test_what_does_not_fit_is_reported():
    regression = logistic_regression(2)
    with pytest.raises(CavityError, match="scale of a prior must be positive"):
        Laplace(-1.0)
    with pytest.raises(CavityError, match="give a regression and a prior"):
        with_shrinkage_prior(Laplace(1.0), regression)
    with pytest.raises(CavityError, match="full or diagonal"):
        with_shrinkage_prior(logistic_regression(2, covariance=IsotropicGaussian), Laplace(1.0))
    with pytest.raises(CavityError, match="no slopes"):
        with_shrinkage_prior(logistic_regression([]), Laplace(1.0))
    with pytest.raises(CavityError, match="goes with PVI"):
        cavity.FedGVI(with_shrinkage_prior(regression, Laplace(1.0)), Tempered(0.5))
    with pytest.raises(CavityError, match="the prior is not a client"):
        one_slope(Laplace, 0.2, "three").withdraw(SERVER)
