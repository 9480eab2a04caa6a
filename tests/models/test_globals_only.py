"""NumPyro models without local latents under PVI and FedGVI: closed forms, and the prior as the server's row."""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import plate, sample
from numpyro.distributions import constraints
from scipy.special import gammaln

import cavity
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.divergences import KL, Renyi, WeightedKL
from cavity.errors import CavityError
from cavity.evaluation.selection import expected_loss
from cavity.losses import Beta, NegativeLogLikelihood, Tempered
from cavity.models.numpyro.from_numpyro import numpyro_model
from cavity.models.numpyro.globals_only import SERVER, as_rows
from cavity.schedules import Sequential
from tests.doubles import LoadedWhenAsked
from tests.gaussian_vi import closest_gaussian_1d
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

NOISE = 0.8
SHAPE, RATE = 3.0, 2.0  # of the prior of the counts
LEFT_OVER = 1e-14  # nats, at which a run has come to rest


def shared_out(data, sizes):
    """Clients of these many rows."""
    ends = np.cumsum(sizes)
    return {
        f"client{i}": {name: column[end - size : end] for name, column in data.items()}
        for i, (size, end) in enumerate(zip(sizes, ends, strict=True))
    }


def rest(algorithm, clients, **options):
    fit = cavity.run(algorithm, clients, rounds=200, tolerance=LEFT_OVER, **options)
    assert fit.converged, fit.history[-1]["gap"]
    return fit


def moments(fit):
    return np.asarray(fit.posterior.mean), np.asarray(fit.posterior.covariance)


def sds(fit):
    return np.sqrt(np.diag(moments(fit)[1]))


# Gaussian priors: everything is exact


def line(x, y):
    level = sample("level", dist.Normal(1.0, 2.0))
    slope = sample("slope", dist.Normal(-0.5, 0.7))
    sample("y", dist.Normal(level + slope * x, NOISE), obs=y)


def tied_line(x, y):
    """The prior of one site looks at the other: Gaussian together, and correlated."""
    level = sample("level", dist.Normal(1.0, 2.0))
    slope = sample("slope", dist.Normal(0.5 * level - 1.0, 0.7))
    sample("y", dist.Normal(level + slope * x, NOISE), obs=y)


JOINT_MEAN, JOINT_COVARIANCE = np.array([1.0, -0.5]), np.array([[4.0, 1.1], [1.1, 0.5]])


def joint_line(x, y):
    both = sample("both", dist.MultivariateNormal(jnp.asarray(JOINT_MEAN), jnp.asarray(JOINT_COVARIANCE)))
    sample("y", dist.Normal(both[0] + both[1] * x, NOISE), obs=y)


def flat_line(x, y):
    both = sample("both", dist.ImproperUniform(constraints.real_vector, (), (2,)))
    sample("y", dist.Normal(both[0] + both[1] * x, NOISE), obs=y)


PRIORS = {
    line: (np.array([1.0, -0.5]), np.diag([4.0, 0.49])),
    tied_line: (np.array([1.0, -0.5]), np.array([[4.0, 2.0], [2.0, 0.25 * 4.0 + 0.49]])),
    joint_line: (JOINT_MEAN, JOINT_COVARIANCE),
}


@lru_cache
def xy(num_rows=23):
    rng = np.random.default_rng(0)
    x = rng.normal(1.0, 1.5, num_rows)
    return {"x": x, "y": 0.3 + 0.6 * x + rng.normal(0, NOISE, num_rows)}


def conjugate(prior, weight=None):
    """The posterior of intercept and slope by hand; `prior` None is flat."""
    data = xy()
    design = np.column_stack([np.ones_like(data["x"]), data["x"]])
    weighted = design * (np.ones(len(design)) if weight is None else weight)[:, None]
    precision, pull = weighted.T @ design / NOISE**2, weighted.T @ data["y"] / NOISE**2
    if prior is not None:
        precision, pull = precision + np.linalg.inv(prior[1]), pull + np.linalg.solve(prior[1], prior[0])
    return FullGaussian.from_moments(jnp.asarray(np.linalg.solve(precision, pull)), jnp.linalg.inv(precision))


