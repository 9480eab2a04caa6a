"""Hyperparameters: the maximum of the pooled evidence by SciPy, finite differences, and a distribution over them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq, minimize

import cavity
from cavity.distributions import DiagonalGaussian, FullGaussian, IsotropicGaussian
from cavity.errors import CavityError, UnsuitableError
from cavity.hyperparameters import ByGradient, NoiseSd, PriorScale
from cavity.hyperparameters.learning import total_sums
from cavity.losses import Beta
from cavity.models import linear_regression, logistic_regression, normal_location
from tests import scenarios
from tests.contracts.faults import types_unchecked
from tests.doubles import LoadedWhenAsked
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

X, Y = scenarios.linear(60, 3)
DESIGN = np.column_stack([np.ones(60), X])
NOISE_SD = 0.7
PARTITIONS = {
    "pooled": [np.arange(60)],
    "alike": scenarios.homogeneous(60, 3),
    "sorted": scenarios.label_sorted(Y, 4),
    "uneven": [np.arange(2), np.arange(2, 60)],
}
partition_of = pytest.mark.parametrize("partition", PARTITIONS)


def linear_evidence(scales, noise_sd=NOISE_SD, design=DESIGN, y=Y):
    covariance = noise_sd**2 * np.eye(len(y)) + (design * np.square(scales)) @ design.T
    return stats.multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)


def highest(objective, num):
    """The maximiser over positive numbers."""
    found = minimize(lambda logs: -objective(np.exp(logs)), np.zeros(num), method="BFGS", options={"gtol": 1e-7})
    return np.exp(found.x), -found.fun


@cache
def linear_fit(partition="alike", family=None):
    model = linear_regression(3, noise_sd=NOISE_SD, prior_scale=10.0, covariance=family)
    return cavity.run(cavity.PVI(model), scenarios.clients(X, Y, PARTITIONS[partition]))


def scales(fit):
    return np.array(list(fit.prior_scales.values()))


@partition_of
def test_one_scale_is_that_of_the_highest_evidence(partition):
    fit = linear_fit(partition).learn(PriorScale())
    best, evidence = highest(lambda s: linear_evidence(np.repeat(s, 4)), 1)
    np.testing.assert_allclose(scales(fit), np.repeat(best, 4), rtol=1e-5)
    assert fit.log_evidence == pytest.approx(evidence, abs=1e-9)
    assert fit.log_evidence > linear_fit(partition).log_evidence + 5


@thorough
@partition_of
def test_a_scale_for_each_coefficient(partition):
    fit = linear_fit(partition).learn(PriorScale(separate=True))
    best, evidence = highest(linear_evidence, 4)
    np.testing.assert_allclose(scales(fit), best, rtol=1e-4)
    assert fit.log_evidence == pytest.approx(evidence, abs=1e-8)


@partition_of
def test_prior_scale_and_noise_together(partition):
    fit = linear_fit(partition).learn(PriorScale(), NoiseSd())
    best, evidence = highest(lambda e: linear_evidence(np.repeat(e[0], 4), e[1]), 2)
    np.testing.assert_allclose(scales(fit), np.repeat(best[0], 4), rtol=1e-5)
    assert float(fit.algorithm.model.likelihood.noise_sd) == pytest.approx(best[1], rel=1e-5)
    assert fit.log_evidence == pytest.approx(evidence, abs=1e-9)


def test_some_scales_are_learned_and_others_stay():
    fit = linear_fit().learn(PriorScale(["x1", "x3"]))
    best, _ = highest(lambda s: linear_evidence(np.array([10.0, s[0], 10.0, s[0]])), 1)
    np.testing.assert_allclose(scales(fit), [10.0, best[0], 10.0, best[0]], rtol=1e-5)


def test_one_factor_keeps_ratios():
    model = linear_regression(3, noise_sd=NOISE_SD, prior_scale=np.array([8.0, 1.0, 2.0, 4.0]))
    fit = cavity.run(cavity.PVI(model), scenarios.clients(X, Y, PARTITIONS["alike"])).learn(PriorScale())
    best, _ = highest(lambda c: linear_evidence(c[0] * np.array([8.0, 1.0, 2.0, 4.0])), 1)
    np.testing.assert_allclose(scales(fit), best[0] * np.array([8.0, 1.0, 2.0, 4.0]), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", [DiagonalGaussian, IsotropicGaussian])
def test_other_families_reach_the_top_of_their_own_bound(family):
    """There d = sum (m^2 + s) / scale^2, whatever the family; and no other scale has a higher free energy."""
    fit = linear_fit("alike", family).learn(PriorScale())
    mean, variance = np.asarray(fit.posterior.mean), np.broadcast_to(np.asarray(fit.posterior.variance), (4,))
    assert np.sum(mean**2 + variance) / 4 == pytest.approx(scales(fit)[0] ** 2, rel=1e-5)
    for factor in (0.9, 1.1):
        model = linear_regression(3, noise_sd=NOISE_SD, prior_scale=factor * scales(fit)[0], covariance=family)
        other = cavity.run(cavity.PVI(model), scenarios.clients(X, Y, PARTITIONS["alike"]), tolerance=1e-10)
        assert other.log_evidence < fit.log_evidence


PROBLEM = scenarios.logistic(num_features=3)


def logistic_slope(log_scale):
    """dF / d log scale at the best Gaussian: sum (m^2 + s) / scale^2 - d."""
    scale = np.exp(log_scale)
    mean, covariance = scenarios.gaussian_optimum(replace(PROBLEM, prior_scale=scale), mean_field=False)
    return (mean @ mean + np.trace(covariance)) / scale**2 - len(mean)


@cache
def logistic_best():
    return np.exp(brentq(logistic_slope, -1.5, 1.5, xtol=1e-8))


@cache
def logistic_fit(num_clients):
    parts = scenarios.label_sorted(PROBLEM.y, num_clients)
    return cavity.run(cavity.PVI(logistic_regression(3)), scenarios.clients(PROBLEM.x, PROBLEM.y, parts))


@thorough
@pytest.mark.parametrize("num_clients", [1, 4])
def test_without_a_closed_form_it_is_the_top_of_the_pooled_bound(num_clients):
    fit = logistic_fit(num_clients).learn(PriorScale())
    np.testing.assert_allclose(scales(fit), logistic_best(), rtol=1e-4)


@pytest.mark.slow
def test_the_gradient_gets_there_too():
    fit = logistic_fit(4).learn(ByGradient(lambda s: logistic_regression(3, prior_scale=s), 2.5))
    np.testing.assert_allclose(scales(fit), logistic_best(), rtol=1e-4)


def make_linear(e):
    return linear_regression(3, noise_sd=e["noise"], prior_scale=e["scale"])


@pytest.mark.slow
def test_the_gradient_learns_several_numbers_at_once():
    start = {"noise": NOISE_SD, "scale": np.full(4, 10.0)}
    fit = linear_fit("sorted").learn(ByGradient(make_linear, start))
    best, evidence = highest(lambda e: linear_evidence(e[1:], e[0]), 5)
    np.testing.assert_allclose(scales(fit), best[1:], rtol=1e-4)
    assert float(fit.algorithm.model.likelihood.noise_sd) == pytest.approx(best[0], rel=1e-4)
    assert fit.log_evidence == pytest.approx(evidence, abs=1e-8)


@thorough
@partition_of
def test_equation_6_is_the_derivative_of_the_evidence(partition):
    fit, part = linear_fit(partition), ByGradient(make_linear, {"noise": NOISE_SD, "scale": np.float64(10.0)})
    model, q = fit.algorithm.model, jax.tree.map(jnp.asarray, fit.posterior)
    state = part.init(model)
    (total,) = total_sums([part], [state], model, q, [fit.clients], frozenset())
    assert np.shape(total) == (2,)  # one number per hyperparameter, whatever the data
    _, slope, _ = part.step(state, model, q, total)

    def evidence(log_noise, log_scale):
        return linear_evidence(np.repeat(10.0 * np.exp(log_scale), 4), NOISE_SD * np.exp(log_noise))

    h = 1e-5
    numeric = [evidence(h, 0) - evidence(-h, 0), evidence(0, h) - evidence(0, -h)]
    np.testing.assert_allclose(slope, np.array(numeric) / (2 * h), rtol=1e-6)


@thorough
def test_closed_forms_and_the_gradient_have_the_same_slope():
    fit = linear_fit()
    model, q = fit.algorithm.model, jax.tree.map(jnp.asarray, fit.posterior)
    parts = [NoiseSd(), PriorScale(), ByGradient(make_linear, {"noise": NOISE_SD, "scale": np.float64(10.0)})]
    states = [part.init(model) for part in parts]
    totals = total_sums(parts, states, model, q, [fit.clients], frozenset())
    noise, scale, both = (p.step(s, model, q, t)[1] for p, s, t in zip(parts, states, totals, strict=True))
    np.testing.assert_allclose(both, np.concatenate([noise, scale]), rtol=1e-9)


def test_a_coefficient_that_is_not_needed_goes():
    """y does not depend on the last two features; one of them at least is switched off, and the others are not."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(80, 4))
    y = 2.0 * x[:, 0] - x[:, 1] + rng.normal(size=80)
    clients = scenarios.clients(x, y, scenarios.homogeneous(80, 3))
    model = linear_regression(4, noise_sd=1.0, intercept=False, prior_scale=5.0)
    fit = cavity.run(cavity.PVI(model), clients).learn(PriorScale(separate=True))
    least = np.isclose(scales(fit), 5e-3)
    # off exactly where the evidence falls as the scale leaves zero: g^2 < h, without the coefficient
    for j in np.flatnonzero(least):
        others = np.where(np.arange(4) == j, 0.0, scales(fit))
        covariance = np.eye(80) + (x * others**2) @ x.T
        solved = np.linalg.solve(covariance, x[:, j])
        assert (solved @ y) ** 2 < solved @ x[:, j]
    assert least.tolist()[:2] == [False, False]
    assert least[2:].any()
    assert np.all(np.abs(np.asarray(fit.posterior.mean))[least] < 1e-3)


