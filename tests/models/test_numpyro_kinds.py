"""Clients of different kinds: what they observe differs, what they learn together does not."""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import plate, sample

import cavity
from cavity.algorithms.sfvi import SFVI
from cavity.distributions import FullGaussian
from cavity.errors import CavityError, DataError
from cavity.losses import NegativeLogLikelihood
from cavity.models.numpyro.from_numpyro import numpyro_kinds, numpyro_model
from cavity.models.numpyro.globals_only import SERVER
from tests.gaussian_vi import closest_gaussian
from tests.marks import exhaustive, thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

NOISE, SPREAD = 0.7, 0.5


def shared():
    return sample("level", dist.StudentT(4.0, 0.5, 0.5)), sample("slope", dist.Normal(0.0, 1.0))


def counts(x, count):
    level, slope = shared()
    sample("count", dist.Poisson(jnp.exp(level + slope * x)), obs=count)


def yes_or_no(x, yes):
    level, slope = shared()
    sample("yes", dist.Bernoulli(logits=level + slope * x), obs=yes)


@lru_cache
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=24)
    of_counts = {"x": x[:10], "count": rng.poisson(np.exp(0.3 + 0.6 * x[:10]))}
    of_answers = {"x": x[10:], "yes": (rng.random(14) < 1 / (1 + np.exp(-0.3 - 0.6 * x[10:]))).astype(int)}
    return of_counts, of_answers


def some(columns, rows):
    return {name: column[rows] for name, column in columns.items()}


@lru_cache
def mixed(swapped=False):
    of_counts, of_answers = data()
    models = [numpyro_model(counts, of_counts), numpyro_model(yes_or_no, of_answers)]
    return numpyro_kinds(*(reversed(models) if swapped else models))


@lru_cache
def reference():
    """The closest Gaussian to the pooled posterior."""
    of_counts, of_answers = data()

    def log_density(z):
        level, slope = z[:, :1], z[:, 1:]
        prior = -2.5 * np.log1p(((level - 0.5) / 0.5) ** 2 / 4.0) - 0.5 * slope**2
        f = level + slope * of_counts["x"]
        g = level + slope * of_answers["x"]
        rows = (of_counts["count"] * f - np.exp(f)).sum(axis=1) + (of_answers["yes"] * g - np.logaddexp(0, g)).sum(
            axis=1
        )
        return prior[:, 0] + rows

    return closest_gaussian(log_density, np.array([0.3, 0.5]), np.array([0.2, 0.2]))


def one_each():
    return {"clinic": data()[0], "survey": data()[1]}


def scattered():
    """The same rows at five clients, of both kinds in turn."""
    of_counts, of_answers = data()
    return {
        "a": some(of_answers, slice(0, 3)),
        "b": some(of_counts, slice(0, 7)),
        "c": some(of_answers, slice(3, 4)),
        "d": some(of_counts, slice(7, 10)),
        "e": some(of_answers, slice(4, 14)),
    }


@lru_cache
def fitted(partition=one_each, swapped=False):
    return cavity.run(cavity.PVI(mixed(swapped)), partition(), rounds=200, tolerance=1e-14)


@pytest.mark.slow
def test_pvi_finds_the_closest_gaussian_of_all_rows():
    fit, (mean, covariance) = fitted(), reference()
    assert fit.converged
    assert set(fit.server.entries) == {"clinic", "survey", SERVER}
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((np.asarray(fit.posterior.mean) - mean) / sd, 0.0, atol=2e-3)
    np.testing.assert_allclose(
        np.asarray(fit.posterior.covariance) / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=3e-3
    )
    alone = cavity.run(cavity.PVI(mixed()), {"clinic": data()[0]})
    assert cavity.kl(fit.posterior, alone.posterior) > 0.1  # the other kind says something


@exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(("partition", "swapped"), [(scattered, False), (one_each, True)], ids=["partition", "order"])
def test_neither_partition_nor_the_order_of_kinds_matter(partition, swapped):
    other = fitted(partition, swapped)
    np.testing.assert_allclose(other.posterior.mean, fitted().posterior.mean, atol=1e-6)
    np.testing.assert_allclose(other.posterior.covariance, fitted().posterior.covariance, atol=1e-6)


@thorough
def test_predictions_are_of_the_kind_that_knows_the_columns():
    """Columns that both have are the first's; with its outcome, or at one of its clients, the other is meant."""
    fit, x = fitted(), np.array([-1.0, 2.0])
    (mean, covariance), design = reference(), np.column_stack([np.ones(2), x])
    f, v = design @ mean, np.einsum("ni,ij,nj->n", design, covariance, design)
    rate = np.exp(f + 0.5 * v)
    error = 5 * rate * np.sqrt(np.expm1(v) / 4000)
    for columns in ({"x": x}, {"x": x, "count": np.zeros(2, int)}):
        predicted = fit.predict(columns, num_draws=4000)
        np.testing.assert_array_less(np.abs(np.asarray(predicted.mean) - rate), error + 2e-3 * rate)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    chance = (weights / weights.sum()) @ (1 / (1 + np.exp(-(f + np.sqrt(v) * nodes[:, None]))))
    predicted = fit.predict({"x": x, "yes": np.zeros(2, int)}, num_draws=4000)
    np.testing.assert_allclose(predicted.mean, chance, atol=0.01)


@thorough
def test_a_fit_with_kinds_goes_on(tmp_path):
    """A client of another kind leaves and comes back; a file is read with the method given again."""
    fit = fitted()
    without = fit.withdraw("survey", tolerance=1e-12)
    alone = cavity.run(cavity.PVI(mixed()), {"clinic": data()[0]}, rounds=200, tolerance=1e-12)
    assert cavity.kl(without.posterior, alone.posterior) < 1e-9
    again = without.join("survey", data()[1], tolerance=1e-12)
    assert cavity.kl(again.posterior, fit.posterior) < 1e-9
    fit.save(tmp_path / "fit.npz")
    back = cavity.load(tmp_path / "fit.npz", algorithm=fit.algorithm, clients=one_each())
    assert back.summary()["slope"] == fit.summary()["slope"]


@pytest.mark.slow
def test_sfvi_finds_it_too():
    fit = cavity.run(SFVI(mixed(), num_steps=2000, step_size=0.03, num_draws=4), scattered())
    mean, covariance = reference()
    sd = np.sqrt(np.diag(covariance))
    found = fit.posterior.q.gaussian
    np.testing.assert_allclose((np.asarray(found.mean) - mean) / sd, 0.0, atol=0.03)
    np.testing.assert_allclose(
        np.asarray(found.covariance) / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.05
    )
    x = np.array([2.0])  # a client's own kind is meant, with or without its outcome
    there, here = (fit.local(name).predict({"x": x}, num_draws=2000).mean[0] for name in ("a", "b"))
    assert float(there) < 1.0
    assert float(here) > 1.5


# a kind with latents of its own beside one without: everything is Gaussian


def gaussian_shared():
    return sample("level", dist.Normal(0.0, 3.0)), sample("slope", dist.Normal(0.0, 3.0))


def by_group(group, x, y, num_groups):
    level, slope = gaussian_shared()
    with plate("groups", num_groups):
        own = sample("own", dist.Normal(level, SPREAD))
    sample("y", dist.Normal(own[group] + slope * x, NOISE), obs=y)


def plainly(x, v):
    level, slope = gaussian_shared()
    sample("v", dist.Normal(level + slope * x, NOISE), obs=v)


@lru_cache
def gaussian_data():
    rng = np.random.default_rng(1)
    group, x = np.repeat(["g0", "g1", "g2", "g3"], [5, 2, 4, 3]), rng.normal(size=14)
    own = dict(zip(["g0", "g1", "g2", "g3"], rng.normal(0.4, SPREAD, 4), strict=True))
    y = np.array([own[g] for g in group]) + 0.8 * x + rng.normal(0, NOISE, 14)
    more = rng.normal(size=6)
    return {"group": group, "x": x, "y": y}, {"x": more, "v": 0.4 + 0.8 * more + rng.normal(0, NOISE, 6)}


