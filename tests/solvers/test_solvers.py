"""The solvers by their contract, and what each adds: line search, Newton's step, tolerances, expectations."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cavity import losses
from cavity.core import Divergence, Problem
from cavity.distributions import Beta, DiagonalGaussian, FullGaussian, IsotropicGaussian
from cavity.distributions.quadrature import normal_nodes
from cavity.divergences import KL, Renyi, WeightedKL
from cavity.errors import UnsuitableError
from cavity.losses import NegativeLogLikelihood, ScoreMatching, SquaredExponential, Tempered
from cavity.models import (
    BernoulliShare,
    function_model,
    linear_regression,
    logistic_regression,
    poisson_regression,
    probit_regression,
    softmax_regression,
)
from cavity.solvers import LBFGS, Conjugate, FixedPoint, NaturalGradient
from cavity.solvers.default import default_solver
from cavity.solvers.expectations import PredictorQuadrature, ThetaNodes, default_expectation
from tests import scenarios
from tests.contracts import solver as contract
from tests.marks import thorough

DESCENT = contract.natural_descent(1.0, 6000)
CASES = {
    "conjugate": (Conjugate(), FullGaussian),
    "natural gradient": (NaturalGradient(), FullGaussian),
    "natural gradient, mean field": (NaturalGradient(), DiagonalGaussian),
    "fixed point": (FixedPoint(), FullGaussian),
    "nodes in theta": (NaturalGradient(expectation=ThetaNodes()), FullGaussian),
    "descent": (DESCENT, FullGaussian),
    "descent, mean field": (DESCENT, DiagonalGaussian),
}
case_of = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@case_of
def test_contract(case):
    contract.check(*case)


def test_numbers_do_not_recompile():
    plain = {"tolerance": 1e-6, "max_steps": 100}
    sweep = [plain | change for change in ({}, {"tolerance": 1e-9}, {"max_steps": 10})]
    contract.check_no_recompilation(*(NaturalGradient(**numbers) for numbers in sweep))
    contract.check_no_recompilation(*(FixedPoint(rho, **numbers) for rho in (1.0, 0.5) for numbers in sweep))


def problem(scenario, model, cavity=None, start=None) -> Problem:
    prior = model.prior
    data = contract.as_data(scenario.x, scenario.y)
    return Problem(
        model,
        NegativeLogLikelihood(),
        KL(),
        prior if cavity is None else cavity,
        prior if start is None else start,
        data,
    )


def built(scenario, constructor, family, **arguments):
    return constructor(scenario.x.shape[1], prior_scale=scenario.prior_scale, covariance=family, **arguments)


def distance(q, reference) -> float:
    """KL to a reference given by mean and covariance."""
    return scenarios.gaussian_kl(np.asarray(q.mean), np.asarray(q.covariance), *reference)


@pytest.mark.parametrize("family", [FullGaussian, DiagonalGaussian], ids=["full", "mean field"])
def test_finds_the_optimum_of_a_logistic_regression(family):
    scenario = scenarios.logistic()
    this = problem(scenario, built(scenario, logistic_regression, family))
    solution = contract.solved(NaturalGradient(), this)
    assert bool(solution.converged)
    reference = scenarios.gaussian_optimum(scenario, mean_field=family is DiagonalGaussian)
    assert distance(solution.tilted, reference) < 1e-9


def test_isotropic_family_is_at_its_own_optimum():
    """E_q[loss] + KL cannot be lowered within the family: its gradient in eta vanishes."""
    scenario = scenarios.logistic()
    prior = IsotropicGaussian.from_moments(jnp.zeros(3), jnp.array(4.0))
    this = problem(scenario, logistic_regression(2, prior=prior))
    solution = contract.solved(NaturalGradient(), this)
    assert bool(solution.converged)

    @jax.jit
    @jax.grad
    def gradient(q):
        return PredictorQuadrature().value(this, q) + KL().objective(q, this.cavity)

    # in units of the Fisher information, so that the size of eta does not matter: KL to the optimum is about half
    slope = gradient(solution.tilted)
    moved = solution.tilted / IsotropicGaussian(slope.precision_mean, slope.precision)
    assert distance(moved, (np.asarray(solution.tilted.mean), np.asarray(solution.tilted.covariance))) < 1e-8


def test_newton_and_plain_mean_steps_have_the_same_fixed_point():
    scenario = scenarios.logistic()
    this = problem(scenario, built(scenario, logistic_regression, DiagonalGaussian))
    newton = contract.solved(NaturalGradient(), this)
    plain = contract.solved(NaturalGradient(newton=False, max_steps=2000), this)
    assert bool(plain.converged)
    assert newton.steps < plain.steps
    assert float(plain.tilted.kl(newton.tilted)) < 1e-8


@pytest.mark.parametrize("rho", [1.0, 0.25])
def test_one_step_is_equation_four(rho):
    """eta_k <- (1 - rho) eta_k + rho d/dmu E_q[log p], so q <- q^(1 - rho) (cavity * site)^rho."""
    scenario = scenarios.logistic()
    model = built(scenario, logistic_regression, FullGaussian)
    start = FullGaussian.from_moments(jnp.array([0.1, 0.4, -0.2]), 0.04 * jnp.eye(3))
    this = problem(scenario, model, start=start)
    solver = FixedPoint(rho, max_steps=1)
    tilted = contract.solved(solver, this).tilted
    _, slope, bend = scenarios.expected_loss(scenario, np.asarray(start.mean), np.asarray(start.covariance))
    hessian = 2 * bend
    precision = (1 - rho) * start.precision + rho * (model.prior.precision + hessian)
    h = (1 - rho) * start.precision_mean + rho * (hessian @ start.mean - slope)
    np.testing.assert_allclose(tilted.precision, precision, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(tilted.precision_mean, h, rtol=1e-9)


@pytest.mark.parametrize("prior_scale", [2.0, 10.0, 200.0])
def test_counts_from_far_away(prior_scale):
    """E[exp f] of a wide start is astronomic, or overflows; of a wrong one the full step is too long."""
    scenario = replace(scenarios.poisson(), prior_scale=prior_scale)
    model = built(scenario, poisson_regression, FullGaussian)
    wrong = FullGaussian.from_moments(jnp.array([-4.0, 2.0, 2.0]), 0.01 * jnp.eye(3))
    reference = scenarios.gaussian_optimum(scenario, mean_field=False)
    for start in (model.prior, wrong):
        solution = contract.solved(NaturalGradient(), problem(scenario, model, start=start))
        assert bool(solution.converged)
        assert int(solution.steps) < 40
        assert distance(solution.tilted, reference) < 1e-9


def test_a_step_that_is_too_long_is_halved():
    """Rates of about 400 from a mean of 0: the full step would take the predictor to 400, and its exp with it."""
    scenario = scenarios.poisson()
    y = np.random.default_rng(0).poisson(np.exp(6 + scenario.x @ [0.4, -0.3])).astype(float)
    scenario = replace(scenario, y=y, prior_scale=10.0)
    this = problem(scenario, built(scenario, poisson_regression, FullGaussian))
    solution = contract.solved(NaturalGradient(), this)
    assert bool(solution.converged)
    mean, covariance = np.asarray(solution.tilted.mean), np.asarray(solution.tilted.covariance)
    by_mean, by_covariance = scenarios.free_energy_gradient(scenario, mean, covariance)
    # in units of the posterior's spread, where half the square is the KL to the optimum
    root = np.linalg.cholesky(covariance)
    assert np.linalg.norm(root.T @ by_mean) < 1e-4
    assert np.linalg.norm(root.T @ by_covariance @ root) < 1e-4


def test_small_steps_are_not_taken_for_convergence():
    """The tolerance is on the undamped step, so a tenth of it ends as near to the optimum."""
    scenario = scenarios.logistic()
    this = problem(scenario, built(scenario, logistic_regression, FullGaussian))
    solution = contract.solved(FixedPoint(0.1, max_steps=1000), this)
    assert bool(solution.converged)
    assert distance(solution.tilted, scenarios.gaussian_optimum(scenario, mean_field=False)) < 1e-9


def test_the_step_limit_is_reported():
    scenario = scenarios.logistic()
    this = problem(scenario, built(scenario, logistic_regression, FullGaussian))
    short = contract.solved(NaturalGradient(tolerance=1e-10, max_steps=2), this)
    assert int(short.steps) == 2
    assert not bool(short.converged)
    loose, tight = (contract.solved(NaturalGradient(tolerance=tolerance), this) for tolerance in (1e-2, 1e-10))
    assert bool(loose.converged)
    assert bool(tight.converged)
    assert int(loose.steps) < int(tight.steps)


@thorough
def test_single_precision():
    scenario = scenarios.logistic()
    reference = scenarios.gaussian_optimum(scenario, mean_field=False)
    with jax.enable_x64(False):
        this = problem(scenario, built(scenario, logistic_regression, FullGaussian))
        solution = contract.solved(NaturalGradient(), this)
        assert solution.tilted.precision.dtype == jnp.float32
        assert bool(solution.converged)
    assert distance(jax.tree.map(lambda leaf: np.asarray(leaf, float), solution.tilted), reference) < 1e-6


@pytest.mark.parametrize(
    ("scenario", "model"),
    [
        (scenarios.logistic(), logistic_regression(2)),
        (scenarios.probit(), probit_regression(2)),
        (scenarios.softmax(), softmax_regression(2, 3)),
        (scenarios.poisson(), poisson_regression(2)),
        (scenarios.unknown_noise(), linear_regression(1)),
    ],
    ids=["logistic", "probit", "softmax", "poisson", "unknown noise"],
)
def test_expectations_against_an_independent_quadrature(scenario, model):
    """E_q[loss], E_q[gradient] and E_q[hessian], summed over rows."""
    rng = np.random.default_rng(0)
    root = np.tril(0.1 * rng.normal(size=(scenario.dimension,) * 2), -1) + 0.2 * np.eye(scenario.dimension)
    mean = 0.3 * rng.normal(size=scenario.dimension)
    q = FullGaussian.from_moments(mean, root @ root.T)
    this = problem(scenario, model)
    value, slope, bend = scenarios.expected_loss(scenario, mean, root @ root.T)
    rule = PredictorQuadrature()

    @jax.jit
    def compute(q):
        diagonal = rule.derivatives(this, q, full_hessian=False)[2]
        return rule.value(this, q), *rule.derivatives(this, q, full_hessian=True), diagonal

    alone, together, gradient, hessian, diagonal = compute(q)
    np.testing.assert_allclose([alone, together], value, rtol=1e-10)
    np.testing.assert_allclose(gradient, slope, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(hessian, 2 * bend, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(diagonal, np.diag(hessian), rtol=1e-12)


def test_nodes_in_theta_agree_with_nodes_in_the_predictor():
    scenario = scenarios.logistic()
    this = problem(scenario, logistic_regression(2, prior_scale=2.0))
    q = FullGaussian.from_moments(jnp.array([0.1, 0.5, -0.3]), 0.05 * jnp.eye(3) + 0.01)
    rules = (ThetaNodes(), PredictorQuadrature())
    for full_hessian in (True, False):
        compute = jax.jit(lambda q, full=full_hessian: [rule.derivatives(this, q, full_hessian=full) for rule in rules])
        for a, b in zip(*compute(q), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dimension", [1, 2, 3, 5, 9])
def test_nodes_integrate_quadratics_exactly(dimension):
    nodes, weights = normal_nodes(dimension)
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(weights @ nodes, np.zeros(dimension), atol=1e-12)
    np.testing.assert_allclose((nodes * weights[:, None]).T @ nodes, np.eye(dimension), atol=1e-12)


class Reverse(Divergence):
    def __call__(self, q, p):
        return p.kl(q)

    def objective(self, q, p):
        return p.kl(q)


def test_unsuitable_parts_are_refused():
    nll, kl = NegativeLogLikelihood(), KL()
    share = BernoulliShare(Beta.from_concentrations(np.array(1.0), np.array(1.0)))
    logistic, linear = logistic_regression(2), linear_regression(2, noise_sd=1.0)
    mean_field = linear_regression(2, noise_sd=1.0, covariance=DiagonalGaussian)
    refused = [
        (Conjugate(), logistic, kl, "NaturalGradient"),
        (Conjugate(), mean_field, kl, "full-covariance"),
        (Conjugate(), linear_regression(2), kl, "known noise"),
        (Conjugate(), linear, Reverse(), "KL"),
        (NaturalGradient(), share, kl, "Gaussian family"),
        (NaturalGradient(), logistic, Reverse(), "divergence KL"),
        (NaturalGradient(expectation=PredictorQuadrature()), own_model(), kl, "linear predictor"),
        (NaturalGradient(expectation=ThetaNodes()), share, kl, "Gaussian family"),
        (contract.natural_descent(0.1), share, kl, "Gaussian family"),
    ]
    for solver, model, divergence, message in refused:
        with pytest.raises(UnsuitableError, match=message):
            solver.check(model, nll, divergence)
    contract.natural_descent(0.1).check(logistic, nll, Reverse())


def own_model():
    return function_model(lambda p, batch: -0.5 * (batch - p) ** 2, 0.0)


def test_default_choices():
    nll, kl = NegativeLogLikelihood(), KL()
    exact = linear_regression(2, noise_sd=1.0)
    assert isinstance(default_solver(exact, nll, kl), Conjugate)
    assert isinstance(default_solver(exact, ScoreMatching(SquaredExponential(2.0)), kl), Conjugate)
    assert isinstance(default_solver(exact, Tempered(0.5), WeightedKL(2.0)), Conjugate)
    assert isinstance(default_solver(exact, losses.Beta(0.5), kl), NaturalGradient)
    assert isinstance(default_solver(exact, nll, Renyi(0.5)), LBFGS)
    mean_field = linear_regression(2, noise_sd=1.0, covariance=DiagonalGaussian)
    for model in (mean_field, linear_regression(2), logistic_regression(2)):
        assert isinstance(default_solver(model, nll, kl), NaturalGradient)
    assert isinstance(default_expectation(logistic_regression(2)), PredictorQuadrature)
    assert isinstance(default_expectation(own_model()), ThetaNodes)


@thorough
def test_descent_with_another_divergence():
    """KL(cavity : q) is minimised by matching moments where there is nothing to learn."""
    data = contract.as_data(np.zeros((1, 2)), np.zeros(1), np.zeros(1))
    cavity = DiagonalGaussian.from_moments(jnp.array([0.3, -0.2, 0.1]), jnp.array([0.5, 1.0, 1.5]))
    start = DiagonalGaussian.from_moments(jnp.zeros(3), jnp.ones(3))
    this = Problem(
        linear_regression(2, noise_sd=1.0, covariance=DiagonalGaussian),
        NegativeLogLikelihood(),
        Reverse(),
        cavity,
        start,
        data,
    )
    solution = contract.solved(contract.natural_descent(0.5, 500), this)
    np.testing.assert_allclose(solution.tilted.mean, cavity.mean, rtol=1e-6)
    np.testing.assert_allclose(solution.tilted.variance, cavity.variance, rtol=1e-6)
    assert int(solution.steps) == 500