@pytest.mark.parametrize("function", PRIORS, ids=lambda function: function.__name__)
@thorough
def test_gaussian_priors_give_the_conjugate_posterior(function):
    model = numpyro_model(function, xy())
    algorithm = cavity.PVI(model)
    mean, covariance = PRIORS[function]
    assert not algorithm.model.corrected
    assert cavity.kl(algorithm.prior, FullGaussian.from_moments(jnp.asarray(mean), jnp.asarray(covariance))) < 1e-12
    fit = cavity.run(algorithm, shared_out(xy(), [4, 12, 7]))
    assert cavity.kl(fit.posterior, conjugate(PRIORS[function])) < 1e-9
    assert cavity.kl(conjugate(PRIORS[function]), fit.posterior) < 1e-9
    assert list(fit.server.names) == ["client0", "client1", "client2"]
    assert set(fit.server.entries) == set(fit.server.names)


@pytest.mark.slow
def test_weights_of_rows_count():
    weight = np.random.default_rng(1).integers(0, 4, 23).astype(float)
    clients = {
        name: cavity.Weighted(data, weight[rows])
        for (name, data), rows in zip(shared_out(xy(), [15, 8]).items(), (slice(0, 15), slice(15, 23)), strict=True)
    }
    fit = cavity.run(cavity.PVI(numpyro_model(line, xy())), clients)
    assert cavity.kl(fit.posterior, conjugate(PRIORS[line], weight)) < 1e-9
    assert cavity.kl(fit.posterior, conjugate(PRIORS[line])) > 1e-2


@thorough
def test_a_flat_prior_gives_least_squares():
    """The base is a proper Gaussian, and the server's row takes it out again, to nothing."""
    algorithm = cavity.PVI(numpyro_model(flat_line, xy()))
    assert algorithm.model.corrected
    fit = rest(algorithm, shared_out(xy(), [4, 12, 7]))
    assert cavity.kl(fit.posterior, conjugate(None)) < 1e-9
    prior = fit.server.prior * fit.server.entries[SERVER]
    np.testing.assert_allclose(prior.precision, 0.0, atol=1e-9)
    np.testing.assert_allclose(prior.precision_mean, 0.0, atol=1e-9)


@pytest.mark.slow
def test_a_prior_outside_a_mean_field_family_is_corrected_for():
    """Of a Gaussian target the closest one without correlations has its mean, and the diagonal of its precision."""
    model = as_rows(numpyro_model(joint_line, xy()), DiagonalGaussian)
    assert model.corrected
    assert not as_rows(numpyro_model(line, xy()), DiagonalGaussian).corrected
    fit = rest(cavity.PVI(model), shared_out(xy(), [4, 12, 7]))
    exact = conjugate(PRIORS[joint_line])
    np.testing.assert_allclose(fit.posterior.mean, exact.mean, atol=1e-6)
    np.testing.assert_allclose(fit.posterior.precision, np.diag(exact.precision), rtol=1e-6)


# priors that are no Gaussians


def counts(exposure, count):
    rate = sample("rate", dist.Gamma(SHAPE, RATE))
    sample("count", dist.Poisson(rate * exposure), obs=count)


@lru_cache
def count_data():
    rng = np.random.default_rng(2)
    exposure = rng.uniform(0.2, 1.0, 9)
    return {"exposure": exposure, "count": rng.poisson(2.5 * exposure)}


def gamma_posterior(power=1.0):
    return SHAPE + power * count_data()["count"].sum(), RATE + power * count_data()["exposure"].sum()


def of_gamma(shape, rate):
    """Mean and sd of the Gaussian closest to the log of a Gamma variable."""
    return closest_gaussian_1d(lambda z: shape * z - rate * np.exp(z), np.log(shape / rate))


@lru_cache
def counted(num_clients, start=None):
    sizes = {1: [9], 3: [2, 4, 3], 2: [2, 4]}[num_clients]
    model = numpyro_model(counts, count_data(), start=None if start is None else {"rate": start})
    return rest(cavity.PVI(model), shared_out(count_data(), sizes))


def test_the_reference_is_right():
    """The closest Gaussian to the log of a Gamma is known: m = log(shape / rate) - 1 / (2 shape), s^2 = 1 / shape."""
    np.testing.assert_allclose(of_gamma(5.0, 2.0), [np.log(2.5) - 0.1, 5.0**-0.5], rtol=1e-6)


