"""Importance weights and Pareto k: against pooled sums in plain numpy, closed forms, and ArviZ."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import cavity
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.divergences import Renyi, WeightedKL
from cavity.errors import CavityError, UnsuitableError
from cavity.evaluation.psis import FEWEST_DRAWS, importance_weights, log_likelihoods, pareto_k
from cavity.losses import Beta, ScoreMatching, Tempered
from cavity.losses.score_matching import SquaredExponential
from cavity.models import linear_regression, logistic_regression, normal_location, poisson_regression
from tests import scenarios
from tests.doubles import LoadedWhenAsked
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

PROBLEM = scenarios.logistic()


def logistic_clients(parts):
    return scenarios.clients(PROBLEM.x, PROBLEM.y, parts)


@cache
def fitted(num_clients=4):
    model = logistic_regression(2, prior_scale=PROBLEM.prior_scale)
    return cavity.run(cavity.PVI(model), logistic_clients(scenarios.homogeneous(120, num_clients)))


def pooled_log_weights(posterior, draws):
    """log prior + log likelihood of all rows - log q, by SciPy."""
    f = draws @ np.column_stack([np.ones(120), PROBLEM.x]).T
    log_likelihood = np.sum(PROBLEM.y * f - np.logaddexp(0, f), axis=1)
    prior = stats.multivariate_normal(np.zeros(3), PROBLEM.prior_scale**2 * np.eye(3))
    q = stats.multivariate_normal(np.asarray(posterior.mean), np.asarray(posterior.covariance))
    return prior.logpdf(draws) + log_likelihood - q.logpdf(draws)


def test_weights_are_those_of_pooled_rows():
    weights = fitted().importance_weights(300, seed=5)
    expected = pooled_log_weights(fitted().posterior, weights.draws)
    np.testing.assert_allclose(weights.log_weights, expected, rtol=0, atol=1e-9)
    assert weights.pareto_k == pytest.approx(pareto_k(expected), abs=1e-7)


@settings(max_examples=10, deadline=None)
@given(owner=st.lists(st.integers(0, 4), min_size=120, max_size=120))
def test_weights_do_not_depend_on_the_partition(owner):
    rows = (PROBLEM.x, PROBLEM.y)
    clients = {f"c{i}": cavity.Weighted(rows, np.array(owner) == i) for i in range(5)}  # of one shape: one program
    data = cavity.core.client_data.prepare_clients(fitted().algorithm.model, clients)
    server = fitted().server
    ours = importance_weights(fitted().algorithm, server.prior, server.posterior, [data], 50, 0)
    expected = pooled_log_weights(server.posterior, ours.draws)
    np.testing.assert_allclose(ours.log_weights, expected, rtol=0, atol=1e-9)


def test_a_client_sends_one_number_per_draw():
    draws = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)))
    sent = log_likelihoods(fitted().algorithm, draws, fitted().clients)
    assert sent.keys() == fitted().clients.keys()
    assert all(numbers.shape == (7,) for numbers in sent.values())
    x, y = fitted().clients["client-2"].batch
    f = np.asarray(draws) @ np.column_stack([np.ones(len(x)), x]).T
    np.testing.assert_allclose(sent["client-2"], np.sum(y * f - np.logaddexp(0, f), axis=1), rtol=1e-12)


@thorough
def test_streamed_clients_weigh_the_same():
    clients = logistic_clients(scenarios.homogeneous(120, 4))
    streamed = cavity.run(fitted().algorithm, LoadedWhenAsked(clients))
    expected = pooled_log_weights(streamed.posterior, (weights := streamed.importance_weights(60)).draws)
    np.testing.assert_allclose(weights.log_weights, expected, rtol=0, atol=1e-9)


@thorough
def test_weights_of_rows_count():
    x, y, weight = PROBLEM.x[:20], PROBLEM.y[:20], np.arange(20) % 3
    fit = cavity.run(fitted().algorithm, {"a": cavity.Weighted((x, y), weight)})
    repeated = cavity.run(fitted().algorithm, {"a": (np.repeat(x, weight, axis=0), np.repeat(y, weight))})
    ours, theirs = fit.importance_weights(60), repeated.importance_weights(60)
    np.testing.assert_allclose(ours.log_weights, theirs.log_weights, atol=1e-5)


@thorough
def test_an_exact_posterior_has_equal_weights():
    """Each is the evidence, so k has no meaning; the free energy is the evidence too."""
    x, y = scenarios.linear()
    model = linear_regression(3, noise_sd=0.7, prior_scale=2.0)
    fit = cavity.run(cavity.PVI(model), scenarios.clients(x, y, scenarios.label_sorted(y, 3)))
    weights = fit.importance_weights(100)
    design = np.column_stack([np.ones(60), x])
    evidence = stats.multivariate_normal(np.zeros(60), 0.49 * np.eye(60) + 4 * design @ design.T).logpdf(y)
    np.testing.assert_allclose(weights.log_weights, evidence, rtol=0, atol=1e-8)
    assert weights.log_evidence == pytest.approx(evidence, abs=1e-8)
    assert weights.pareto_k == -np.inf
    assert weights.effective_draws == pytest.approx(100)
    assert "exact" in str(fit.summary())


@pytest.mark.parametrize("shape", [-0.2, 0.3, 0.9])
def test_k_is_that_of_a_pareto_tail(shape):
    """Draws of a generalised Pareto distribution; the estimate has a standard error of (1 + k) / sqrt(M)."""
    weights = stats.genpareto(shape).rvs(200_000, random_state=0) + 1e-9
    num_tail = 3 * np.sqrt(len(weights))
    assert pareto_k(np.log(weights)) == pytest.approx(shape, abs=3 * (1 + shape) / np.sqrt(num_tail))


@pytest.mark.parametrize("size", [25, 400, 5000])
@pytest.mark.parametrize("spread", [0.05, 1.0, 6.0, 200.0])
def test_k_is_that_of_arviz(size, spread):
    arviz = pytest.importorskip("arviz")
    if not hasattr(arviz, "psislw"):
        pytest.skip("ArviZ 1.x fits another number of tail weights")
    log_weights = spread * np.random.default_rng(size).standard_t(4, size) - 900
    assert pareto_k(log_weights) == pytest.approx(float(arviz.psislw(log_weights.copy())[1]), abs=1e-8)


def test_all_weight_at_a_few_draws_is_infinitely_bad():
    assert pareto_k(np.append(np.full(500, -2000.0), [0.0, -1.0])) == np.inf


@cache
def correlated(family):
    """y = theta_1 + theta_2 hardly determines each of them: correlation -0.99 in the posterior."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 1)) + 0.07 * rng.normal(size=(40, 2))
    y = x.sum(axis=1) + rng.normal(size=40)
    model = linear_regression(2, noise_sd=1.0, intercept=False, covariance=family)
    return cavity.run(cavity.PVI(model), scenarios.clients(x, y, scenarios.homogeneous(40, 3)), rounds=1000), x


