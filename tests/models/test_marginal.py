"""Local latents integrated out by Laplace's method: exact for Gaussian units, right derivatives for all."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import norm, poisson

from cavity.core import pad
from cavity.core.client_data import prepare_clients
from cavity.models.mixed.marginal import Marginal, conditional_modes, log_marginal, marginal
from cavity.models.numpyro.from_numpyro import numpyro_model
from tests.algorithms.test_sfvi import NOISE, SPREAD, exact_family, model_once, rows
from tests.marks import thorough


def counted(group, x, y, num_groups):
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", num_groups):
        own = numpyro.sample("own", dist.Normal(level, scale))
        tilt = numpyro.sample("tilt", dist.Normal(0.0, 0.5))
    numpyro.sample("y", dist.Poisson(jnp.exp(own[group] + tilt[group] * x)), obs=y)


def counts(seed=0):
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(5), 8)
    x = rng.normal(size=40)
    rate = np.exp(0.5 + rng.normal(0, 0.7, 5)[group] + 0.3 * x)
    return {"group": group, "x": x, "y": rng.poisson(rate).astype(float)}


def test_gaussian_units_give_the_exact_marginal():
    model, data = model_once(), model_once().prepare(rows())
    z = jnp.asarray([0.3, 0.9])
    start = jnp.zeros((14, 1))
    found = np.asarray(jax.jit(lambda z: log_marginal(model, None, z, start, data))(z))
    place = np.asarray(data.batch["group"])
    for u in range(14):
        mine = place == u
        gap = rows()["y"][mine] - 0.3 - 0.9 * rows()["x"][mine]
        covariance = NOISE**2 * np.eye(mine.sum()) + SPREAD**2
        _, log_det = np.linalg.slogdet(2 * np.pi * covariance)
        exact = -0.5 * gap @ np.linalg.solve(covariance, gap) - 0.5 * log_det
        assert found[u] == pytest.approx(exact, abs=1e-9)


def test_one_unit_by_quadrature():
    """A Poisson unit with one latent: Laplace's method is off by little, in the right direction for no sign error."""

    def one(y):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("units", len(y)):
            own = numpyro.sample("own", dist.Normal(level, 0.5))
            numpyro.sample("y", dist.Poisson(jnp.exp(own)), obs=y)

    data = {"y": np.array([12.0, 0.0, 3.0])}
    model = numpyro_model(one, data)
    grid = np.linspace(-8, 8, 40001)
    level = 1.3
    at = jax.jit(lambda z: log_marginal(model, None, z, jnp.zeros((3, 1)), model.prepare(data)))
    found = np.asarray(at(jnp.asarray([level])))
    for y, value in zip(data["y"], found, strict=True):
        exact = np.log(np.sum(poisson.pmf(y, np.exp(grid)) * norm.pdf(grid, level, 0.5)) * (grid[1] - grid[0]))
        assert value == pytest.approx(exact, abs=0.03)


@pytest.mark.slow
def test_derivatives_in_the_global_latents_are_those_of_the_function():
    """First and second ones against differences; the modes themselves move with Z_G."""
    model = numpyro_model(counted, counts(), unit="group", num_units="num_groups")
    data, start = model.prepare(counts()), jnp.zeros((5, 2))

    @jax.jit
    def total(z):
        return jnp.sum(log_marginal(model, None, z, start, data))

    z, h = jnp.asarray([0.4, -0.3]), 1e-4
    slope_at = jax.jit(jax.grad(total))
    gradient, hessian = slope_at(z), jax.jit(jax.hessian(total))(z)
    for i in range(2):
        step = jnp.zeros(2).at[i].set(h)
        assert gradient[i] == pytest.approx(float(total(z + step) - total(z - step)) / (2 * h), rel=1e-6)
        slope = (slope_at(z + step) - slope_at(z - step)) / (2 * h)
        np.testing.assert_allclose(hessian[i], slope, rtol=1e-5)


@pytest.mark.slow
def test_modes_move_with_the_global_latents_as_their_slopes_say():
    model = numpyro_model(counted, counts(), unit="group", num_units="num_groups")
    data, z, h = model.prepare(counts()), jnp.asarray([0.4, -0.3]), 1e-5
    modes, roots, slopes = conditional_modes(model, None, z, data)
    for i in range(2):
        step = jnp.zeros(2).at[i].set(h)
        above, below = (conditional_modes(model, None, z + sign * step, data)[0] for sign in (1, -1))
        np.testing.assert_allclose(slopes[..., i], (above - below) / (2 * h), rtol=1e-4, atol=1e-6)

    def of_one(own):
        return model.log_joint(None, z, modes.at[2].set(own), data, jax.random.key(0))[2]

    np.testing.assert_allclose(jax.grad(of_one)(modes[2]), 0.0, atol=1e-8)
    precision = -jax.hessian(of_one)(modes[2])
    np.testing.assert_allclose(roots[2] @ roots[2].T, np.linalg.inv(precision), rtol=1e-8)


def test_gaussian_units_give_the_exact_conditional():
    q, local = exact_family()
    modes, roots, slopes = conditional_modes(model_once(), None, q.mean, model_once().prepare(rows()))
    np.testing.assert_allclose(modes, local.mean, atol=1e-9)
    np.testing.assert_allclose(np.log(roots[..., 0]), local.log_scale, atol=1e-9)
    np.testing.assert_allclose(slopes, local.coupling, atol=1e-9)


@thorough
def test_padding_counts_nothing():
    found: Marginal = marginal(model_once())
    data = found.of(prepare_clients(model_once(), {"a": rows()})["a"])
    z = jnp.asarray([0.3, 0.9])

    @jax.jit
    def total(data):
        return found.log_prob(z, data)

    assert float(total(pad(data, len(data.weight) + 13, 17))) == pytest.approx(float(total(data)), abs=1e-9)


@thorough
def test_modes_of_binomial_units_are_found_from_a_start_at_even_odds():
    """NumPyro's Binomial has a wrong gradient at logits of exactly 0; against a grid."""

    def function(count, successes):
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        with numpyro.plate("units", len(count)):
            level = numpyro.sample("level", dist.Normal(mu, 0.5))
            numpyro.sample("y", dist.Binomial(count, logits=level), obs=successes)

    data = {"count": np.array([47, 148, 810]), "successes": np.array([0, 18, 46])}
    model = numpyro_model(function, data)
    modes, _, _ = conditional_modes(model, None, jnp.asarray([-2.0]), model.prepare(data))
    grid = np.linspace(-5.0, 1.0, 60_001)[:, None]
    joint = data["successes"] * grid - data["count"] * np.log1p(np.exp(grid)) - (grid + 2.0) ** 2 / 0.5
    np.testing.assert_allclose(np.asarray(modes)[:, 0], grid[joint.argmax(axis=0), 0], atol=2e-4)