@pytest.mark.parametrize("num_clients", [1, 3])
@thorough
def test_a_gamma_prior_of_counts(num_clients):
    fit = counted(num_clients)
    assert fit.algorithm.model.corrected
    mean, sd = of_gamma(*gamma_posterior())
    assert float(fit.posterior.mean[0]) == pytest.approx(mean, abs=1e-3 * sd)
    assert float(sds(fit)[0]) == pytest.approx(sd, rel=1e-3)


@pytest.mark.parametrize("start", [-2.0, 3.0])
@thorough
def test_neither_partition_nor_base_matter(start):
    alone = counted(1)
    for other in (counted(3), counted(3, start)):
        np.testing.assert_allclose(other.posterior.mean, alone.posterior.mean, atol=1e-6)
        np.testing.assert_allclose(sds(other), sds(alone), atol=1e-6)
    assert float(counted(3, start).server.prior.mean[0]) == pytest.approx(start)


def location(y, error):
    """Errors are a column; those of an empty row would be impossible."""
    where = sample("where", dist.StudentT(3.0, 0.5, 0.4))
    sample("y", dist.Normal(where, error), obs=y)


def spread(y):
    scale = sample("scale", dist.HalfCauchy(0.5))
    sample("y", dist.Normal(1.0, scale), obs=y)


def shares(kind):
    p = sample("p", dist.Dirichlet(jnp.array([0.7, 1.5, 2.0])))
    sample("kind", dist.Categorical(p), obs=kind)


@lru_cache
def location_data():
    rng = np.random.default_rng(3)
    error = rng.uniform(0.5, 2.0, 8)
    return {"y": rng.normal(2.0, error), "error": error}


@lru_cache
def located():
    return rest(cavity.PVI(numpyro_model(location, location_data())), shared_out(location_data(), [1, 4, 3]))


@thorough
def test_a_student_prior_of_a_location():
    data = location_data()
    precision, pull = (1 / data["error"] ** 2).sum(), (data["y"] / data["error"] ** 2).sum()

    def log_density(z):
        return -2.0 * np.log1p(((z - 0.5) / 0.4) ** 2 / 3.0) - 0.5 * precision * z**2 + pull * z

    mean, sd = closest_gaussian_1d(log_density)
    assert float(located().posterior.mean[0]) == pytest.approx(mean, abs=1e-3 * sd)
    assert float(sds(located())[0]) == pytest.approx(sd, rel=1e-3)


@thorough
def test_rows_are_what_each_owner_says():
    """A Gaussian likelihood is its own factor: were anything counted twice, a row would show it."""
    fit = located()
    total, pull = fit.server.prior.precision, fit.server.prior.precision_mean
    assert set(fit.server.entries) == {"client0", "client1", "client2", SERVER}
    for row in fit.server.entries.values():
        total, pull = total + row.precision, pull + row.precision_mean
    np.testing.assert_allclose(fit.posterior.precision, total, rtol=1e-12)
    np.testing.assert_allclose(fit.posterior.precision_mean, pull, rtol=1e-12)
    for name, data in shared_out(location_data(), [1, 4, 3]).items():
        row = fit.server.entries[name]
        assert float(row.precision[0, 0]) == pytest.approx((1 / data["error"] ** 2).sum(), rel=1e-6)
        assert float(row.precision_mean[0]) == pytest.approx((data["y"] / data["error"] ** 2).sum(), rel=1e-6)


@thorough
def test_a_half_cauchy_prior_of_a_scale():
    y = np.random.default_rng(4).normal(1.0, 1.7, 12)
    squares = ((y - 1.0) ** 2).sum()

    def log_density(z):  # of the log of the scale, with its Jacobian
        return -np.log1p(np.exp(2 * z) / 0.25) + z - 12 * z - 0.5 * squares * np.exp(-2 * z)

    fit = rest(cavity.PVI(numpyro_model(spread, {"y": y})), shared_out({"y": y}, [5, 7]))
    mean, sd = closest_gaussian_1d(log_density)
    assert float(fit.posterior.mean[0]) == pytest.approx(mean, abs=1e-3 * sd)
    assert float(sds(fit)[0]) == pytest.approx(sd, rel=1e-3)