@thorough
def test_k_is_high_where_mean_field_meets_correlation():
    """log w is -theta' (Lambda - D) theta / 2 under N(0, D^-1): its tail has k = 1 - the least eigenvalue of Lambda."""
    fit, x = correlated(DiagonalGaussian)
    precision = x.T @ x + np.eye(2) / 100
    scale = np.sqrt(np.diag(precision))
    exact = 1 - np.linalg.eigvalsh(precision / np.outer(scale, scale))[0]
    assert exact > 0.97
    weights = fit.importance_weights(100_000)
    assert weights.pareto_k > 0.7
    assert weights.pareto_k == pytest.approx(exact, abs=0.15)  # a logarithm slows the tail's way to its limit
    table = str(fit.summary())
    assert "approximation: do not use" in table
    assert 'covariance="full"' in table


def test_k_vanishes_with_the_family_that_knows_correlations():
    fit, _ = correlated(FullGaussian)
    assert fit.importance_weights().pareto_k == -np.inf


@pytest.mark.slow
def test_the_demo_is_close_to_a_gaussian():
    from cavity.reporting import indomethacin

    hospitals, _ = indomethacin.admitted()
    fit = cavity.run(cavity.PVI(logistic_regression(indomethacin.FEATURES)), hospitals)
    weights = fit.importance_weights(100_000)
    assert weights.pareto_k + 2 * weights.standard_error < 0.5
    assert weights.effective_draws > 0.97 * 100_000
    assert fit.verdict.verdict in ("exact for practical purposes", "good")
    free_energy = fit.history[-1]["free_energy"]
    assert free_energy < weights.log_evidence < free_energy + 0.05


@thorough
def test_the_evidence_of_one_rate_is_that_of_a_grid():
    y = np.array([0.0, 1, 0, 2, 0])
    model = poisson_regression([], prior_scale=1.0)
    fit = cavity.run(cavity.PVI(model), {"a": (np.zeros((3, 0)), y[:3]), "b": (np.zeros((2, 0)), y[3:])})
    weights = fit.importance_weights(20_000)
    grid = np.linspace(-8, 5, 20_001)
    log_joint = stats.norm.logpdf(grid) + stats.poisson.logpmf(y[:, None], np.exp(grid)).sum(axis=0)
    exact = np.log(np.trapezoid(np.exp(log_joint), grid))
    relative = np.exp(weights.log_weights - exact)
    assert abs(relative.mean() - 1) < 4 * relative.std() / np.sqrt(20_000)
    assert fit.history[-1]["free_energy"] < exact


