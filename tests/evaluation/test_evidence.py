"""The evidence of models: closed forms, grids, and tables that compare them."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import cavity
from cavity.aggregation.damping import Adaptive, Fixed
from cavity.distributions import DiagonalGaussian
from cavity.errors import CavityError
from cavity.losses import Beta, Tempered
from cavity.models import linear_regression, logistic_regression, normal_location
from cavity.schedules import Asynchronous, SampledCount, SampledShare, Sequential, SequentialShuffled, Synchronous
from tests import scenarios
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

X, Y = scenarios.linear(num_rows=40)
NOISE_SD, PRIOR_SCALE = 0.7, 2.0


def linear_evidence(x, y, noise_sd=NOISE_SD, prior_scale=PRIOR_SCALE):
    design = np.column_stack([np.ones(len(x)), x])
    covariance = noise_sd**2 * np.eye(len(x)) + prior_scale**2 * design @ design.T
    return stats.multivariate_normal(np.zeros(len(x)), covariance).logpdf(y)


def linear_fit(columns=slice(None), parts=None, noise_sd=NOISE_SD, **options):
    x = X[:, columns]
    parts = scenarios.homogeneous(40, 3) if parts is None else parts
    model = linear_regression(x.shape[1], noise_sd=noise_sd, prior_scale=PRIOR_SCALE)
    return cavity.run(cavity.PVI(model), scenarios.clients(x, Y, parts), **options)


@settings(max_examples=10, deadline=None)
@given(owner=st.lists(st.integers(0, 2), min_size=40, max_size=40))
def test_linear_regression_has_its_closed_form_for_any_partition(owner):
    clients = {f"c{i}": cavity.Weighted((X, Y), np.array(owner) == i) for i in range(3)}  # of one shape: one program
    fit = cavity.run(cavity.PVI(linear_regression(3, noise_sd=NOISE_SD, prior_scale=PRIOR_SCALE)), clients)
    np.testing.assert_allclose(fit.log_evidence, linear_evidence(X, Y), rtol=1e-11)


def test_schedules_and_who_keeps_the_factors_do_not_matter():
    for options in ({"schedule": Sequential()}, {"factors": "clients"}):
        np.testing.assert_allclose(linear_fit(**options).log_evidence, linear_evidence(X, Y), rtol=1e-11)


def pooled_bound(q, x, y, prior_scale):
    """E_q[log p(y | theta)] - KL(q : prior) of a logistic regression, by a trapezoid rule in each row's predictor."""
    mean, covariance = np.asarray(q.mean), np.asarray(q.covariance)
    design = np.column_stack([np.ones(len(x)), x])
    z = np.linspace(-10, 10, 401)
    f = (design @ mean)[:, None] + np.sqrt(np.einsum("nd,de,ne->n", design, covariance, design))[:, None] * z
    weight = np.exp(-0.5 * z**2)
    expected = np.sum((y[:, None] * f - np.logaddexp(0, f)) @ (weight / weight.sum()))
    d, precision = len(mean), np.eye(len(mean)) / prior_scale**2
    divergence = np.trace(precision @ covariance) + mean @ precision @ mean - d
    divergence -= np.linalg.slogdet(precision @ covariance)[1]
    return expected - 0.5 * divergence


SCHEDULES = [Synchronous(), Sequential(), SequentialShuffled(), SampledCount(2), SampledShare(0.4), Asynchronous()]


@settings(max_examples=15, deadline=None)
@given(
    owner=st.lists(st.integers(0, 3), min_size=40, max_size=40),
    schedule=st.sampled_from(SCHEDULES),
    damping=st.sampled_from([Adaptive(), Fixed(1.0), Fixed(0.3)]),
    rounds=st.integers(1, 3),
    held=st.booleans(),
    seed=st.integers(0, 5),
)
@thorough
def test_it_is_the_bound_at_the_final_posterior_whatever_the_schedule(owner, schedule, damping, rounds, held, seed):
    """Far from a fixed point, where local terms of different posteriors do not add up to a bound."""
    y = (Y > 0).astype(float)
    clients = {f"c{i}": cavity.Weighted((X, y), np.array(owner) == i) for i in range(4)}  # of one shape: one program
    fit = cavity.run(
        cavity.PVI(logistic_regression(3, prior_scale=3.0), damping=damping),
        clients,
        schedule=schedule,
        rounds=rounds,
        seed=seed,
        factors="clients" if held else "server",
        visit_seconds={"c0": 1.0, "c1": 1.7, "c2": 2.9, "c3": 0.4} if isinstance(schedule, Asynchronous) else None,
    )
    assert fit.log_evidence == pytest.approx(pooled_bound(fit.posterior, X, y, 3.0), abs=1e-8)