def test_the_ledger_keeps_its_invariant():
    fit = logistic_fit(4).learn(PriorScale(), steps=1, rounds=1)
    rebuilt = fit.algorithm.server.entries.rebuild(fit.server.prior, list(fit.server.entries.values()))
    np.testing.assert_allclose(rebuilt.precision, fit.posterior.precision, rtol=1e-12)
    np.testing.assert_allclose(fit.server.prior.precision, fit.algorithm.model.prior.precision, rtol=1e-12)
    assert fit.server.entries.keys() == logistic_fit(4).server.entries.keys()


def test_too_few_steps_are_reported(caplog):
    logistic_fit(4).learn(PriorScale(), steps=1, rounds=1)
    assert "call fit.learn again" in caplog.text


def test_streamed_clients_learn_the_same():
    source = LoadedWhenAsked(scenarios.clients(X, Y, PARTITIONS["alike"]))
    model = linear_regression(3, noise_sd=NOISE_SD, prior_scale=10.0)
    streamed = cavity.run(cavity.PVI(model), source).learn(NoiseSd())
    expected = linear_fit().learn(NoiseSd()).algorithm.model.likelihood.noise_sd
    assert float(streamed.algorithm.model.likelihood.noise_sd) == pytest.approx(float(expected), rel=1e-9)