@thorough
def test_a_generalised_loss_stands_for_its_own_density():
    """With KL / 2, exp(-2 loss); with a tempered likelihood, its power."""
    y = np.random.default_rng(1).normal(size=(30, 1))
    clients = {"a": y[:11], "b": y[11:]}
    model = normal_location(prior_scale=3.0)
    for loss, divergence, power in ((Tempered(0.5), None, 0.5), (Tempered(3.0), WeightedKL(2.0), 6.0)):
        fit = cavity.run(cavity.FedGVI(model, loss, divergence), clients)
        assert fit.importance_weights(50).pareto_k == -np.inf  # conjugate still
        sent = log_likelihoods(fit.algorithm, jnp.array([[0.4]]), fit.clients)
        np.testing.assert_allclose(sum(sent.values()), power * stats.norm.logpdf(y, 0.4).sum(), rtol=1e-12)


@thorough
def test_a_bounded_loss_leaves_the_tails_of_the_prior():
    """They are heavier than those of q, so that k of its own draws is high; nearly all mass is where q has it."""
    model, y = normal_location(prior_scale=3.0), np.random.default_rng(1).normal(size=(30, 1))
    fit = cavity.run(cavity.FedGVI(model, Beta(0.3)), {"a": y[:11], "b": y[11:]})
    weights = fit.importance_weights()
    assert weights.pareto_k > 0.7
    assert weights.effective_draws > 0.99 * 2000
    assert fit.verdict.verdict == "exact for practical purposes"


@pytest.mark.parametrize(
    "parts",
    [
        {"divergence": Renyi(0.5)},
        {"server_divergence": WeightedKL(2.0)},
        {"loss": ScoreMatching(SquaredExponential(2.0))},
    ],
    ids=["divergence", "server", "loss"],
)
def test_where_there_is_no_density_there_are_no_weights(parts):
    algorithm = cavity.FedGVI(normal_location(), **({"loss": Tempered(1.0)} | parts))
    rows = cavity.core.client_data.prepare_clients(algorithm.model, {"a": np.ones((3, 1))})
    with pytest.raises(UnsuitableError, match="no one density"):
        algorithm.log_likelihood(jnp.zeros(1), rows["a"])


def test_a_summary_says_why_there_are_no_weights():
    algorithm = cavity.FedGVI(normal_location(), ScoreMatching(SquaredExponential(2.0)))
    fit = cavity.run(algorithm, {"a": np.random.default_rng(1).normal(size=(12, 1))}, rounds=2)
    assert "approximation: not assessed: with ScoreMatching" in str(fit.summary())


def test_a_likelihood_that_is_not_a_number_names_its_client():
    model = cavity.models.function_model(lambda p, batch: jnp.sqrt(batch - p["a"]), {"a": 0.0}, prior_scale=1.0)
    algorithm = cavity.PVI(model)
    data = cavity.core.client_data.prepare_clients(algorithm.model, {"york": np.array([9.0]), "leeds": np.array([0.1])})
    with pytest.raises(CavityError, match="client 'leeds': the log likelihood of its rows is NaN"):
        importance_weights(algorithm, model.prior, model.prior, [data], 50, 0)


def test_what_is_asked_for_must_be_there(tmp_path):
    with pytest.raises(CavityError, match=f"num_draws must be at least {FEWEST_DRAWS}, not 3"):
        fitted().importance_weights(3)
    fitted().save(tmp_path / "fit.npz")
    loaded = cavity.load(tmp_path / "fit.npz")
    with pytest.raises(CavityError, match="load the fit with the clients' data"):
        loaded.importance_weights()
    assert "approximation: not assessed: the clients' data are not in this process" in str(loaded.summary())


@thorough
def test_single_precision_weighs_in_double():
    with jax.enable_x64(False):
        model = logistic_regression(2, prior_scale=PROBLEM.prior_scale)
        fit = cavity.run(cavity.PVI(model), logistic_clients(scenarios.homogeneous(120, 2)), tolerance=1e-4)
        weights = fit.importance_weights(60)
    assert weights.log_weights.dtype == np.float64
    expected = pooled_log_weights(fit.posterior, weights.draws)
    np.testing.assert_allclose(weights.log_weights, expected, rtol=0, atol=1e-6)