def test_two_sequential_passes_are_not_above_the_best_bound():
    """The sum of what the clients reported is, by nearly a nat."""
    problem = scenarios.logistic()
    clients = scenarios.clients(problem.x, problem.y, scenarios.homogeneous(120, 4))
    algorithm = cavity.PVI(logistic_regression(2, prior_scale=problem.prior_scale))
    best = cavity.run(algorithm, clients, rounds=300, tolerance=1e-12).log_evidence
    fit = cavity.run(algorithm, clients, schedule=Sequential(), rounds=2)
    assert fit.history[-1]["free_energy"] > best + 0.5
    assert fit.log_evidence < best + 1e-9


def test_it_follows_a_withdrawal_a_resumed_run_and_a_saved_fit(tmp_path):
    problem = scenarios.logistic()
    parts = scenarios.homogeneous(120, 3)
    clients = scenarios.clients(problem.x, problem.y, parts)
    algorithm = cavity.PVI(logistic_regression(2, prior_scale=problem.prior_scale))
    fit = cavity.run(algorithm, clients, schedule=Sequential(), rounds=1, directory=tmp_path)
    later = cavity.resume(tmp_path, clients, rounds=2)
    left = fit.withdraw("client-1", rounds=1)
    stay = np.concatenate([parts[0], parts[2]])
    for found, rows in ((fit, slice(None)), (later, slice(None)), (left, stay)):
        expected = pooled_bound(found.posterior, problem.x[rows], problem.y[rows], problem.prior_scale)
        assert found.log_evidence == pytest.approx(expected, abs=1e-8)
    later.save(tmp_path / "fit.npz")
    assert cavity.load(tmp_path / "fit.npz").log_evidence == later.log_evidence
    with pytest.raises(CavityError, match="not in the file; load the fit with the clients' data"):
        cavity.load(tmp_path).log_evidence  # a checkpoint, which has no time for it


@thorough
def test_wide_predictors_have_their_bound_too():
    """Up to sds of 7, where the nodes of the solver miss it."""
    x = np.array([-2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2])[:, None]
    y = (x[:, 0] > 0).astype(float)
    fit = cavity.run(
        cavity.PVI(logistic_regression(1, prior_scale=10.0)), {"a": (x[::2], y[::2]), "b": (x[1::2], y[1::2])}
    )
    expected = pooled_bound(fit.posterior, x, y, 10.0)
    assert abs(fit.history[-1]["free_energy"] - expected) > 1e-5
    assert fit.log_evidence == pytest.approx(expected, abs=1e-8)


