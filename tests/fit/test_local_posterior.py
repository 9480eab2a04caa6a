"""What SFVI gives at the server and at a client, against the closed form of a Gaussian random-intercept model."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import cavity
from cavity.algorithms.sfvi import SFVI
from cavity.algorithms.sfvi_avg import SFVIAvg
from cavity.errors import CavityError, DataError
from cavity.models.numpyro.from_numpyro import numpyro_model
from tests.algorithms.test_sfvi import NOISE, SPREAD, WIDE, clients, exact_posterior, model_of, rows
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

NUM_DRAWS = 20_000
CLIENT = "client1"


@lru_cache
def fitted(num_samples=None):
    """Where the start is found, nothing is left to be done: every gradient vanishes there, but for rounding.

    One step, since Adam makes steps of any gradient, and the second would be of rounding.
    """
    return cavity.run(SFVI(model_of(), num_steps=1, num_samples=num_samples), clients(3))


@lru_cache
def exact():
    """Mean and covariance of (level, slope, own_1, ...), and where the units of a client are in it."""
    mean, precision = exact_posterior()
    names = list(dict.fromkeys(rows()["group"]))
    units = list(dict.fromkeys(clients(3)[CLIENT]["group"]))
    return mean, np.linalg.inv(precision), units, np.array([2 + names.index(unit) for unit in units])


def check_moments(draws, mean, covariance):
    """Within five standard errors of draws from this Gaussian; [s, d]."""
    draws, sd = np.asarray(draws), np.sqrt(np.diag(covariance))
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - mean), 5 * sd / np.sqrt(len(draws)))
    gaps = (np.cov(draws.T) - covariance) / np.outer(sd, sd)
    np.testing.assert_array_less(np.abs(gaps), 5 * np.sqrt(2 / len(draws)))


@thorough
def test_the_start_is_the_posterior():
    mean, covariance, _, _ = exact()
    q = fitted().posterior.q
    np.testing.assert_allclose(q.mean, mean[:2], atol=1e-6)
    np.testing.assert_allclose(q.gaussian.covariance, covariance[:2, :2], atol=1e-6)
    assert fitted().initial_rounds > 0
    assert any("started at the mode" in remark for remark in fitted().summary().remarks)


def check_latents(client, num_draws):
    mean, covariance, units, places = exact()
    z_global, z_local = client.latents(num_draws)
    assert z_local.shape == (num_draws, len(units), 1)
    both = np.concatenate([np.asarray(z_global), np.asarray(z_local)[..., 0]], axis=1)
    chosen = np.concatenate([[0, 1], places])
    check_moments(both, mean[chosen], covariance[np.ix_(chosen, chosen)])


@pytest.mark.parametrize("num_samples", [1, None])
@thorough
def test_latents_of_a_client_have_the_joint_moments(num_samples):
    """Cov(Z_G, Z_u) too: a draw of the units goes with its draw of what is shared."""
    _, covariance, _, places = exact()
    check_latents(fitted(num_samples).local(CLIENT), NUM_DRAWS)
    correlation = covariance[0, places] / np.sqrt(covariance[0, 0] * np.diag(covariance)[places])
    assert correlation.min() > 2 * 5 * np.sqrt(2 / NUM_DRAWS)  # so that its absence would be seen


@pytest.mark.slow
def test_importance_samples_make_up_for_a_wrong_q():
    """With means and scales that are off and no look at Z_G, draws by their weights are still the posterior's."""
    client = fitted().local(CLIENT)
    scale = jnp.exp(client.q.log_scale)
    q = replace(
        client.q, mean=client.q.mean + 0.7 * scale, log_scale=client.q.log_scale + 0.3, coupling=0 * client.q.coupling
    )
    check_latents(replace(client, q=q, num_samples=200), 4000)
    with pytest.raises(AssertionError):
        check_latents(replace(client, q=q, num_samples=1), 4000)


@thorough
def test_draws_and_summary_of_a_client():
    mean, covariance, units, places = exact()
    client = fitted().local(CLIENT)
    draws = client.draws(NUM_DRAWS)
    assert list(draws) == ["own"]
    assert draws["own"].shape == (NUM_DRAWS, len(units))
    check_moments(draws["own"], mean[places], covariance[np.ix_(places, places)])
    summary = client.summary(level=0.9, num_draws=NUM_DRAWS)
    assert [estimate.name for estimate in summary] == [f"own[{unit}]" for unit in units]
    assert summary.remarks == ("client 'client1'",)
    for unit, place in zip(units, places, strict=True):
        sd = np.sqrt(covariance[place, place])
        estimate = summary[f"own[{unit}]"]
        assert estimate.mean == pytest.approx(mean[place], abs=5 * sd / np.sqrt(NUM_DRAWS))
        assert estimate.sd == pytest.approx(sd, rel=5 / np.sqrt(2 * NUM_DRAWS))
        assert estimate.lower == pytest.approx(mean[place] - 1.645 * sd, abs=0.06 * sd)
        assert estimate.upper == pytest.approx(mean[place] + 1.645 * sd, abs=0.06 * sd)


