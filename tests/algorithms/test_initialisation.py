"""Where SFVI starts: at Laplace's approximation, in whatever units the model is written."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import cavity
from cavity.algorithms.sfvi import SFVI
from cavity.algorithms.sfvi_avg import SFVIAvg
from cavity.algorithms.structured import mean_field
from cavity.core.client_data import prepare_clients
from cavity.errors import CavityError
from cavity.fit import initialisation
from cavity.models.numpyro.from_numpyro import numpyro_model
from cavity.models.topics import prodlda
from tests.algorithms.test_sfvi import clients, exact_family, model_of, model_once, rows
from tests.marks import exhaustive, thorough


def started(algorithm, num_clients=2):
    return initialisation.initialised(algorithm, prepare_clients(algorithm.model, clients(num_clients)), 0)


@thorough
@pytest.mark.parametrize("num_clients", [1, 3])
def test_a_gaussian_model_starts_at_its_posterior(num_clients):
    algorithm, rounds = started(SFVI(model_once()), num_clients)
    q, local = exact_family()
    assert cavity.kl(algorithm.prior.q.gaussian, q.gaussian) < 1e-9
    assert 1 <= rounds <= 5
    if num_clients == 1:
        own = algorithm.client.initial_local(prepare_clients(algorithm.model, clients(1))["client0"]).q
        np.testing.assert_allclose(own.mean, local.mean, atol=1e-6)
        np.testing.assert_allclose(own.log_scale, local.log_scale, atol=1e-6)
        np.testing.assert_allclose(own.coupling, local.coupling, atol=1e-6)


@pytest.mark.slow
def test_without_correlations_the_scales_are_the_best_ones():
    """The mean field nearest to a Gaussian has the variances of each latent given the others."""
    algorithm, _ = started(SFVI(model_once(), covariance=mean_field))
    precision = np.asarray(exact_family()[0].gaussian.precision)
    np.testing.assert_allclose(np.exp(algorithm.prior.q.log_scale), np.diag(precision) ** -0.5, rtol=1e-6)


def counts():
    """Counts as outcomes: at a Gaussian posterior all gradients would vanish, and Adam follow their rounding."""
    rng = np.random.default_rng(3)
    return rows() | {"y": rng.poisson(np.exp(0.3 * rows()["y"])).astype(float)}


def in_units(level_unit, slope_unit, own_unit):
    """Counts with an intercept per group, whose level, slope and intercepts are written in some units."""

    def function(group, x, y, num_groups):
        level = numpyro.sample("level", dist.Normal(0.0, 3.0 * level_unit)) / level_unit
        slope = numpyro.sample("slope", dist.Normal(0.0, 3.0 * slope_unit)) / slope_unit
        with numpyro.plate("groups", num_groups):
            own = numpyro.sample("own", dist.Normal(level * own_unit, 0.5 * own_unit)) / own_unit
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Poisson(jnp.exp(own[group] + slope * x)), obs=y)

    return numpyro_model(function, counts(), unit="group", num_units="num_groups")


@exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("method", ["SFVI", "SFVI-Avg"])
def test_units_do_not_matter(method):
    """The same trajectory, in other units."""
    posteriors = []
    for units in ((1.0, 1.0, 1.0), (2e4, 1e-2, 1e3)):
        if method == "SFVI":
            algorithm = SFVI(in_units(*units), num_steps=200, num_samples=1)
        else:
            algorithm = SFVIAvg(in_units(*units), total=14, num_rounds=2, local_steps=100, num_samples=1)
        fit = cavity.run(algorithm, clients(2, counts()), tolerance=0.0)
        root = np.asarray(fit.posterior.q.root) / np.asarray(units[:2])[:, None]
        posteriors.append((np.asarray(fit.posterior.q.mean) / units[:2], root))
    np.testing.assert_allclose(posteriors[1][0], posteriors[0][0], atol=1e-10)
    np.testing.assert_allclose(posteriors[1][1], posteriors[0][1], atol=1e-10)


@exhaustive
@pytest.mark.slow
def test_the_division_of_units_does_not_matter():
    algorithm = SFVI(in_units(1.0, 1.0, 1.0), num_steps=50, num_samples=2)
    fits = [cavity.run(algorithm, clients(count, counts()), tolerance=0.0) for count in (1, 3)]
    for one, other in zip(*(jax.tree.leaves(fit.posterior) for fit in fits), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)
    assert all(fit.initial_rounds >= 1 for fit in fits)
    assert "started at the mode" in str(fits[0].summary())


@pytest.mark.slow
def test_a_resumed_run_keeps_its_units(tmp_path):
    """The one that resumes has not been initialised: all that matters is in the checkpoint."""
    method = SFVI(model_once(), num_steps=40, num_samples=1)
    whole = cavity.run(method, clients(2), rounds=40, tolerance=0.0, rounds_per_block=20)
    cavity.run(method, clients(2), rounds=20, tolerance=0.0, rounds_per_block=20, directory=tmp_path)
    resumed = cavity.resume(tmp_path, clients(2), algorithm=method, rounds=40, tolerance=0.0, rounds_per_block=20)
    for one, other in zip(*(jax.tree.leaves(fit.posterior) for fit in (whole, resumed)), strict=True):
        np.testing.assert_array_equal(one, other)


@thorough
def test_a_prior_outside_the_family_is_part_of_the_start():
    """A half-normal scale, and one weak row at each of two clients: the mode is that of prior and rows."""

    def function(y):
        scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

    data = {"a": {"y": np.array([0.5, 1.0])}, "b": {"y": np.array([-1.5])}}
    model = numpyro_model(function, data["a"])
    algorithm, _ = initialisation.initialised(SFVI(model), prepare_clients(model, data), 0)
    grid = np.linspace(-6, 6, 200001)  # of the log of the scale
    y = np.array([0.5, 1.0, -1.5])
    log_density = -0.5 * np.exp(2 * grid) / 4.0 + grid - 3 * grid - 0.5 * np.sum(y**2) * np.exp(-2 * grid)
    assert float(algorithm.prior.q.mean[0]) == pytest.approx(grid[log_density.argmax()], abs=1e-3)


@thorough
def test_latents_of_a_client_as_a_whole():
    """Each client its own level around a common one, all Gaussian: the start is the posterior."""

    def function(y):
        common = numpyro.sample("common", dist.Normal(0.0, 2.0))
        own = numpyro.sample("own", dist.Normal(common, 0.5))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(own, 1.0), obs=y)

    data = {"a": {"y": np.array([0.5, 1.0, 0.1])}, "b": {"y": np.array([-1.5])}}
    model = numpyro_model(function, data["a"], local=["own"])
    algorithm, _ = initialisation.initialised(SFVI(model), prepare_clients(model, data), 0)
    precision = 1 / 4 + sum(1 / (0.25 + 1 / len(rows["y"])) for rows in data.values())
    pull = sum(rows["y"].mean() / (0.25 + 1 / len(rows["y"])) for rows in data.values())
    assert float(algorithm.prior.q.mean[0]) == pytest.approx(pull / precision, abs=1e-8)
    assert float(np.exp(algorithm.prior.q.log_scale[0])) == pytest.approx(precision**-0.5, rel=1e-8)


@thorough
def test_single_precision_starts_at_the_same_place():
    """JAX's default; the search itself is in double."""
    with jax.enable_x64(False):
        algorithm, _ = started(SFVI(model_of()))
    exact = exact_family()[0].gaussian
    np.testing.assert_allclose(np.asarray(algorithm.prior.q.mean), exact.mean, atol=1e-5)


@thorough
def test_an_initialisation_that_does_not_converge_is_reported(caplog, monkeypatch):
    monkeypatch.setattr(initialisation, "MAX_ROUNDS", 1)
    with caplog.at_level(logging.WARNING, logger="cavity"):
        started(SFVI(model_once()))
    assert "has not converged" in caplog.text


@thorough
def test_which_models_are_initialised():
    assert SFVI(model_of()).initialisation is not None
    assert SFVI(model_of(), batch_size=8).initialisation is None
    assert SFVI(model_of(), initialise=False).initialisation is None
    assert SFVI(prodlda(3, 5)).initialisation is None
    with pytest.raises(CavityError, match="NumPyro"):
        SFVI(prodlda(3, 5), initialise=True)
