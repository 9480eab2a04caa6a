"""The verdict on the approximation: against posteriors on grids, in plain numpy and SciPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import cavity
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.evaluation import assessment, proposals, psis, verdict
from cavity.evaluation.moment_errors import moment_errors
from cavity.fit.run import prepare
from cavity.models import function_model, linear_regression, logistic_regression, poisson_regression
from tests import scenarios
from tests.doubles import LoadedWhenAsked
from tests.marks import exhaustive, thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")


@dataclass
class Case:
    """A fit, and mean and sd of each parameter by a grid."""

    fit: cavity.Fit
    mean: np.ndarray
    sd: np.ndarray

    @property
    def sd_error(self):
        """The largest relative error of a fitted sd."""
        return np.max(np.abs(np.sqrt(np.asarray(self.fit.posterior.variance)) / self.sd - 1))


def on_grid(log_density, *axes):
    """Means and sds of a density on a regular grid; `log_density` takes one array per parameter."""
    points = np.meshgrid(*axes, indexing="ij")
    log_p = log_density(*points)
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    mean = np.array([np.sum(weight * x) for x in points])
    return mean, np.array([np.sqrt(np.sum(weight * (x - m) ** 2)) for x, m in zip(points, mean, strict=True)])


def nine_zeros():
    """A Poisson rate of which nine counts say that it is small: to the left the posterior is the prior."""
    with pytest.warns(UserWarning, match="the outcome is 0 in every row"):
        fit = cavity.run(
            cavity.PVI(poisson_regression([], prior_scale=10.0)),
            {"a": (np.zeros((4, 0)), np.zeros(4)), "b": (np.zeros((5, 0)), np.zeros(5))},
        )
    return Case(fit, *on_grid(lambda t: -(t**2) / 200 - 9 * np.exp(t), np.linspace(-70, 5, 20_001)))


def separable():
    """Outcomes that x separates, under a wide prior."""
    x = np.array([-2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2])
    y = (x > 0).astype(float)
    fit = cavity.run(
        cavity.PVI(logistic_regression(1, intercept=False, prior_scale=10.0)),
        {"a": (x[::2, None], y[::2]), "b": (x[1::2, None], y[1::2])},
    )
    log_p = lambda t: -(t**2) / 200 - np.logaddexp(0, -np.multiply.outer(t, np.abs(x))).sum(-1)  # noqa: E731
    return Case(fit, *on_grid(log_p, np.linspace(-5, 70, 20_001)))


def six_rows():
    """A mean and a log sd from six rows."""
    y, no_columns = np.random.default_rng(3).normal(1.0, 2.0, 6), np.zeros((3, 0))
    clients = {"a": (no_columns, y[:3]), "b": (no_columns, y[3:])}
    fit = cavity.run(cavity.PVI(linear_regression([], prior_scale=10.0)), clients)
    prior_mean, prior_sd = np.asarray(fit.server.prior.mean), np.sqrt(np.asarray(fit.server.prior.variance))

    def log_p(location, log_sd):
        squares = ((location[..., None] - y) ** 2).sum(-1)
        prior = ((location - prior_mean[0]) / prior_sd[0]) ** 2 + ((log_sd - prior_mean[1]) / prior_sd[1]) ** 2
        return -prior / 2 - 6 * log_sd - squares / 2 * np.exp(-2 * log_sd)

    return Case(fit, *on_grid(log_p, np.linspace(-40, 42, 2001), np.linspace(-2, 8, 801)))


def bimodal(gap, *, evenly=False):
    """The location of Cauchy data in two clusters, of which the fit finds one, unless they are of one size."""
    y = np.array([-1.0, -0.4, 0.1, 0.5, 1.0])
    y = np.concatenate([y - gap, y[: 5 if evenly else 4] + gap])
    model = function_model(lambda p, batch: -jnp.log1p((batch - p["a"]) ** 2), {"a": 0.0}, prior_scale=10.0)
    fit = cavity.run(cavity.PVI(model), {"a": y[::2], "b": y[1::2]})
    log_p = lambda t: -(t**2) / 200 - np.log1p(np.subtract.outer(t, y) ** 2).sum(-1)  # noqa: E731
    return Case(fit, *on_grid(log_p, np.linspace(-30, 30, 20_001)))


ROWS = 3000


@cache
def clean_rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=ROWS), rng.random(ROWS)


def clean(seed):
    """A logistic regression with 300 to 3,000 rows, each seed with other coefficients; one program for all."""
    rng = np.random.default_rng(seed)
    x, u = (np.roll(column, 97 * seed) for column in clean_rows())
    num_rows = [300, 500, 1000, 3000][seed % 4]
    intercept, slope = rng.normal(0, 0.8, 2)
    y = (u < 1 / (1 + np.exp(-intercept - slope * x))).astype(float)
    weight = np.where(np.arange(ROWS) < num_rows, 1.0, 0.0)
    rows = cavity.Weighted((x[:, None], y), weight)
    fit = cavity.run(cavity.PVI(logistic_regression(1, prior_scale=2.5)), {"a": rows})
    x, y = x[:num_rows], y[:num_rows]
    mean, sd = np.asarray(fit.posterior.mean), np.sqrt(np.asarray(fit.posterior.variance))

    def log_p(a, b):
        f = a[..., None] + b[..., None] * x
        return -(a**2 + b**2) / (2 * 2.5**2) + np.sum(y * f - np.logaddexp(0, f), axis=-1)

    return Case(fit, *on_grid(log_p, *(np.linspace(m - 7 * s, m + 7 * s, 41) for m, s in zip(mean, sd, strict=True))))


def check_against_grid(case, found):
    """The corrected values are those of the grid, within four Monte Carlo errors."""
    means, sds = np.array(list(found.means.values())), np.array(list(found.sds.values()))
    assert np.max(np.abs(means - case.mean) / case.sd) < 4 * found.monte_carlo_error
    assert np.max(np.abs(np.log(sds / case.sd))) < 4 * found.monte_carlo_error
    assert abs(found.sd_error - case.sd_error) < 4 * found.monte_carlo_error


@pytest.mark.parametrize("make", [nine_zeros, separable, six_rows])
@thorough
def test_a_posterior_that_is_no_gaussian_is_rough(make):
    """All have means that look right, and k below 0.7 for draws of the fit itself."""
    case = make()
    assert 0.2 < case.sd_error < 0.5
    found = case.fit.verdict
    assert found.verdict == "rough"
    assert "fit.verdict.sds" in str(found)
    check_against_grid(case, found)


@pytest.mark.parametrize("gap", [3.0, 4.0, 6.0])
def test_a_second_mode_is_seen(gap):
    case = bimodal(gap)
    assert case.sd_error > 0.5
    assert case.fit.verdict.verdict == "do not use"


def test_a_gaussian_across_two_modes_is_not_to_be_used():
    """Its mean and sd are nearly right, and it is most likely where the posterior is not."""
    case = bimodal(3.0, evenly=True)
    assert case.sd_error < 0.4
    found = case.fit.verdict
    assert found.verdict == "do not use"
    assert found.log_weight_sd > 1.5


def check_clean(seeds):
    for seed in seeds:
        case = clean(seed)
        assert case.sd_error < 0.05
        found = case.fit.verdict
        assert found.verdict in ("exact for practical purposes", "good"), seed
        check_against_grid(case, found)


@thorough
def test_clean_regressions_are_good_or_better():
    check_clean(range(4))


@exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 10, 20, 30])
def test_forty_clean_regressions_are_good_or_better(first):
    check_clean(range(first, first + 10))


def test_the_number_of_effective_draws_is_no_argument_where_k_is_high():
    """Weights of which all but a few are equal: 99 % effective, and a Pareto tail with k = 1."""
    rng = np.random.default_rng(0)
    log_ratio = np.zeros(4000)
    log_ratio[:200] = np.log1p(rng.pareto(1.0, 200) / 100)
    weights = psis.ImportanceWeights(None, log_ratio)
    assert weights.effective_draws > 0.99 * 4000
    log_p, log_q, of_q = log_ratio, np.zeros(4000), np.full(4000, True)
    theta = rng.normal(size=(4000, 1))
    posterior = FullGaussian.from_moments(np.zeros(1), np.eye(1))
    found, settled = verdict.verdict_from_weights(
        theta, log_p, log_q, of_q, ("a",), assessment.approximation(posterior)
    )
    assert found.pareto_k > 0.7
    assert found.verdict == "do not use"
    assert not settled


@thorough
def test_draws_are_added_until_the_verdict_settles_or_the_budget_is_spent(monkeypatch):
    case = bimodal(6.0)
    assert case.fit.verdict.num_draws == assessment.MOST_DRAWS  # k stays above 0.7
    assert clean(3).fit.verdict.num_draws == assessment.BATCH
    monkeypatch.setattr(assessment, "MOST_WORK", 1)
    assert bimodal(6.0).fit.verdict.num_draws == assessment.BATCH  # what it would cost counts


@pytest.mark.parametrize("dimension", [1, 3])
def test_the_proposal_is_the_mixture_that_is_stated(dimension):
    rng = np.random.default_rng(dimension)
    root = np.tril(rng.normal(size=(dimension, dimension))) + 2 * np.eye(dimension)
    mean, covariance = rng.normal(size=dimension), root @ root.T
    q = FullGaussian.from_moments(mean, covariance)
    draws = proposals.draw(q, 20_000, seed=1)
    parts = [
        (share, stats.multivariate_normal(mean, covariance) if np.isinf(nu) else
         stats.multivariate_t(mean, scale**2 * covariance, nu))
        for share, nu, scale in proposals.PARTS
    ]  # fmt: skip
    density = sum(share * part.pdf(draws.theta) for share, part in parts)
    np.testing.assert_allclose(draws.log_proposal, np.log(density), rtol=1e-12, atol=1e-8)
    np.testing.assert_allclose(draws.log_q, parts[0][1].logpdf(draws.theta), rtol=1e-12, atol=1e-8)
    ratio = np.exp(draws.log_q - draws.log_proposal)  # E_g[q / g] = 1
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(20_000)
    inside = np.mean([np.mean(np.abs(part.rvs(20_000, random_state=0).reshape(20_000, -1)[:, 0] - mean[0]) < 1) * share
                      for share, part in parts]) * len(parts)  # fmt: skip
    assert np.mean(np.abs(draws.theta[:, 0] - mean[0]) < 1) == pytest.approx(inside, abs=0.02)


def test_monte_carlo_errors_are_those_of_repetitions():
    """Of a t with 8 degrees of freedom against a normal: differences over 200 seeds scatter as each one says.

    Or less, since the parts' shares of the draws are fixed.
    """
    q = FullGaussian.from_moments(np.zeros(1), np.eye(1))
    found = []
    for seed in range(200):
        draws = proposals.draw(q, 1000, seed)
        log_p = stats.t(8).logpdf(draws.theta[:, 0])
        found.append(moment_errors(draws.theta, log_p - draws.log_proposal, draws.log_q - draws.log_proposal))
    ratios = np.array([np.log(errors.ratio[0]) for errors in found])
    shifts = np.array([errors.shift[0] for errors in found])
    assert 0.6 < np.std(ratios) / np.mean([errors.ratio_error for errors in found]) < 1.15
    assert 0.6 < np.std(shifts) / np.mean([errors.shift_error for errors in found]) < 1.15
    exact = np.log(np.sqrt(6 / 8))
    assert abs(np.mean(ratios) - exact) < 4 * np.std(ratios) / np.sqrt(200) + 0.002


@pytest.mark.parametrize("family", [FullGaussian, DiagonalGaussian])
@thorough
def test_many_parameters(family):
    """A linear regression with 60: exact with all correlations; without, too uneven to judge single parameters."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 60)) + rng.normal(size=(200, 1))
    y = x[:, 0] + rng.normal(size=200)
    model = linear_regression(60, noise_sd=1.0, intercept=False, covariance=family)
    found = cavity.run(cavity.PVI(model), {"a": (x[:90], y[:90]), "b": (x[90:], y[90:])}).verdict
    if family is FullGaussian:
        assert found.verdict == "exact for practical purposes"
    else:
        assert found.verdict == "not assessed"
        assert "60 parameters" in str(found)