@thorough
def test_single_precision_is_enough():
    """Python's default: the correction of the prior is computed in it too."""
    double = located()
    with jax.enable_x64(False):
        model = numpyro_model(location, location_data())
        single = cavity.run(cavity.PVI(model), shared_out(location_data(), [1, 4, 3]), rounds=30)
    assert single.algorithm.model.corrected
    np.testing.assert_allclose(single.posterior.mean, double.posterior.mean, atol=1e-2 * float(sds(double)[0]))
    np.testing.assert_allclose(sds(single), sds(double), rtol=1e-2)


@lru_cache
def shared_kinds():
    kind = np.repeat([0, 1, 2], [6, 3, 11])[np.random.default_rng(5).permutation(20)]
    return rest(cavity.PVI(numpyro_model(shares, {"kind": kind})), shared_out({"kind": kind}, [8, 5, 7]))


@pytest.mark.slow
def test_a_dirichlet_prior_of_shares():
    """Broken sticks of a Dirichlet are independent Betas, so the closest Gaussian to their logits has no correlation.

    NumPyro's unconstrained value of stick i of K is logit(stick) + log(K - 1 - i).
    """
    fit = shared_kinds()
    mean, covariance = moments(fit)
    sticks = [(0.7 + 6, 1.5 + 3 + 2.0 + 11, np.log(2.0)), (1.5 + 3, 2.0 + 11, 0.0)]
    for i, (first, second, shift) in enumerate(sticks):

        def log_density(z, first=first, second=second, shift=shift):
            return first * (z - shift) - (first + second) * np.logaddexp(0.0, z - shift)

        expected, sd = closest_gaussian_1d(log_density)
        assert mean[i] == pytest.approx(expected, abs=1e-3 * sd)
        assert np.sqrt(covariance[i, i]) == pytest.approx(sd, rel=1e-3)
    assert abs(covariance[0, 1]) < 1e-3 * covariance[0, 0]


# what is done with such a fit


@thorough
def test_withdrawn_is_never_there():
    without = counted(3).withdraw("client2", tolerance=LEFT_OVER)
    never = counted(2)
    assert cavity.kl(without.posterior, never.posterior) < 1e-10
    assert cavity.kl(without.posterior, counted(3).posterior) > 1e-3
    assert without.server.names == never.server.names
    np.testing.assert_allclose(
        without.server.entries[SERVER].precision, never.server.entries[SERVER].precision, rtol=1e-4
    )
    with pytest.raises(CavityError, match="prior is not a client"):
        counted(3).withdraw(SERVER)


@pytest.mark.slow
def test_without_any_client_the_prior_is_left():
    fit = counted(1).withdraw("client0", tolerance=LEFT_OVER)
    mean, sd = of_gamma(SHAPE, RATE)
    assert float(fit.posterior.mean[0]) == pytest.approx(mean, abs=1e-3 * sd)
    assert float(sds(fit)[0]) == pytest.approx(sd, rel=1e-3)


@thorough
def test_late_is_as_good_as_early():
    last = shared_out(count_data(), [2, 4, 3])["client2"]
    joined = counted(2).join("client2", last, tolerance=LEFT_OVER)
    assert cavity.kl(joined.posterior, counted(3).posterior) < 1e-10
    assert sorted(joined.server.names) == sorted(counted(3).server.names)


@pytest.mark.slow
def test_influence_and_remarks_are_of_clients_alone():
    fit = counted(3)
    found = fit.influence()
    assert list(found) == ["client0", "client1", "client2"]
    removed = cavity.kl(counted(2).posterior, fit.posterior)
    assert found["client2"].kl == pytest.approx(removed, rel=1e-3)
    assert list(found["client2"].shift) == ["rate"]
    assert fit.summary().remarks[0].startswith("3 clients, ")
    assert counted(1).summary().remarks[0].startswith("1 client, ")
    assert list(fit.influence(refine=False)) == list(found)
    assert [record["communications"] for record in fit.history[:2]] == [3, 6]


@pytest.mark.slow
def test_one_more_row_moves_the_posterior_as_it_would():
    fit = counted(3)
    row = {"exposure": np.array([0.8]), "count": np.array([6])}
    moved = fit.row_influence("client1", row)[0]
    sizes = {"client1": {name: np.append(fit.clients["client1"].batch[name], row[name]) for name in row}}
    again = rest(fit.algorithm, shared_out(count_data(), [2, 4, 3]) | sizes)
    shift = (float(again.posterior.mean[0]) - float(fit.posterior.mean[0])) / float(sds(fit)[0])
    assert moved.shift["rate"] == pytest.approx(shift, rel=0.1)  # the others do not settle again