@thorough
def test_single_precision_adds_up_in_double():
    """The sum is some -1e4 nats, of which single precision knows 1e-3."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 1)).astype(np.float32).astype(float)
    y = (rng.random(20_000) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)
    with jax.enable_x64(False):
        clients = {"a": (x[:8000], y[:8000]), "b": (x[8000:], y[8000:])}
        fit = cavity.run(cavity.PVI(logistic_regression(1)), clients, rounds=2)
        found = fit.log_evidence
    assert found == pytest.approx(pooled_bound(fit.posterior, x, y, 2.5), abs=1e-6)


@thorough
def test_a_network_of_many_weights_has_none():
    model = cavity.models.mlp_classifier(1, [300], 2)
    algorithm = cavity.PVI(model, solver=cavity.solvers.Gradient(optax.adam, 0.01, num_steps=1))
    fit = cavity.run(algorithm, {"a": (np.zeros((3, 1)), np.array([0, 1, 0]))}, rounds=1)
    with pytest.raises(CavityError, match="known with Monte Carlo noise only"):
        fit.log_evidence


@thorough
def test_without_the_closed_form_it_is_a_bound():
    """One coefficient, by a grid."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(25, 1))
    y = (rng.random(25) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype(float)
    grid = np.linspace(-25, 25, 40_001)
    f = grid[:, None] * x[:, 0]
    log_joint = stats.norm(0, 2.5).logpdf(grid) + np.sum(y * f - np.logaddexp(0, f), axis=1)
    exact = np.log(np.trapezoid(np.exp(log_joint), grid))
    fit = cavity.run(cavity.PVI(logistic_regression(1, intercept=False)), {"a": (x[:9], y[:9]), "b": (x[9:], y[9:])})
    log_q = stats.norm(float(fit.posterior.mean[0]), float(jnp.sqrt(fit.posterior.variance[0]))).logpdf(grid)
    missing = np.trapezoid(np.exp(log_q) * (log_q - log_joint + exact), grid)  # KL(q : posterior)
    assert missing > 1e-3
    assert fit.log_evidence == pytest.approx(exact - missing, abs=1e-6)


def test_the_table_has_differences_odds_and_probabilities():
    fits = {"one": linear_fit([0]), "all": linear_fit(), "two": linear_fit([0, 1])}
    exact = {"one": linear_evidence(X[:, :1], Y), "all": linear_evidence(X, Y), "two": linear_evidence(X[:, :2], Y)}
    found = cavity.compare(fits)
    assert found.names == tuple(sorted(exact, key=exact.__getitem__, reverse=True))
    np.testing.assert_allclose(found.log_evidence, sorted(exact.values(), reverse=True), rtol=1e-11)
    np.testing.assert_allclose(found.behind, max(exact.values()) - found.log_evidence, rtol=1e-8, atol=1e-8)
    odds = np.exp(np.array([exact[name] for name in found.names]))
    np.testing.assert_allclose(found.probability, odds / odds.sum(), rtol=1e-8)
    table = str(found).splitlines()
    assert table[0].split() == ["model", "log", "evidence", "behind", "odds", "against", "probability"]
    assert table[1].split()[:3] == [found.names[0], f"{found.log_evidence[0]:.3f}", "0.000"]
    assert "lower bounds" in table[-1]


@thorough
def test_importance_weights_correct_the_bound_of_a_poor_family():
    """Mean field loses -log(1 - r^2) / 2 on features of correlation r; the weights give it back."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 1)) + rng.normal(size=(30, 2))
    y = x[:, 0] + rng.normal(size=30)
    clients = scenarios.clients(x, y, scenarios.homogeneous(30, 2))
    models = {
        "full": linear_regression(2, noise_sd=1.0, prior_scale=2.0),
        "mean field": linear_regression(2, noise_sd=1.0, prior_scale=2.0, covariance=DiagonalGaussian),
    }
    fits = {name: cavity.run(cavity.PVI(model), clients, rounds=500) for name, model in models.items()}
    bounds = cavity.compare(fits)
    exact = linear_evidence(x, y, 1.0)
    assert bounds.names == ("full", "mean field")
    assert bounds.behind[1] > 0.1
    weighed = cavity.compare(fits, num_draws=20_000)
    relative = np.exp(fits["mean field"].importance_weights(20_000).log_weights - exact)
    error = relative.std() / np.sqrt(20_000)
    np.testing.assert_allclose(weighed.log_evidence, exact, rtol=0, atol=4 * error)


def test_only_evidence_of_the_same_rows_is_compared():
    fit, other = linear_fit(), linear_fit(parts=[np.arange(10), np.arange(10, 40), np.arange(0)][:2])
    with pytest.raises(CavityError, match=r"differ in their clients \(client-2\)"):
        cavity.compare({"a": fit, "b": other})
    shorter = linear_fit(parts=[part[:-1] for part in scenarios.homogeneous(40, 3)])
    with pytest.raises(CavityError, match="client 'client-0' has 14 rows in 'a' and 13 in 'b'"):
        cavity.compare({"a": fit, "b": shorter})
    with pytest.raises(CavityError, match="at least two fits, not 1"):
        cavity.compare({"a": fit})


def test_a_run_that_has_not_converged_is_reported():
    y = scenarios.logistic()
    clients = scenarios.clients(y.x, y.y, scenarios.homogeneous(120, 4))
    fits = {
        str(scale): cavity.run(cavity.PVI(logistic_regression(2, prior_scale=scale)), clients, rounds=1)
        for scale in (1.0, 2.0)
    }
    assert cavity.compare(fits).remarks[0] == "1.0 has not converged; continue with fit.refine()"


@thorough
def test_generalised_losses_have_none():
    rows = {"a": np.random.default_rng(0).normal(size=(9, 1))}
    for loss in (Beta(0.5), Tempered(0.5)):
        with pytest.raises(CavityError, match="a generalised loss or divergence has no evidence"):
            cavity.run(cavity.FedGVI(normal_location(), loss), rows, rounds=1).log_evidence
    plain = cavity.run(cavity.FedGVI(normal_location(), Tempered(1.0)), rows)
    covariance = np.eye(9) + 100 * np.ones((9, 9))
    exact = stats.multivariate_normal(np.zeros(9), covariance).logpdf(rows["a"][:, 0])
    assert plain.log_evidence == pytest.approx(exact, rel=1e-11)


def test_before_every_client_has_replied_there_is_none():
    fit = replace(linear_fit(rounds=1), history=[])
    with pytest.raises(CavityError, match="not known yet"):
        fit.log_evidence


def test_it_comes_back_from_a_file_without_data(tmp_path):
    fit = linear_fit()
    fit.save(tmp_path / "fit.npz")
    assert cavity.load(tmp_path / "fit.npz").log_evidence == fit.log_evidence