@thorough
def test_more_parameters_than_weights_are_of_use_for():
    model = linear_regression(
        assessment.MOST_PARAMETERS + 1, noise_sd=1.0, intercept=False, covariance=DiagonalGaussian
    )
    rows = (np.random.default_rng(0).normal(size=(4, assessment.MOST_PARAMETERS + 1)), np.arange(4.0))
    found = cavity.run(cavity.PVI(model), {"a": rows}, rounds=1).verdict
    assert found.verdict == "not assessed"
    assert "501 parameters" in str(found)


def test_a_summary_has_the_verdict_where_it_takes_seconds(monkeypatch):
    fit = clean(0).fit
    monkeypatch.setattr(psis, "AFFORDABLE", 10)
    assert "not assessed: with 3,000 rows and 2 parameters it takes longer than a summary" in str(fit.summary())
    asked = fit.verdict  # which takes as long as it takes
    assert asked.verdict != "not assessed"
    assert f"approximation: {asked}" in str(fit.summary())


def test_the_verdict_is_found_once(monkeypatch):
    fit = clean(0).fit
    first = fit.verdict
    monkeypatch.setattr(assessment, "assess", None)
    assert fit.verdict is first
    assert str(first) in str(fit.summary())


def test_local_latents_and_rounds_that_were_not_run_have_no_verdict():
    fit = prepare(cavity.PVI(logistic_regression(1)), {"a": (np.ones((3, 1)), np.array([0.0, 1, 1]))})
    assert str(fit.verdict) == "not assessed: no round has been run"


