"""Local latents integrated out: exact for Gaussian units, near dense grids for others, with the right derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import binom, norm, poisson

from cavity.core import pad
from cavity.models.mixed import integration
from cavity.models.mixed.conditional import conditional_modes
from cavity.models.mixed.integration import log_marginal
from cavity.models.mixed.rules import Rule
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


@thorough
@pytest.mark.parametrize("order", [1, 2, 9])
def test_gaussian_units_give_the_exact_marginal(order):
    model, data = model_once(), model_once().prepare(rows())
    z = jnp.asarray([0.3, 0.9])
    found = np.asarray(jax.jit(lambda z: log_marginal(model, None, z, data, Rule(order)))(z))
    place = np.asarray(data.batch["group"])
    for u in range(14):
        mine = place == u
        gap = rows()["y"][mine] - 0.3 - 0.9 * rows()["x"][mine]
        covariance = NOISE**2 * np.eye(mine.sum()) + SPREAD**2
        _, log_det = np.linalg.slogdet(2 * np.pi * covariance)
        exact = -0.5 * gap @ np.linalg.solve(covariance, gap) - 0.5 * log_det
        assert found[u] == pytest.approx(exact, abs=1e-9)


def levels(y, count):
    """Binomial units with one latent each, whose sd is large: skewed where all or none succeed."""
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    log_sd = numpyro.sample("log_sd", dist.Normal(0.0, 1.0))
    with numpyro.plate("units", len(y)):
        own = numpyro.sample("own", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Binomial(count, logits=level + jnp.exp(log_sd) * own), obs=y)


OUTCOMES = {"y": np.array([0.0, 3.0, 7.0, 1.0]), "count": np.array([7.0, 7.0, 7.0, 2.0])}


@thorough
def test_one_latent_against_a_dense_grid():
    model = numpyro_model(levels, OUTCOMES)
    data, z = model.prepare(OUTCOMES), jnp.asarray([-1.7, np.log(4.0)])
    grid = np.linspace(-12, 12, 200_001)
    p = 1 / (1 + np.exp(1.7 - 4.0 * grid))
    exact = [
        np.log(np.sum(binom.pmf(y, n, p) * norm.pdf(grid)) * (grid[1] - grid[0]))
        for y, n in zip(OUTCOMES["y"], OUTCOMES["count"], strict=True)
    ]
    errors = {
        order: np.abs(np.asarray(log_marginal(model, None, z, data, Rule(order))) - exact).max()
        for order in (1, 5, None, 43)
    }
    assert errors[1] > 0.05  # Laplace's method is not enough here
    assert errors[5] < errors[1]
    assert errors[None] < 1e-3  # where all or none succeed and the sd is 4, quadrature converges slowly
    assert errors[43] < 0.3 * errors[None]


@thorough
def test_two_correlated_latents_against_a_dense_grid():
    model = numpyro_model(counted, counts(), unit="group", num_units="num_groups")
    data, z = model.prepare(counts()), jnp.asarray([0.4, 0.3])
    own, tilt = np.meshgrid(*[np.linspace(-8, 8, 1201)] * 2, indexing="ij")
    cell = (16 / 1200) ** 2
    scale = float(np.exp(0.3))
    prior = norm.pdf(own, 0.4, scale) * norm.pdf(tilt, 0.0, 0.5)
    found = np.asarray(jax.jit(lambda z: log_marginal(model, None, z, data, Rule()))(z))
    for u in range(5):
        mine = counts()["group"] == u
        log_p = np.zeros_like(own)
        for x, y in zip(counts()["x"][mine], counts()["y"][mine], strict=True):
            log_p += poisson.logpmf(y, np.exp(own + tilt * x))
        assert found[u] == pytest.approx(np.log(np.sum(prior * np.exp(log_p)) * cell), abs=1e-5)


def three(x, y, group, num_groups):
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", num_groups):
        own = numpyro.sample("own", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=level + jnp.sum(x * own[group], axis=1)), obs=y)


@thorough
def test_three_latents_against_a_dense_grid():
    rng = np.random.default_rng(1)
    x, group = rng.normal(size=(18, 3)), np.repeat(np.arange(3), 6)
    data = {"x": x, "y": (rng.random(18) < 0.4).astype(float), "group": group}
    model = numpyro_model(three, data, unit="group", num_units="num_groups")
    found = np.asarray(jax.jit(lambda z: log_marginal(model, None, z, model.prepare(data), Rule()))(jnp.asarray([0.3])))
    axis = np.linspace(-6, 6, 97)
    grid = np.stack(np.meshgrid(*[axis] * 3, indexing="ij"), -1).reshape(-1, 3)
    prior = norm.logpdf(grid).sum(1) + 3 * np.log(axis[1] - axis[0])
    for u in range(3):
        logits = 0.3 + grid @ x[group == u].T
        log_p = -np.logaddexp(0, np.where(data["y"][group == u] > 0, -logits, logits)).sum(1)
        assert found[u] == pytest.approx(np.log(np.sum(np.exp(prior + log_p))), abs=5e-3)


@thorough
@pytest.mark.parametrize("order", [3, None])
def test_the_gradient_is_that_of_the_computed_value(order):
    """With three nodes the value is off by far more than the difference that is allowed here."""
    model = numpyro_model(levels, OUTCOMES)
    data = model.prepare(OUTCOMES)
    total = jax.jit(lambda z: jnp.sum(log_marginal(model, None, z, data, Rule(order))))
    z, h = jnp.asarray([-1.7, np.log(4.0)]), 1e-5
    gradient = jax.jit(jax.grad(total))(z)
    for i in range(2):
        step = jnp.zeros(2).at[i].set(h)
        assert gradient[i] == pytest.approx(float(total(z + step) - total(z - step)) / (2 * h), rel=1e-6)


@thorough
def test_nodes_in_groups_give_the_same(monkeypatch):
    model = numpyro_model(levels, OUTCOMES)
    data, z = model.prepare(OUTCOMES), jnp.asarray([-1.7, 0.5])

    def value_and_grad():
        total = jax.jit(jax.value_and_grad(lambda z: jnp.sum(log_marginal(model, None, z, data, Rule()))))
        return total(z)

    whole = value_and_grad()
    monkeypatch.setattr(integration, "AT_ONCE", 4 * len(OUTCOMES["y"]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), value_and_grad(), whole)


@pytest.mark.slow
def test_derivatives_in_the_global_latents_are_those_of_the_function():
    """First and second ones against differences; the modes themselves move with Z_G."""
    model = numpyro_model(counted, counts(), unit="group", num_units="num_groups")
    data = model.prepare(counts())

    @jax.jit
    def total(z):
        return jnp.sum(log_marginal(model, None, z, data, Rule(order=1)))

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


def test_padding_counts_nothing():
    data = model_once().prepare(rows())
    z = jnp.asarray([0.3, 0.9])
    each = jax.jit(lambda data: log_marginal(model_once(), None, z, data, Rule()))
    padded = each(pad(data, len(data.weight) + 13, 17))
    np.testing.assert_allclose(padded[:14], each(data), atol=1e-9)
    assert np.isfinite(padded).all()


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