@thorough
def test_the_servers_summary():
    mean, covariance, _, _ = exact()
    summary = fitted().summary()
    assert [estimate.name for estimate in summary] == ["level", "slope"]
    for i, estimate in enumerate(summary):
        sd = np.sqrt(covariance[i, i])
        assert estimate.mean == pytest.approx(mean[i], abs=5 * sd / 100)
        assert estimate.sd == pytest.approx(sd, rel=5 / np.sqrt(2 * 10_000))


@thorough
def test_arviz_of_both():
    mean, covariance, units, places = exact()
    server = fitted().to_arviz(NUM_DRAWS).posterior
    assert set(server.data_vars) == {"level", "slope"}
    assert server["level"].shape == (1, NUM_DRAWS)
    both = np.stack([server["level"].values[0], server["slope"].values[0]], axis=1)
    check_moments(both, mean[:2], covariance[:2, :2])
    own = fitted().local(CLIENT).to_arviz(NUM_DRAWS).posterior
    assert set(own.data_vars) == {"own"}
    assert own["own"].shape == (1, NUM_DRAWS, len(units))
    check_moments(own["own"].values[0], mean[places], covariance[np.ix_(places, places)])


def check_prediction(predicted, mean, variance):
    sd = np.sqrt(variance)
    np.testing.assert_array_less(np.abs(np.asarray(predicted.mean) - mean), 5 * sd / np.sqrt(NUM_DRAWS))
    np.testing.assert_allclose(predicted.sd, sd, rtol=5 / np.sqrt(2 * NUM_DRAWS))
    np.testing.assert_allclose(predicted.lower, mean - 1.96 * sd, atol=0.06 * sd.max())
    np.testing.assert_allclose(predicted.upper, mean + 1.96 * sd, atol=0.06 * sd.max())


def of_unit(place, x):
    """Mean and variance of own_u + slope x."""
    mean, covariance, _, _ = exact()
    return mean[place] + mean[1] * x, covariance[place, place] + 2 * x * covariance[1, place] + x**2 * covariance[1, 1]


def of_new_unit(x):
    """Of level + N(0, SPREAD) + slope x."""
    mean, variance = of_unit(0, x)
    return mean, variance + SPREAD**2


@thorough
def test_predictions_at_a_client():
    """Of its own units, in any order, and of units that no client has."""
    _, _, units, places = exact()
    x = {"group": np.array([units[2], "new", units[0], units[2], "newer"]), "x": np.array([0.5, -1.0, 2.0, -3.0, 0.0])}
    predicted = fitted().local(CLIENT).predict(x, num_draws=NUM_DRAWS)
    expected = [
        of_unit(places[2], 0.5),
        of_new_unit(-1.0),
        of_unit(places[0], 2.0),
        of_unit(places[2], -3.0),
        of_new_unit(0.0),
    ]
    check_prediction(predicted, *np.array(expected).T)
    half = fitted().local(CLIENT).predict(x, level=0.5, num_draws=NUM_DRAWS)
    assert (predicted.level, half.level) == (0.95, 0.5)
    for found, halves in ((predicted, 1.96), (half, 0.6745)):  # the expected outcome is Gaussian
        np.testing.assert_allclose(np.asarray(found.upper) - found.lower, 2 * halves * np.asarray(found.sd), rtol=0.05)


@thorough
def test_units_of_other_clients_are_new_to_this_one():
    stranger = next(iter(dict.fromkeys(clients(3)["client0"]["group"])))
    predicted = fitted().local(CLIENT).predict({"group": [stranger], "x": np.array([1.5])}, num_draws=NUM_DRAWS)
    check_prediction(predicted, *np.array([of_new_unit(1.5)]).T)


@pytest.mark.slow
def test_predictions_at_a_new_client():
    """Every unit is new there, whatever it is called."""
    _, _, units, _ = exact()
    x = np.array([0.0, 2.0])
    predicted = fitted().predict({"group": np.array([units[0], "new"]), "x": x}, num_draws=NUM_DRAWS)
    check_prediction(predicted, *np.array([of_new_unit(each) for each in x]).T)