def test_a_learned_fit_can_be_refined(tmp_path):
    fit = linear_fit().learn(PriorScale(), NoiseSd())
    fit.save(tmp_path / "fit.npz")
    assert cavity.load(tmp_path / "fit.npz").prior_scales == fit.prior_scales
    without = fit.withdraw("client-2")
    noise_sd, scale = float(fit.algorithm.model.likelihood.noise_sd), scales(fit)[0]
    rows = np.concatenate(PARTITIONS["alike"][:2])
    precision_mean, precision = scenarios.linear_posterior(X[rows], Y[rows], noise_sd, scale)
    assert cavity.kl(without.posterior, FullGaussian(precision_mean, precision)) < 1e-9
    assert fit.importance_weights(30).pareto_k == -np.inf


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "give hyperparameters to learn"),
        ([PriorScale], "give hyperparameters to learn"),
        ([PriorScale(["dose"])], "no parameter dose; choose from: intercept, x1"),
        ([ByGradient(lambda s: logistic_regression(3, prior_scale=s), -1.0)], "must be positive"),
        ([ByGradient(lambda s: logistic_regression(2, prior_scale=s), 1.0)], "another kind of model"),
        ([NoiseSd()], "has no noise to learn"),
    ],
)
def test_bad_input_is_reported(parts, message):
    with types_unchecked(), pytest.raises(CavityError, match=message):
        logistic_fit(4).learn(*parts)


