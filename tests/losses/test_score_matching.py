"""Weighted score matching against its definition by automatic differentiation in y, and as ordinary Gaussian rows."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavity.core import Data
from cavity.distributions import FullGaussian
from cavity.errors import CavityError
from cavity.losses import InverseMultiQuadric, NegativeLogLikelihood, ScoreMatching, SquaredExponential, Tempered
from cavity.models import linear_regression, normal_location
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

NOISE_SD = 0.7
COVARIANCE = np.array([[1.0, 0.5, -0.2], [0.5, 0.9, 0.1], [-0.2, 0.1, 0.6]])
MODELS = {
    "regression": linear_regression(2, noise_sd=NOISE_SD),
    "location": normal_location(3, noise_covariance=COVARIANCE),
}
KERNELS = {
    "squared exponential": lambda width: SquaredExponential(width),
    "inverse multi-quadric": lambda width: InverseMultiQuadric(width),
    "slow": lambda width: InverseMultiQuadric(width, 0.25),
}
model_of = pytest.mark.parametrize("model", MODELS)
kernel_of = pytest.mark.parametrize("kernel", KERNELS)


def weight(kernel, m):
    """K, the square of what FedGVI prints, as a function of the squared distance."""
    if isinstance(kernel, SquaredExponential):
        return jnp.exp(-m / (2 * kernel.width**2)) ** 2
    return (1 + m / (2 * kernel.a * kernel.width**2)) ** (-2 * kernel.a)


def random_rows(name, seed, n=6):
    """Rows, some far off, with weights; a centre; and a theta."""
    rng = np.random.default_rng(seed)
    y = 2 * rng.normal(size=(n, 3)) if name == "location" else 2 * rng.normal(size=n)
    batch = jnp.asarray(y) if name == "location" else (jnp.asarray(rng.normal(size=(n, 2))), jnp.asarray(y))
    data = Data(batch, jnp.asarray(rng.uniform(0, 3, n)), jnp.asarray(n))
    return data, jnp.asarray(rng.normal(size=3)), jnp.asarray(rng.normal(size=3))


@eqx.filter_jit
def by_definition(kernel, model, centre, theta, batch):
    """|w' s|^2 + 2 div_y(w w' s) of each row, with w w' = K S / 2."""
    is_location = not isinstance(batch, tuple)
    covariance = jnp.asarray(COVARIANCE if is_location else [[NOISE_SD**2]])

    def of_row(row):
        x, y = (None, row) if is_location else (row[0], row[1][None])

        def predicted(theta):
            return theta if is_location else theta[:1] + x @ theta[1:]

        def log_p(y):
            z = y - predicted(theta)
            return -0.5 * z @ jnp.linalg.solve(covariance, z)

        def squared_weight(y):
            e = y - predicted(centre)
            return 0.5 * weight(kernel, e @ jnp.linalg.solve(covariance, e)) * covariance

        score = jax.grad(log_p)
        divergence = jnp.trace(jax.jacfwd(lambda y: squared_weight(y) @ score(y))(y))
        return score(y) @ squared_weight(y) @ score(y) + 2 * divergence

    return jax.vmap(of_row)(batch)


@eqx.filter_jit
def around(kernel, model, centre, theta, batch):
    return ScoreMatching(kernel).around(model, centre, theta, batch)


def random_cases(test):
    """For every model and kernel, some random rows and widths of the kernel."""
    some = given(seed=st.integers(0, 2**20), width=st.floats(0.5, 5))(test)
    return model_of(kernel_of(settings(max_examples=4, deadline=None, derandomize=True)(some)))


@thorough
@random_cases
def test_the_definition(model, kernel, seed, width):
    data, centre, theta = random_rows(model, seed)
    arguments = KERNELS[kernel](width), MODELS[model], centre, theta, data.batch
    np.testing.assert_allclose(around(*arguments), by_definition(*arguments), rtol=1e-9, atol=1e-11)