@thorough
def test_missing_parts_are_reported(tmp_path):
    fit = fitted()
    with pytest.raises(CavityError, match="no client 'york'; choose one of: client0, client1, client2"):
        fit.local("york")
    for change in (lambda: fit.withdraw(CLIENT), fit.influence):
        with pytest.raises(CavityError, match="SFVI keeps no factor per client"):
            change()
    fit.save(tmp_path / "fit.npz")
    alone = cavity.load(tmp_path / "fit.npz", algorithm=fit.algorithm)
    np.testing.assert_array_equal(alone.posterior.q.mean, fit.posterior.q.mean)
    with pytest.raises(CavityError, match="clients' data: cavity.load"):
        alone.local(CLIENT)
    back = cavity.load(tmp_path / "fit.npz", algorithm=fit.algorithm, clients=clients(3))
    for one, other in zip(back.local(CLIENT).latents(50), fit.local(CLIENT).latents(50), strict=True):
        np.testing.assert_array_equal(one, other)
    assert back.local(CLIENT).labels == fit.local(CLIENT).labels
    regression = cavity.run(
        cavity.PVI(cavity.models.linear_regression(["x"], noise_sd=1.0)), {"a": (np.eye(2)[:, :1], [0.0, 1.0])}
    )
    with pytest.raises(CavityError, match="no local latents"):
        regression.local("a")


@pytest.mark.slow
def test_a_client_that_joins_brings_its_units():
    """Only this client knows their names; a unit of another client is refused."""
    all_clients = clients(3)
    late = all_clients.pop("client2")
    fit = cavity.run(SFVI(model_of(), num_steps=1), all_clients)
    joined = fit.join("client2", late, rounds=1)
    units = tuple(dict.fromkeys(late["group"]))
    assert joined.local("client2").labels == units
    assert joined.local("client0").labels == fit.local("client0").labels
    assert [estimate.name for estimate in joined.local("client2").summary()] == [f"own[{unit}]" for unit in units]
    taken = late | {"group": np.where(late["group"] == units[0], all_clients["client0"]["group"][0], late["group"])}
    with pytest.raises(DataError, match="'g0' has rows at 'client0' and at 'client2'"):
        fit.join("client2", taken, rounds=1)


def learning(group, x, y, num_groups):
    """The same with a slope that is learned, not inferred."""
    level = numpyro.sample("level", dist.Normal(0.0, WIDE))
    slope = numpyro.param("slope", 0.0)
    with numpyro.plate("groups", num_groups):
        own = numpyro.sample("own", dist.Normal(level, SPREAD))
    numpyro.sample("y", dist.Normal(own[group] + slope * x, NOISE), obs=y)


@pytest.mark.slow
def test_a_warm_start_keeps_every_density():
    """From SFVI-Avg, whose clients are centred at means of their own, to SFVI: every density stays the same."""
    model = numpyro_model(learning, rows(), unit="group", num_units="num_groups")
    options = {"initialise": False, "num_samples": 2}
    averaged = cavity.run(SFVIAvg(model, total=14, num_rounds=2, local_steps=20, step_size=0.1, **options), clients(3))
    algorithm = SFVI(model, num_steps=5, **options)
    started = averaged.warm_start(algorithm)
    assert started.algorithm is algorithm
    for one, other in zip(jax.tree.leaves(averaged.posterior), jax.tree.leaves(started.posterior), strict=True):
        np.testing.assert_array_equal(one, other)
    assert float(jnp.abs(started.posterior.theta["slope"])) > 0.1
    for name in clients(3):
        state = averaged.client_states[name]
        kept = state.pending.local if state.pending is not None else state.local
        z_global = np.array([0.7])
        before = kept.q.log_prob(jnp.full_like(kept.q.mean, 0.3), jnp.asarray(z_global - kept.centre))
        own = started.client_states[name].local.q
        after = own.log_prob(jnp.full_like(own.mean, 0.3), jnp.asarray(z_global - averaged.posterior.q.mean))
        np.testing.assert_allclose(after, before, rtol=1e-10)
        assert np.abs(kept.centre - averaged.posterior.q.mean).max() > 1e-3  # it was another mean
        for one, other in zip(averaged.local(name).latents(20), started.local(name).latents(20), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10)
    further = started.refine(1)
    # one step of Adam is 0.02 at most, from where the other method had come to
    moved = np.abs(np.asarray(further.posterior.q.mean) - np.asarray(started.posterior.q.mean))
    assert 0.0 < moved.max() < 0.0201
    with pytest.raises(CavityError, match="between SFVI and SFVI-Avg"):
        averaged.warm_start(cavity.PVI(cavity.models.linear_regression(["x"], noise_sd=1.0)))