@lru_cache
def gaussian_model(plain_first=True):
    of_groups, plain = gaussian_data()
    models = [
        numpyro_model(plainly, plain),
        numpyro_model(by_group, of_groups, unit="group", num_units="num_groups"),
    ]
    return numpyro_kinds(*(models if plain_first else reversed(models)))


def gaussian_silos(num_clients=2):
    """The groups at so many clients, and as many without groups."""
    of_groups, plain = gaussian_data()
    home = np.array([int(g[1]) % num_clients for g in of_groups["group"]])
    grouped = {f"grouped{j}": some(of_groups, home == j) for j in range(num_clients)}
    return grouped | {f"plain{j}": some(plain, np.arange(6) % num_clients == j) for j in range(num_clients)}


def gaussian_posterior():
    """Mean and covariance of (level, slope, own_0, ..., own_3)."""
    of_groups, plain = gaussian_data()
    precision, pull = np.diag([1 / 9, 1 / 9, 0, 0, 0, 0]), np.zeros(6)
    for u in range(4):
        contrast = np.eye(6)[2 + u] - np.eye(6)[0]
        precision = precision + np.outer(contrast, contrast) / SPREAD**2
    places = [2 + int(g[1]) for g in of_groups["group"]] + [0] * 6
    xs, outcomes = np.concatenate([of_groups["x"], plain["x"]]), np.concatenate([of_groups["y"], plain["v"]])
    for place, x, outcome in zip(places, xs, outcomes, strict=True):
        design = np.eye(6)[place] + x * np.eye(6)[1]
        precision, pull = precision + np.outer(design, design) / NOISE**2, pull + design * outcome / NOISE**2
    return np.linalg.solve(precision, pull), np.linalg.inv(precision)


@exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("plain_first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_local_latents_beside_none(plain_first):
    fit = cavity.run(SFVI(gaussian_model(plain_first), num_steps=1), gaussian_silos())
    mean, covariance = gaussian_posterior()
    exact = FullGaussian.from_moments(jnp.asarray(mean[:2]), jnp.asarray(covariance[:2, :2]))
    assert cavity.kl(fit.posterior.q.gaussian, exact) < 1e-9
    summary = fit.local("grouped1").summary()
    assert [estimate.name for estimate in summary] == ["own[g1]", "own[g3]"]
    for place in (3, 5):
        sd = np.sqrt(covariance[place, place])
        assert summary[f"own[g{place - 2}]"].mean == pytest.approx(mean[place], abs=5 * sd / np.sqrt(4000))
        assert summary[f"own[g{place - 2}]"].sd == pytest.approx(sd, rel=5 / np.sqrt(8000))
    with pytest.raises(CavityError, match="client 'plain0' has no local latents"):
        fit.local("plain0").summary()
    x, draws = np.array([1.0, -2.0]), 4000
    design = np.column_stack([np.ones(2), x])
    variance = np.einsum("ni,ij,nj->n", design, covariance[:2, :2], design)
    for predicted in (fit.local("plain0").predict({"x": x}, num_draws=draws), fit.predict({"x": x}, num_draws=draws)):
        np.testing.assert_array_less(np.abs(predicted.mean - design @ mean[:2]), 5 * np.sqrt(variance / draws))
        np.testing.assert_allclose(predicted.sd, np.sqrt(variance), rtol=5 / np.sqrt(2 * draws))
    new = fit.predict({"x": x, "group": ["new", "newer"]}, num_draws=draws)
    np.testing.assert_allclose(new.sd, np.sqrt(variance + SPREAD**2), rtol=5 / np.sqrt(2 * draws))


@pytest.mark.slow
def test_how_rows_and_units_are_shared_out_does_not_matter_to_sfvi():
    algorithm = SFVI(gaussian_model(), num_steps=30, num_samples=3, initialise=False)
    ends = [cavity.run(algorithm, gaussian_silos(n), rounds_per_block=10).posterior for n in (1, 2)]
    assert np.abs(np.asarray(ends[0].q.mean) - np.asarray(algorithm.prior.q.mean)).max() > 0.05
    for one, other in zip(*(jax.tree.leaves(end) for end in ends), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


@pytest.mark.slow
def test_a_block_is_the_same_as_single_exchanges():
    algorithm = SFVI(gaussian_model(), num_steps=8, num_samples=2, initialise=False)
    single, block = (cavity.run(algorithm, gaussian_silos(), rounds_per_block=size, seed=5) for size in (1, 4))
    for one, other in zip(jax.tree.leaves(single.posterior), jax.tree.leaves(block.posterior), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    np.testing.assert_allclose(*([record["free_energy"] for record in fit.history] for fit in (single, block)))
    for name in single.server.names:
        for one, other in zip(single.local(name).latents(5), block.local(name).latents(5), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-10)


# what is refused


@thorough
def test_data_of_no_kind_are_refused_with_all_kinds_named():
    for algorithm in (cavity.PVI(mixed()), SFVI(mixed(), num_steps=2)):
        for wrong in ({"x": np.ones(2)}, {"x": np.ones(2), "no": np.ones(2)}, data()[0] | {"yes": np.ones(10)}):
            with pytest.raises(DataError, match="'york'.*no kind of client has .* there are x, count; or x, yes"):
                cavity.run(algorithm, one_each() | {"york": wrong})


@thorough
def test_local_latents_of_any_kind_are_refused_by_fedgvi_and_integrated_out_by_pvi():
    for plain_first in (True, False):
        with pytest.raises(CavityError, match="own stay at their client"):
            cavity.FedGVI(gaussian_model(plain_first), NegativeLogLikelihood())
        assert isinstance(cavity.PVI(gaussian_model(plain_first)).model, cavity.models.MarginalModel)


@thorough
def test_kinds_that_cannot_be_one_model_are_refused():
    of_counts, of_answers = data()
    first = numpyro_model(counts, of_counts)

    def made(function, columns=of_answers):
        return numpyro_model(function, columns)

    def renamed(x, yes):
        level, slope = sample("level", dist.StudentT(4.0, 0.5, 0.5)), sample("tilt", dist.Normal(0.0, 1.0))
        sample("yes", dist.Bernoulli(logits=level + slope * x), obs=yes)

    def reordered(x, yes):
        slope, level = sample("slope", dist.Normal(0.0, 1.0)), sample("level", dist.StudentT(4.0, 0.5, 0.5))
        sample("yes", dist.Bernoulli(logits=level + slope * x), obs=yes)

    def wider(x, yes):
        level, slope = sample("level", dist.StudentT(4.0, 0.5, 0.5)), sample("slope", dist.Normal(0.0, 1.1))
        sample("yes", dist.Bernoulli(logits=level + slope * x), obs=yes)

    def learns(x, yes):
        level, slope = shared()
        sample("yes", dist.Bernoulli(logits=level + slope * x + numpyro.param("shift", 0.0)), obs=yes)

    def same_columns(x, count):
        level, slope = shared()
        sample("count", dist.Geometric(logits=level + slope * x), obs=count)

    for function, columns, message in (
        (renamed, of_answers, "same global sites.*slope.*tilt"),
        (reordered, of_answers, "same global sites, in the same order"),
        (wider, of_answers, "same priors"),
        (learns, of_answers, "same learned parameters.*shift"),
        (same_columns, of_counts, "two kinds have the columns x, count"),
    ):
        with pytest.raises(CavityError, match=message):
            numpyro_kinds(first, made(function, columns))
    with pytest.raises(CavityError, match="all kinds at once"):
        numpyro_kinds(mixed(), made(yes_or_no))