@eqx.filter_jit
def two_views(kernel, model, centre, theta, data):
    """Gradient and Hessian in theta of the loss around a centre, of the rows seen from there, and of the likelihood."""
    precision = jnp.diag(jnp.array([1.0, 2.0, 0.5]))
    loss, seen = ScoreMatching(kernel).in_context(model, FullGaussian(precision @ centre, precision), data)

    def both(total):
        return jax.grad(total)(theta), jax.hessian(total)(theta)

    return (
        both(lambda theta: data.weight @ ScoreMatching(kernel).around(model, centre, theta, data.batch)),
        both(lambda theta: seen.weight @ loss(model, theta, seen.batch)),
        both(lambda theta: -data.weight @ model.row_log_prob(theta, data.batch)),
    )


@random_cases
def test_a_client_sees_gaussian_rows(model, kernel, seed, width):
    """Whose likelihood differs from the loss by a constant: gradient and Hessian in theta are the same."""
    data, centre, theta = random_rows(model, seed)
    loss, rows, _ = two_views(KERNELS[kernel](width), MODELS[model], centre, theta, data)
    for left, right in zip(loss, rows, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9)
    # wide weights see no row as far off
    loss, rows, plain = two_views(KERNELS[kernel](1e6), MODELS[model], centre, theta, data)
    for view in (loss, rows):
        for left, right in zip(view, plain, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-8)


def test_what_is_seen_is_the_negative_log_likelihood():
    """So that the closed form applies; a tempered loss stays tempered."""
    data, centre, _ = random_rows("location", 0)
    cavity, model = FullGaussian(centre, jnp.eye(3)), MODELS["location"]
    scores = ScoreMatching(SquaredExponential(2.0))
    loss, seen = scores.in_context(model, cavity, data)
    assert isinstance(loss, NegativeLogLikelihood)
    tempered, again = Tempered(0.3, scores).in_context(model, cavity, data)
    assert isinstance(tempered.loss, NegativeLogLikelihood)
    assert tempered.likelihood_power == 0.3
    np.testing.assert_array_equal(again.weight, seen.weight)
    np.testing.assert_array_equal(again.batch, seen.batch)
    assert int(seen.num_rows) == int(data.num_rows)
    # other losses do not look at the cavity
    same, untouched = Tempered(0.3).in_context(model, cavity, data)
    assert isinstance(same.loss, NegativeLogLikelihood)
    assert untouched is data


def test_padding_stays_without_weight():
    data, centre, _ = random_rows("location", 1)
    padded = replace(data, weight=data.weight.at[-1].set(0.0))
    _, seen = ScoreMatching(InverseMultiQuadric(2.0)).in_context(
        MODELS["location"], FullGaussian(centre, jnp.eye(3)), padded
    )
    assert seen.weight[-1] == 0
    assert (seen.weight[:-1] > 0).all()


@kernel_of
def test_an_outlier_pulls_only_so_much(kernel):
    """However far off it is; under the likelihood its pull grows with its distance."""
    direction = np.array([1.0, -0.5, 0.3])
    distances = np.logspace(0, 6, 13)
    batch, origin = jnp.asarray(np.outer(distances, direction)), jnp.zeros(3)

    @jax.jit
    def pull(batch):
        scores = ScoreMatching(KERNELS[kernel](2.0))
        return jax.jacrev(lambda theta: scores.around(MODELS["location"], origin, theta, batch))(origin)

    size = np.linalg.norm(pull(batch), axis=1)
    assert size.max() < 1e-4 * distances[-1] * np.linalg.norm(np.linalg.solve(COVARIANCE, direction))
    if kernel == "slow":  # K ~ m^(-1/2): the pull of a far row neither grows nor vanishes
        np.testing.assert_allclose(size[-1], size[-3], rtol=1e-4)
    else:
        assert size[-1] < 1e-4


def test_it_is_weighed_around_a_cavity():
    data, _, theta = random_rows("location", 0)
    scores = ScoreMatching(SquaredExponential(2.0))
    with pytest.raises(CavityError, match="cavity"):
        scores(MODELS["location"], theta, data.batch)
    with pytest.raises(CavityError, match="cavity"):
        scores.of_predictor(MODELS["location"].likelihood, data.batch, data.batch)