@thorough
def test_bad_parts_are_reported():
    with pytest.raises(CavityError, match="parameters are a list of names"):
        PriorScale("x1")
    with pytest.raises(CavityError, match="least is a share"):
        PriorScale(least=2.0)
    with pytest.raises(UnsuitableError, match="one scale for all"):
        linear_fit("alike", IsotropicGaussian).learn(PriorScale(separate=True))
    correlated = FullGaussian.from_moments(jnp.zeros(4), jnp.eye(4) + 0.5)
    clients = scenarios.clients(X, Y, PARTITIONS["alike"])
    fit = cavity.run(cavity.PVI(linear_regression(3, noise_sd=1.0, prior=correlated)), clients)
    with pytest.raises(UnsuitableError, match="has correlations"):
        fit.learn(PriorScale())
    robust = cavity.run(cavity.FedGVI(normal_location(), Beta(0.5)), {"a": np.ones((3, 1))}, rounds=1)
    with pytest.raises(CavityError, match="has no evidence"):
        robust.learn(PriorScale())
    held = cavity.run(linear_fit().algorithm, clients, factors="clients")
    with pytest.raises(CavityError, match='factors="server"'):
        held.learn(PriorScale())


# A distribution over a hyperparameter (eqs. 7 and 8): a latent like any other, with its prior as an entry of the server


def expected_bound(parameters, x, y):
    """E_q[log joint] + entropy in closed form, for y ~ N(beta x, 1), beta ~ N(0, e^2t), t ~ N(0, 1); q of (beta, t)."""
    mean, root = parameters[:2], np.array([[np.exp(parameters[2]), 0.0], [parameters[4], np.exp(parameters[3])]])
    covariance = root @ root.T
    # E[beta^2 e^(-2t)] under a Gaussian: tilting by e^(-2t) shifts beta by -2 cov(beta, t)
    tilt = np.exp(-2 * mean[1] + 2 * covariance[1, 1])
    square = tilt * ((mean[0] - 2 * covariance[0, 1]) ** 2 + covariance[0, 0])
    prior = -mean[1] - square / 2 - (mean[1] ** 2 + covariance[1, 1]) / 2 - np.log(2 * np.pi)
    data = -np.sum((y - mean[0] * x) ** 2 + covariance[0, 0] * x**2) / 2 - len(y) * np.log(2 * np.pi) / 2
    return prior + data + parameters[2] + parameters[3] + 1 + np.log(2 * np.pi)


@pytest.mark.slow
def test_a_distribution_over_a_scale_is_pooled_vi_of_scale_and_coefficient():
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def with_shrinkage_prior(x, y):
        log_scale = numpyro.sample("log_scale", dist.Normal(0.0, 1.0))
        beta = numpyro.sample("beta", dist.Normal(0.0, jnp.exp(log_scale)))
        numpyro.sample("y", dist.Normal(beta * x, 1.0), obs=y)

    rng = np.random.default_rng(0)
    x = rng.normal(size=20)
    y = 0.4 * x + rng.normal(size=20)
    parts = [np.arange(3), np.arange(3, 9), np.arange(9, 20)]
    clients = {f"c{i}": {"x": x[rows], "y": y[rows]} for i, rows in enumerate(parts)}
    model = cavity.models.numpyro_model(with_shrinkage_prior, clients["c0"])
    fit = cavity.run(cavity.PVI(model), clients, tolerance=1e-12)
    options = {"gtol": 1e-9, "maxiter": 2000}
    found = minimize(lambda p: -expected_bound(p, x, y), [0.0, 0.0, -1.0, 0.0, 0.0], method="BFGS", options=options)
    order = [fit.algorithm.model.parameter_names.index(name) for name in ("beta", "log_scale")]
    mean, covariance = np.asarray(fit.posterior.mean)[order], np.asarray(fit.posterior.covariance)[np.ix_(order, order)]
    root = np.array([[np.exp(found.x[2]), 0.0], [found.x[4], np.exp(found.x[3])]])
    np.testing.assert_allclose(mean, found.x[:2], atol=1e-5)
    np.testing.assert_allclose(covariance, root @ root.T, atol=1e-5)
    assert fit.log_evidence == pytest.approx(-found.fun, abs=1e-6)