@thorough
def test_streamed_clients_have_the_same_verdict():
    problem = scenarios.logistic()
    clients = scenarios.clients(problem.x, problem.y, scenarios.homogeneous(120, 4))
    algorithm = cavity.PVI(logistic_regression(2, prior_scale=problem.prior_scale))
    ours, streamed = cavity.run(algorithm, clients).verdict, cavity.run(algorithm, LoadedWhenAsked(clients)).verdict
    assert streamed.verdict == ours.verdict
    assert streamed.sds == pytest.approx(ours.sds, rel=5 * streamed.monte_carlo_error)


@thorough
def test_single_precision_judges_in_double():
    with jax.enable_x64(False):
        problem = scenarios.logistic()
        clients = scenarios.clients(problem.x, problem.y, scenarios.homogeneous(120, 2))
        model = logistic_regression(2, prior_scale=problem.prior_scale)
        single = cavity.run(cavity.PVI(model), clients, tolerance=1e-4).verdict
    double = cavity.run(cavity.PVI(logistic_regression(2, prior_scale=problem.prior_scale)), clients).verdict
    assert single.verdict == double.verdict
    assert single.sd_error == pytest.approx(double.sd_error, abs=2e-3)


def test_corrected_values_are_in_the_units_of_the_summary():
    """Columns far from 0 and of another scale: with scaling, intercept and slope are reported in data units."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    age = rng.normal(60, 10, 400)
    y = (rng.random(400) < 1 / (1 + np.exp(-(age - 60) / 20))).astype(int)
    tables = {"a": pandas.DataFrame({"y": y, "age": age})[:150], "b": pandas.DataFrame({"y": y, "age": age})[150:]}
    fit = cavity.regression("y ~ age", tables, family="logistic")
    summary, found = fit.summary(), fit.verdict
    for estimate in summary:
        assert found.means[estimate.name] == pytest.approx(estimate.mean, abs=0.1 * estimate.sd)
        assert found.sds[estimate.name] == pytest.approx(estimate.sd, rel=0.05)