@thorough
def test_a_fit_comes_back_from_its_file(tmp_path):
    fit, clients = counted(3), shared_out(count_data(), [2, 4, 3])
    fit.save(tmp_path / "fit.npz")
    with pytest.raises(CavityError, match="algorithm="):
        cavity.load(tmp_path / "fit.npz")
    back = cavity.load(tmp_path / "fit.npz", algorithm=fit.algorithm)
    np.testing.assert_array_equal(back.posterior.precision, fit.posterior.precision)
    assert back.summary()["rate"] == fit.summary()["rate"]
    assert back.summary().remarks == fit.summary().remarks
    with_data = cavity.load(tmp_path / "fit.npz", algorithm=fit.algorithm, clients=clients)
    without = with_data.withdraw("client2", tolerance=LEFT_OVER)
    assert cavity.kl(without.posterior, counted(2).posterior) < 1e-10


@thorough
def test_a_resumed_run_is_the_one_that_was_not_interrupted(tmp_path):
    algorithm, clients = counted(3).algorithm, shared_out(count_data(), [2, 4, 3])
    cavity.run(algorithm, clients, rounds=2, tolerance=0.0, directory=tmp_path)
    resumed = cavity.resume(tmp_path, clients, algorithm=algorithm, rounds=200, tolerance=LEFT_OVER)
    np.testing.assert_array_equal(resumed.posterior.precision, counted(3).posterior.precision)
    np.testing.assert_array_equal(resumed.posterior.precision_mean, counted(3).posterior.precision_mean)


@pytest.mark.slow
def test_other_ways_to_the_same_posterior():
    """One after the other, in blocks of rounds, and with the factors at the clients."""
    algorithm, clients = counted(3).algorithm, shared_out(count_data(), [2, 4, 3])
    for options in ({"schedule": Sequential()}, {"rounds_per_block": 5}, {"factors": "clients"}):
        fit = rest(algorithm, clients, **options)
        assert cavity.kl(fit.posterior, counted(3).posterior) < 1e-10, options
        assert fit.history[0]["communications"] == 3
    streamed = rest(algorithm, LoadedWhenAsked(clients), chunk=2)
    assert cavity.kl(streamed.posterior, counted(3).posterior) < 1e-10
    assert streamed.server.names == counted(3).server.names
    assert streamed.history[0]["bytes"] == counted(3).history[0]["bytes"]


@pytest.mark.slow
def test_a_number_is_chosen_by_the_clients_rows_alone():
    """The server's row is neither dealt into folds nor scored, and the prior counts in every fold."""
    model, clients = numpyro_model(counts, count_data()), shared_out(count_data(), [2, 4, 3])
    score = expected_loss(NegativeLogLikelihood())
    found = cavity.choose(
        lambda weight: cavity.FedGVI(model, Tempered(weight)),
        [0.01, 1.0],
        clients,
        num_folds=2,
        score=score,
        errors=0.0,
    )
    # with a hundredth of the data the prediction is the prior's: E[rate x - count log(rate x)] of each row
    (mean, sd), data = of_gamma(SHAPE, RATE), count_data()
    log_rate = np.log(data["exposure"])
    alone = (
        data["exposure"] * np.exp(mean + 0.5 * sd**2) - data["count"] * (mean + log_rate) + gammaln(data["count"] + 1)
    )
    assert found.scores[0] == pytest.approx(alone.mean(), rel=0.05)


@thorough
def test_summary_draws_and_predictions_are_in_the_authors_terms():
    fit, (shape, rate) = counted(3), gamma_posterior()
    s2 = 1 / shape  # the closest Gaussian is known, and of its exponential the moments
    mean, sd = shape / rate, shape / rate * np.sqrt(np.expm1(s2))
    error = 5 * sd / np.sqrt(10_000)
    summary = fit.summary()
    assert [estimate.name for estimate in summary] == ["rate"]
    assert summary["rate"].mean == pytest.approx(mean, abs=error)
    assert summary["rate"].sd == pytest.approx(sd, rel=0.05)
    middle = np.log(shape / rate) - 0.5 * s2
    for end, sign in ((summary["rate"].lower, -1.0), (summary["rate"].upper, 1.0)):
        assert end == pytest.approx(np.exp(middle + sign * 1.96 * np.sqrt(s2)), rel=0.02)
    exposure = np.array([1.0, 3.0])
    predicted = fit.predict({"exposure": exposure}, num_draws=10_000)
    np.testing.assert_allclose(predicted.mean, exposure * mean, atol=3 * error)
    np.testing.assert_allclose(predicted.sd, exposure * sd, rtol=0.05)
    draws = fit.to_arviz(num_draws=10_000).posterior
    assert set(draws.data_vars) == {"rate"}
    assert draws["rate"].shape == (1, 10_000)
    assert float(draws["rate"].min()) > 0.0
    assert float(draws["rate"].mean()) == pytest.approx(mean, abs=error)


