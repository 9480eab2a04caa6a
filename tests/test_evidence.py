"""The evidence of models: closed forms, grids, and tables that compare them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import cavity
from cavity.distributions import DiagonalGaussian
from cavity.errors import CavityError
from cavity.losses import Beta, Tempered
from cavity.models import linear_regression, logistic_regression, normal_location
from cavity.schedules import Sequential
from tests import scenarios

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
    for options in ({"schedule": Sequential()}, {"held_by_clients": True}):
        np.testing.assert_allclose(linear_fit(**options).log_evidence, linear_evidence(X, Y), rtol=1e-11)


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


def test_importance_weights_mend_the_bound_of_a_poor_family():
    """Mean field loses -log(1 - r^2) / 2 on features of correlation r; the weights give it back."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 1)) + rng.normal(size=(30, 2))
    y = x[:, 0] + rng.normal(size=30)
    clients = scenarios.clients(x, y, scenarios.homogeneous(30, 2))
    models = {
        "full": linear_regression(2, noise_sd=1.0, prior_scale=2.0),
        "mean field": linear_regression(2, noise_sd=1.0, prior_scale=2.0, family=DiagonalGaussian),
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


def test_a_run_that_has_not_converged_is_told():
    y = scenarios.logistic()
    clients = scenarios.clients(y.x, y.y, scenarios.homogeneous(120, 4))
    fits = {
        str(scale): cavity.run(cavity.PVI(logistic_regression(2, prior_scale=scale)), clients, rounds=1)
        for scale in (1.0, 2.0)
    }
    assert cavity.compare(fits).remarks[0] == "1.0 has not converged; go on with fit.refine()"


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
    fit = linear_fit(rounds=0)
    with pytest.raises(CavityError, match="not known yet"):
        fit.log_evidence


def test_it_comes_back_from_a_file_without_data(tmp_path):
    fit = linear_fit()
    fit.save(tmp_path / "fit.npz")
    assert cavity.load(tmp_path / "fit.npz").log_evidence == fit.log_evidence
