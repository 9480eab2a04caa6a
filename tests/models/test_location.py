"""The location of normal data: its factor is sums of rows, and its posterior that of the normal equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import cavity
from cavity.core import Data
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.errors import CavityError, DataError
from cavity.likelihoods import GaussianVector
from cavity.models import NormalLocation, linear_regression, normal_location
from cavity.solvers import Conjugate, NaturalGradient

COVARIANCE = np.array([[1.0, 0.6], [0.6, 0.8]])
RNG = np.random.default_rng(0)
Y, WEIGHT = RNG.normal(size=(6, 2)) + [1.0, -2.0], RNG.uniform(0, 3, 6)


def test_its_density():
    model, theta = normal_location(2, noise_covariance=COVARIANCE), np.array([0.3, -0.5])
    expected = stats.multivariate_normal(theta, COVARIANCE).logpdf(Y)
    np.testing.assert_allclose(model.row_log_prob(jnp.asarray(theta), jnp.asarray(Y)), expected, rtol=1e-12)
    f, y = model.predictor(jnp.asarray(theta), jnp.asarray(Y))
    np.testing.assert_allclose(model.likelihood.log_prob(f, y), expected, rtol=1e-12)
    assert model.parameter_names == ("location 1", "location 2")


def test_its_factor_is_the_likelihood():
    """With weights, and the constant that makes the sum right in value."""
    model = normal_location(2, noise_covariance=COVARIANCE)
    data = Data(jnp.asarray(Y), jnp.asarray(WEIGHT), jnp.asarray(6))
    factor, constant = model.gaussian_rows.likelihood_factor(data)
    for theta in RNG.normal(size=(3, 2)):
        expected = WEIGHT @ stats.multivariate_normal(theta, COVARIANCE).logpdf(Y)
        np.testing.assert_allclose(factor.log_factor(jnp.asarray(theta)) + constant, expected, rtol=1e-12)


def test_its_posterior():
    """Is that of the normal equations, whether rows come from one client or from two; and what it predicts."""
    noise = np.linalg.inv(COVARIANCE)
    precision = np.eye(2) / 100 + 6 * noise
    mean = np.linalg.solve(precision, noise @ Y.sum(axis=0))
    model, posterior = normal_location(2, noise_covariance=COVARIANCE), normal_location(2).prior
    for rows in (Y[:2], Y[2:]):
        posterior = (
            posterior * model.gaussian_rows.likelihood_factor(Data(rows, np.ones(len(rows)), np.asarray(len(rows))))[0]
        )
    np.testing.assert_allclose(posterior.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(posterior.precision_matrix, precision, rtol=1e-9)
    prediction = model.predict(posterior, np.zeros((3, 1)), key=jax.random.key(0), num_draws=4000)
    assert prediction.mean.shape == (3, 2)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    np.testing.assert_allclose(prediction.mean, np.tile(mean, (3, 1)), atol=5 * sd.max() / np.sqrt(4000))
    np.testing.assert_allclose(prediction.sd, np.tile(sd, (3, 1)), rtol=5 / np.sqrt(2 * 4000))


def test_in_one_dimension_it_is_an_intercept():
    location, intercept = normal_location(noise_sd=0.7), linear_regression(0, noise_sd=0.7)
    rows, empty = Y[:, :1], np.zeros((6, 0))
    both = (
        location.gaussian_rows.likelihood_factor(Data(jnp.asarray(rows), jnp.asarray(WEIGHT), jnp.asarray(6))),
        (
            intercept.gaussian_rows.likelihood_factor(
                Data((jnp.asarray(empty), jnp.asarray(rows[:, 0])), jnp.asarray(WEIGHT), jnp.asarray(6))
            )
        ),
    )
    for left, right in zip(jax.tree.leaves(both[0]), jax.tree.leaves(both[1]), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)


def test_how_it_is_built():
    np.testing.assert_allclose(normal_location(2, noise_sd=[1.0, 2.0]).likelihood.root, np.diag([1.0, 2.0]))
    assert isinstance(normal_location(2, covariance=DiagonalGaussian).prior, DiagonalGaussian)
    assert isinstance(cavity.PVI(normal_location(2)).solver, Conjugate)
    assert isinstance(cavity.PVI(normal_location(2, covariance=DiagonalGaussian)).solver, NaturalGradient)
    np.testing.assert_allclose(normal_location(2, prior_scale=3.0).prior.variance, 9.0)
    prior = FullGaussian(jnp.ones(2), jnp.eye(2))
    assert normal_location(2, prior=prior).prior is prior
    for wrong, reason in (
        ({"noise_sd": 0.0}, "noise_sd must be positive"),
        ({"noise_covariance": np.eye(3)}, "symmetric 2 x 2"),
        ({"noise_covariance": [[1.0, 0.5], [0.0, 1.0]]}, "symmetric 2 x 2"),
        ({"noise_covariance": [[1.0, 2.0], [2.0, 1.0]]}, "positive definite"),
        ({"prior": FullGaussian(jnp.ones(3), jnp.eye(3))}, "the prior has dimension 3, the noise 2"),
    ):
        with pytest.raises(CavityError, match=reason):
            normal_location(2, **wrong)
    with pytest.raises(CavityError, match="dimension 2, the noise 1"):
        NormalLocation(prior, GaussianVector.from_covariance(np.eye(1)))
    with pytest.raises(DataError, match="the location has 2 entries"):
        normal_location(2).prepare(Y[:, :1])