@pytest.mark.slow
def test_vectors_are_named_by_entry():
    fit = shared_kinds()
    assert [estimate.name for estimate in fit.summary()] == ["p[0]", "p[1]", "p[2]"]
    assert sum(estimate.mean for estimate in fit.summary()) == pytest.approx(1.0)
    draws = fit.to_arviz(num_draws=50).posterior["p"]
    assert draws.shape == (1, 50, 3)
    np.testing.assert_allclose(draws.sum(axis=-1), 1.0)


# scales that are far apart


def far_apart(x, y):
    level = sample("level", dist.Normal(0.0, 1e5))
    slope = sample("slope", dist.Normal(0.0, 10.0))
    sd = sample("sd", dist.HalfCauchy(1000.0))
    sample("y", dist.Normal(level + slope * x, sd), obs=y)


@pytest.mark.slow
def test_badly_scaled_coefficients():
    rng = np.random.default_rng(6)
    x = rng.uniform(0.0, 60_000.0, 300)
    data = {"x": x, "y": 20_000 + 0.01 * x + rng.normal(0, 300.0, 300)}
    fit = cavity.run(cavity.PVI(numpyro_model(far_apart, data)), shared_out(data, [60, 160, 80]))
    assert fit.converged
    design = np.column_stack([np.ones(300), x])
    update, squares = np.linalg.lstsq(design, data["y"])[:2]
    sd = np.sqrt(squares[0] / 298 * np.diag(np.linalg.inv(design.T @ design)))
    found, spreads = moments(fit)[0], sds(fit)
    assert np.abs((found[:2] - update) / sd).max() < 0.05
    np.testing.assert_allclose(spreads[:2], sd, rtol=0.03)
    assert fit.summary()["sd"].mean == pytest.approx(np.sqrt(squares[0] / 298), rel=0.01)
    assert spreads[2] == pytest.approx(1 / np.sqrt(2 * 300), rel=0.03)


def yearly(year, count):
    level = sample("level", dist.Normal(0.0, 100.0))
    trend = sample("trend", dist.Normal(0.0, 1.0))
    sample("count", dist.Poisson(jnp.exp(level + trend * year)), obs=count)


@pytest.mark.slow
def test_counts_by_uncentred_year():
    """The closest Gaussian, found by its fixed point with the year centred, where E[exp f] = exp(m + v / 2)."""
    rng = np.random.default_rng(7)
    year = rng.integers(1990, 2011, 60).astype(float)
    data = {"year": year, "count": rng.poisson(np.exp(1.6 + 0.03 * (year - 2000)))}
    centre = np.array([[1.0, 2000.0], [0.0, 1.0]])  # (level, trend) -> (level in 2000, trend)
    prior = np.linalg.inv(centre @ np.diag([1e4, 1.0]) @ centre.T)
    design = np.column_stack([np.ones(60), year - 2000])
    mean, covariance = np.array([1.6, 0.03]), np.eye(2) * 1e-4
    for _ in range(100):
        rate = np.exp(design @ mean + 0.5 * np.einsum("ni,ij,nj->n", design, covariance, design))
        covariance = np.linalg.inv(prior + design.T @ (rate[:, None] * design))
        mean = mean + covariance @ (design.T @ (data["count"] - rate) - prior @ mean)
    fit = rest(cavity.PVI(numpyro_model(yearly, data)), shared_out(data, [10, 35, 15]))
    found, spread = moments(fit)
    found, spread = centre @ found, centre @ spread @ centre.T
    np.testing.assert_allclose((found - mean) / np.sqrt(np.diag(covariance)), 0.0, atol=1e-3)
    np.testing.assert_allclose(np.sqrt(np.diag(spread)), np.sqrt(np.diag(covariance)), rtol=1e-3)


