"""Priors of standard deviations and correlations: against scipy and numpyro, and normalised on a grid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import distributions as dist
from numpyro.distributions.transforms import CorrCholeskyTransform
from scipy import stats

from cavity.models.mixed.group_priors import (
    correlation_root,
    lkj_sd,
    log_lkj_density,
    log_sd_density,
    log_sd_moments,
    num_correlations,
)
from tests.marks import thorough


@pytest.mark.parametrize("df", [None, 3.0, 7.5])
def test_sds_have_the_density_of_scipy_and_integrate_to_one(df):
    scale = jnp.array([0.4, 2.5])
    v = np.linspace(-4.0, 3.0, 9)[:, None]
    s = np.exp(v)
    expected = (stats.halfnorm.logpdf(s / scale) if df is None else np.log(2) + stats.t.logpdf(s / scale, df)) - np.log(
        scale
    )
    found = jax.vmap(lambda v: log_sd_density(v, scale, None if df is None else jnp.asarray(df)))(
        jnp.broadcast_to(v, (9, 2))
    )
    np.testing.assert_allclose(found, expected + v, rtol=1e-10)
    grid = np.linspace(-40.0, 40.0, 200_001)
    given = None if df is None else jnp.asarray(df)
    density = np.exp(log_sd_density(jnp.asarray(grid), jnp.full(grid.shape, 2.5), given))
    mean, sd = (np.asarray(moment)[0] for moment in log_sd_moments(jnp.array([2.5]), given))
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=1e-8)
    assert np.trapezoid(density * grid, grid) == pytest.approx(float(mean), abs=1e-7)
    assert np.trapezoid(density * (grid - mean) ** 2, grid) == pytest.approx(float(sd) ** 2, abs=1e-6)


def test_the_density_of_a_large_or_tiny_sd_is_finite():
    v = jnp.array([-300.0, 0.0, 300.0])
    assert np.isfinite(log_sd_density(v, jnp.ones(3), jnp.asarray(3.0))).all()
    assert np.isfinite(log_lkj_density(jnp.array([300.0]), 2, jnp.asarray(2.0)))


@pytest.mark.parametrize("eta", [1.0, 2.0, 3.7])
@pytest.mark.parametrize("size", [2, 3, 5])
@thorough
def test_correlations_have_the_density_of_numpyro(size, eta):
    v = jnp.asarray(np.random.default_rng(size).normal(size=num_correlations(size)))
    transform = CorrCholeskyTransform()
    root = transform(v)
    expected = dist.LKJCholesky(size, eta).log_prob(root) + transform.log_abs_det_jacobian(v, root)
    np.testing.assert_allclose(correlation_root(v, size), root, rtol=1e-10, atol=1e-12)
    assert float(log_lkj_density(v, size, jnp.asarray(eta))) == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize("eta", [1.0, 2.0])
def test_the_density_of_correlations_integrates_to_one(eta):
    grid = jnp.linspace(-30.0, 30.0, 60_001)[:, None]
    density = np.exp(jax.vmap(lambda v: log_lkj_density(v, 2, jnp.asarray(eta)))(grid))
    assert np.trapezoid(density, grid[:, 0]) == pytest.approx(1.0, abs=1e-8)
    variance = np.trapezoid(density * np.asarray(grid[:, 0]) ** 2, grid[:, 0])
    assert np.sqrt(variance) == pytest.approx(float(lkj_sd(2, jnp.asarray(eta))[0]), abs=1e-7)
    axis = jnp.linspace(-12.0, 12.0, 81)
    points = jnp.stack(jnp.meshgrid(axis, axis, axis), axis=-1).reshape(-1, 3)
    three = np.exp(jax.jit(jax.vmap(lambda v: log_lkj_density(v, 3, jnp.asarray(eta))))(points)).sum()
    assert three * float(axis[1] - axis[0]) ** 3 == pytest.approx(1.0, abs=1e-4)


def test_a_root_gives_a_correlation_matrix():
    root = np.asarray(correlation_root(jnp.array([0.3, -1.2, 0.7]), 3))
    np.testing.assert_allclose(np.diag(root @ root.T), 1.0, rtol=1e-12)
    assert (np.triu(root, 1) == 0).all()
    np.testing.assert_array_equal(correlation_root(jnp.zeros(0), 1), [[1.0]])