# FedGVI


@thorough
@pytest.mark.parametrize(
    ("loss", "divergence", "power"),
    [
        (NegativeLogLikelihood(), WeightedKL(0.5), 0.5),
        (Tempered(3.0), KL(), 3.0),
        pytest.param(Tempered(3.0), WeightedKL(0.5), 1.5, marks=pytest.mark.slow),
    ],
    ids=["weighted KL", "tempered", "both"],
)
def test_the_prior_counts_once_whatever_the_rows_do(loss, divergence, power):
    algorithm = cavity.FedGVI(numpyro_model(counts, count_data()), loss, divergence)
    fit = rest(algorithm, shared_out(count_data(), [2, 4, 3]))
    mean, sd = of_gamma(*gamma_posterior(power))
    assert float(fit.posterior.mean[0]) == pytest.approx(mean, abs=1e-3 * sd)
    assert float(sds(fit)[0]) == pytest.approx(sd, rel=1e-3)
    twice = of_gamma(*(power * np.array(gamma_posterior())))  # a power of the prior too would be seen
    assert abs(twice[1] - sd) > 0.02 * sd


@pytest.mark.slow
def test_fedgvi_of_the_likelihood_is_pvi():
    fit = rest(
        cavity.FedGVI(numpyro_model(counts, count_data()), NegativeLogLikelihood()), shared_out(count_data(), [2, 4, 3])
    )
    assert cavity.kl(fit.posterior, counted(3).posterior) < 1e-12


@thorough
def test_losses_and_divergences_that_would_bend_the_prior_are_refused():
    model = numpyro_model(counts, count_data())
    nll = NegativeLogLikelihood()
    for options in (
        {"divergence": Renyi(0.5)},
        {"server_divergence": Renyi(0.5)},
        {"server_divergence": WeightedKL(2.0)},
    ):
        with pytest.raises(CavityError, match="no Gaussian on the unconstrained scale .* Gaussian priors"):
            cavity.FedGVI(model, nll, **options)
    with pytest.raises(CavityError, match="loss Beta needs .* GlobalsOnly has none"):
        cavity.FedGVI(model, Beta(0.5))
    gaussian = cavity.FedGVI(numpyro_model(line, xy()), nll, Renyi(0.5))
    assert not gaussian.model.corrected


# what is refused


def test_what_sfvi_is_for_is_refused_by_name():
    def grouped(group, y, num_groups):
        level = sample("level", dist.Normal(0.0, 1.0))
        with plate("groups", num_groups):
            own = sample("own", dist.Normal(level, 1.0))
        sample("y", dist.Normal(own[group], 1.0), obs=y)

    def learned(y):
        level = sample("level", dist.Normal(0.0, 1.0))
        noise = numpyro.param("noise", 1.0, constraint=constraints.positive)
        sample("y", dist.Normal(level, noise), obs=y)

    def drawn(y):
        level = sample("level", dist.Normal(0.0, 1.0))
        with plate("some", len(y), subsample_size=2) as rows:
            sample("outcome", dist.Normal(level, 1.0), obs=y[rows])

    data = {"group": np.array([0, 0, 1, 1]), "y": np.arange(4.0)}
    cases = (
        (numpyro_model(grouped, data, unit="group", num_units="num_groups"), "own stay at their client"),
        (numpyro_model(learned, {"y": data["y"]}), "noise are learned"),
        (numpyro_model(drawn, {"y": data["y"]}), "draws rows of outcome"),
    )
    for model, message in cases:
        methods = (cavity.PVI, lambda model: cavity.FedGVI(model, NegativeLogLikelihood()))
        for method in methods if "client" not in message else methods[1:]:  # PVI integrates local latents out
            with pytest.raises(CavityError, match=message):
                method(model)


@thorough
def test_data_that_do_not_fit_are_refused_with_the_client():
    algorithm = counted(1).algorithm
    with pytest.raises(cavity.errors.DataError, match="'leeds'.*column 'count' not found"):
        cavity.run(algorithm, {"leeds": {"exposure": np.ones(2)}})
    with pytest.raises(cavity.errors.DataError, match="'leeds'.*whole numbers"):
        cavity.run(algorithm, {"leeds": {"exposure": np.ones(2), "count": np.array([0.5, 1.0])}})
