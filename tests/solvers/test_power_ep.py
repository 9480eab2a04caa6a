"""Power EP inside a client: against EP row after row in numpy, closed forms, grids and NUTS."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln, log_ndtr

import cavity
from cavity.core import Problem
from cavity.distributions import Beta, DiagonalGaussian, FullGaussian, IsotropicGaussian
from cavity.divergences import KL, Renyi, WeightedKL
from cavity.errors import CavityError, UnsuitableError
from cavity.losses import NegativeLogLikelihood, Tempered
from cavity.models import (
    BernoulliShare,
    function_model,
    logistic_regression,
    poisson_regression,
    probit_regression,
    softmax_regression,
)
from cavity.models.glm.regression import Regression, gaussian_prior
from cavity.solvers import AlphaDivergence, FixedPoint, NaturalGradient, PowerEP
from cavity.solvers.ep.row_moments import refit
from tests import scenarios
from tests.contracts import solver as contract
from tests.doubles import CauchyNoise
from tests.marks import thorough
from tests.numpy_ep import power_ep, tilted_moments

pytestmark = pytest.mark.usefixtures("quick_to_compile")

CASES = {
    "EP": (PowerEP(), FullGaussian),
    "power EP": (PowerEP(0.5), FullGaussian),
    "stochastic EP": (PowerEP(tied=True), FullGaussian),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@thorough
def test_contract(case):
    contract.check(*case)


@thorough
def test_numbers_do_not_recompile():
    sweep = [PowerEP(alpha, tolerance=tolerance) for alpha in (1.0, 0.5) for tolerance in (1e-6, 1e-9)]
    contract.check_no_recompilation(*sweep, family=FullGaussian)


def logistic_log_likelihood(f, y):
    return y * f - np.logaddexp(0, f)


def probit_log_likelihood(f, y):
    return log_ndtr((2 * y - 1) * f)


def poisson_log_likelihood(f, y):
    return y * f - np.exp(f) - gammaln(y + 1)


def cauchy_log_likelihood(f, y):
    return -np.log1p((y - f) ** 2)


REGRESSIONS = {
    "logistic": (logistic_regression, logistic_log_likelihood),
    "probit": (probit_regression, probit_log_likelihood),
    "poisson": (poisson_regression, poisson_log_likelihood),
}


def problem(model, x, y, weight=None, loss=None, divergence=None) -> Problem:
    data = contract.as_data(x, y, weight)
    loss, divergence = loss or NegativeLogLikelihood(), divergence or KL()
    return Problem(model, loss, divergence, model.prior, model.prior, data)


@eqx.filter_jit
def begun(solver, problem):
    return solver.init(problem)


@eqx.filter_jit
def swept(solver, problem, state):
    return solver.step(contract.KEY, problem, state)


def rows(name, num_rows=9):
    scenario = getattr(scenarios, name)(num_rows, 1, seed=7)
    return scenario.x, scenario.y


def assert_moments(q, expected, rtol):
    """In units of the expected standard deviations."""
    mean, covariance = expected
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((np.asarray(q.mean) - mean) / sd, 0.0, atol=rtol)
    np.testing.assert_allclose(np.asarray(q.covariance) / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=rtol)


def in_numpy(log_likelihood, x, y, alpha, prior_scale=2.0, **arguments):
    design = np.column_stack([np.ones(len(x)), x])
    return power_ep(log_likelihood, design, y, (np.zeros(2), np.eye(2) / prior_scale**2), alpha, **arguments)


# against EP row after row, with SciPy's quadrature


@thorough
@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("name", REGRESSIONS)
def test_row_after_row_ends_at_the_same_place(name, alpha):
    constructor, log_likelihood = REGRESSIONS[name]
    x, y = rows(name)
    solution = contract.solved(PowerEP(alpha), problem(constructor(1, prior_scale=2.0), x, y))
    assert bool(solution.converged)
    assert_moments(solution.tilted, in_numpy(log_likelihood, x, y, alpha), 1e-5)
    if alpha == 0.5:  # and that is another place than that of EP
        with pytest.raises(AssertionError):
            assert_moments(solution.tilted, in_numpy(log_likelihood, x, y, 1.0), 1e-4)


@thorough
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_tied_factor_ends_where_row_after_row_does(alpha):
    x, y = rows("probit")
    solution = contract.solved(PowerEP(alpha, tied=True), problem(probit_regression(1, prior_scale=2.0), x, y))
    assert bool(solution.converged)
    assert_moments(solution.tilted, in_numpy(probit_log_likelihood, x, y, alpha, tied=True), 1e-5)
    with pytest.raises(AssertionError):
        assert_moments(solution.tilted, in_numpy(probit_log_likelihood, x, y, alpha), 1e-4)


@thorough
def test_weights_are_copies_and_powers():
    """Weight 2 is two rows; weight 1/2 the root of the likelihood."""
    x, y = rows("probit")
    weight = np.array([2.0, 0.5, 1.0, 0.0, 1.0, 3.0, 0.5, 1.0, 1.0])
    model = probit_regression(1, prior_scale=2.0)
    solution = contract.solved(PowerEP(), problem(model, x, y, weight))
    present = weight > 0
    expected = in_numpy(probit_log_likelihood, x[present], y[present], 1.0, weight=weight[present])
    assert_moments(solution.tilted, expected, 1e-5)
    repeated = np.repeat(np.arange(9), [2, 1, 1, 0, 1, 3, 1, 1, 1])
    halves = np.where(weight[repeated] == 0.5, 0.5, 1.0)
    assert_moments(solution.tilted, in_numpy(probit_log_likelihood, x[repeated], y[repeated], 1.0, weight=halves), 1e-5)


@thorough
def test_power_of_the_likelihood_and_weight_of_the_divergence_are_one_number():
    x, y = rows("logistic")
    model = logistic_regression(1, prior_scale=2.0)
    expected = in_numpy(lambda f, y: 1.5 * logistic_log_likelihood(f, y), x, y, 1.0)
    for loss, divergence in ((Tempered(1.5), KL()), (None, WeightedKL(1.5))):
        solution = contract.solved(PowerEP(), problem(model, x, y, loss=loss, divergence=divergence))
        assert_moments(solution.tilted, expected, 1e-5)


@thorough
def test_an_outlier_has_a_factor_of_negative_precision():
    """A likelihood that is not log-concave, from outside the library."""
    x = np.array([[-1.0], [-0.5], [0.0], [0.4], [0.7], [1.0], [1.5]])
    y = np.array([-0.9, -0.4, 0.2, 0.3, 0.8, 1.1, -3.0])
    model = Regression(gaussian_prior(2, 2.0), CauchyNoise(), ("x1",))
    solution = contract.solved(PowerEP(), problem(model, x, y))
    assert bool(solution.converged)
    assert_moments(solution.tilted, in_numpy(cauchy_log_likelihood, x, y, 1.0), 1e-5)


# property 4.1


@thorough
def test_a_sweep_with_alpha_to_zero_is_the_fixed_point_update_of_vi():
    """From the same q, one undamped sweep; the difference falls as alpha does."""
    scenario = scenarios.logistic()
    this = problem(logistic_regression(2, prior_scale=2.0), scenario.x, scenario.y)
    start = FullGaussian.from_moments(jnp.array([0.2, 0.5, -0.4]), 0.05 * jnp.eye(3))
    this = replace(this, start=start)
    expected = contract.solved(FixedPoint(1.0, max_steps=1, newton=False), this).tilted
    errors = []
    for alpha in (1.0, 1e-2, 1e-4, 1e-6):
        solver = PowerEP(alpha)
        state = replace(begun(solver, this), q=start, shared=start / this.cavity)
        q = swept(solver, this, state).q
        errors.append(float(jnp.max(jnp.abs(q.precision / expected.precision - 1.0))))
    assert errors[0] > 1e-3
    np.testing.assert_allclose(np.array(errors[1:-1]) / errors[2:], 100.0, rtol=0.05)
    np.testing.assert_allclose(q.precision, expected.precision, rtol=1e-6)
    np.testing.assert_allclose(q.precision_mean, expected.precision_mean, rtol=1e-6)


@thorough
@pytest.mark.parametrize("tied", [False, True])
def test_alpha_to_zero_ends_at_the_optimum_of_vi(tied):
    scenario = scenarios.logistic()
    this = problem(logistic_regression(2, prior_scale=scenario.prior_scale), scenario.x, scenario.y)
    optimum = scenarios.gaussian_optimum(scenario, mean_field=False)
    assert_moments(contract.solved(PowerEP(1e-6, tied=tied), this).tilted, optimum, 2e-5)
    with pytest.raises(AssertionError):
        assert_moments(contract.solved(PowerEP(1.0, tied=tied), this).tilted, optimum, 1e-4)


# closed forms and grids


@thorough
@pytest.mark.parametrize("tied", [False, True])
def test_gaussian_rows_are_exact_after_one_sweep(tied):
    """From the prior, without the start at the optimum of VI."""
    this = contract.problem(FullGaussian, contract.as_data(*contract.rows()), 1.0)
    solver = PowerEP(tied=tied)
    state = replace(begun(solver, this), q=this.start, shared=this.start / this.cavity)
    solution = solver.result(this, swept(solver, this, state))
    contract.assert_answer(solution, this, 1e-9)


@thorough
@pytest.mark.parametrize("family", [DiagonalGaussian, IsotropicGaussian])
def test_a_smaller_family_gets_the_moments(family):
    scenario = scenarios.probit()
    shape = jnp.full(3, 4.0) if family is DiagonalGaussian else jnp.array(4.0)
    model = probit_regression(2, prior=family.from_moments(jnp.zeros(3), shape))
    full = contract.solved(PowerEP(), problem(probit_regression(2, prior_scale=2.0), scenario.x, scenario.y)).tilted
    tilted = contract.solved(PowerEP(), problem(model, scenario.x, scenario.y)).tilted
    assert isinstance(tilted, family)
    np.testing.assert_allclose(tilted.mean, full.mean, rtol=1e-6)
    variance = full.variance if family is DiagonalGaussian else np.full(3, np.mean(full.variance))
    np.testing.assert_allclose(tilted.variance, variance, rtol=1e-6)


@pytest.mark.parametrize(("x", "prior_scale"), [(0.7, 1.0), (3.0, 20.0), (-40.0, 20.0)])
def test_one_logistic_row_has_the_moments_of_a_grid(x, prior_scale):
    """With one row the tilted distribution is the posterior; the likelihood may be much sharper than the prior."""
    model = logistic_regression(1, prior_scale=prior_scale, intercept=False)
    tilted = contract.solved(PowerEP(), problem(model, np.array([[x]]), np.array([1.0]))).tilted
    theta = np.linspace(-9 * prior_scale, 9 * prior_scale, 1_000_001)
    log_p = logistic_log_likelihood(x * theta, 1.0) - 0.5 * (theta / prior_scale) ** 2
    p = np.exp(log_p - log_p.max())
    mean = p @ theta / p.sum()
    variance = p @ (theta - mean) ** 2 / p.sum()
    np.testing.assert_allclose(tilted.mean, mean, rtol=1e-7)
    np.testing.assert_allclose(tilted.variance, variance, rtol=1e-7)


@thorough
def test_many_logistic_rows_are_near_a_grid():
    """One coefficient: EP is within a hundredth of a standard deviation of the posterior, VI is further off."""
    scenario = scenarios.logistic(400, 1, seed=3)
    model = logistic_regression(1, prior_scale=4.0, intercept=False)
    this = problem(model, scenario.x, scenario.y)

    def log_density(theta):
        f = theta * scenario.x[:, 0]
        return np.sum(logistic_log_likelihood(f, scenario.y), axis=1) - 0.5 * (theta[:, 0] / 4.0) ** 2

    mean, covariance = scenarios.grid_moments(log_density, [1.2], [0.3], num_points=4001, width=10.0)
    errors = {}
    for name, solver in (("EP", PowerEP()), ("VI", NaturalGradient())):
        q = contract.solved(solver, this).tilted
        sd = np.sqrt(covariance[0, 0])
        errors[name] = max(abs(float(q.mean[0]) - mean[0]) / sd, abs(float(jnp.sqrt(q.variance[0])) / sd - 1))
    assert errors["EP"] < 0.01
    assert errors["VI"] > errors["EP"]


REFITS = {
    "wide, logistic": (logistic_regression, logistic_log_likelihood, 1.0, -3.0, 120.0, 1.0),
    "wide, half a logistic": (logistic_regression, logistic_log_likelihood, 0.0, 9.0, 40.0, 0.5),
    "surprising, probit": (probit_regression, probit_log_likelihood, 1.0, -6.0, 1.0, 1.0),
    "narrow, probit": (probit_regression, probit_log_likelihood, 0.0, 0.3, 1e-4, 1.0),
    "counts far from the cavity": (poisson_regression, poisson_log_likelihood, 200.0, -2.0, 4.0, 1.0),
}


@thorough
@pytest.mark.parametrize("case", REFITS.values(), ids=REFITS.keys())
def test_refit_has_the_moments_of_scipy(case):
    """N(m, v) times the factor to the power alpha has the tilted mean and variance."""
    constructor, log_likelihood, y, m, v, alpha = case
    likelihood = constructor(1).likelihood
    factor = refit(
        lambda f: likelihood.log_prob(f, jnp.array([[y]])), jnp.array([[m]]), jnp.sqrt(jnp.array([[[v]]])), alpha
    )
    mean, variance = tilted_moments(log_likelihood, y, m, v, alpha)
    precision = 1 / v + alpha * float(factor.precision[0, 0, 0])
    np.testing.assert_allclose(1 / precision, variance, rtol=1e-7)
    matched = (m / v + alpha * float(factor.shift[0, 0])) / precision
    np.testing.assert_allclose((matched - mean) / np.sqrt(variance), 0.0, atol=1e-7)


@thorough
def test_a_row_that_sees_nothing_changes_nothing():
    """Without an intercept, a row of zeros."""
    x, y = rows("logistic")
    model = logistic_regression(1, prior_scale=2.0, intercept=False)
    solver = PowerEP(tolerance=1e-18)
    plain = contract.solved(solver, problem(model, x, y))
    more = contract.solved(solver, problem(model, np.vstack([x, [[0.0]]]), np.append(y, 1.0)))
    assert bool(more.converged)
    np.testing.assert_allclose(more.tilted.precision, plain.tilted.precision, rtol=1e-9)
    np.testing.assert_allclose(more.tilted.precision_mean, plain.tilted.precision_mean, rtol=1e-9)


# several predictors, and none


@thorough
def test_one_softmax_row_has_the_moments_of_a_grid():
    prior_scale, x = 1.5, 1.3
    model = softmax_regression(1, 3, prior_scale=prior_scale, intercept=False)
    tilted = contract.solved(PowerEP(), problem(model, np.array([[x]]), np.array([1.0]))).tilted

    def log_density(theta):
        scores = np.column_stack([np.zeros(len(theta)), x * theta])
        return scores[:, 1] - np.logaddexp.reduce(scores, axis=1) - 0.5 * np.sum(theta**2, axis=1) / prior_scale**2

    expected = scenarios.grid_moments(log_density, np.zeros(2), np.full(2, prior_scale), num_points=801)
    assert_moments(tilted, expected, 1e-5)


@thorough
@pytest.mark.parametrize(
    ("num_features", "tolerance"),
    [(1, 1e-5), (4, 0.04)],
    ids=["grid", "Monte Carlo"],
)
def test_without_a_linear_predictor_theta_itself_is_what_a_row_sees(num_features, tolerance):
    """A logistic regression as a function: a grid over two coefficients, fixed draws of five, 256 of them."""
    scenario = scenarios.logistic(12, num_features, seed=2)

    def log_prob(theta, batch):
        x, y = batch
        f = theta["intercept"] + x @ theta["slope"]
        return y * f - jnp.logaddexp(0.0, f)

    zeros = {"intercept": jnp.zeros(()), "slope": jnp.zeros(num_features)}
    model = function_model(log_prob, zeros, prior_scale=2.0)
    solution = contract.solved(PowerEP(), problem(model, scenario.x, scenario.y))
    assert bool(solution.converged)
    linear = problem(logistic_regression(num_features, prior_scale=2.0), scenario.x, scenario.y)
    reference = contract.solved(PowerEP(), linear).tilted
    expected = np.asarray(reference.mean), np.asarray(reference.covariance)
    assert_moments(solution.tilted, expected, tolerance)
    vi = contract.solved(NaturalGradient(), linear).tilted
    with pytest.raises(AssertionError):
        assert_moments(vi, expected, tolerance)


# clients

TIGHT = {"tolerance": 1e-12, "rounds": 200}


@thorough
@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("sort", [pytest.param(False, marks=pytest.mark.slow), True], ids=["homogeneous", "sorted"])
def test_clients_end_where_one_client_with_all_rows_does(alpha, sort):
    scenario = scenarios.probit()
    parts = scenarios.label_sorted(scenario.y, 4) if sort else scenarios.homogeneous(120, 4)
    algorithm = cavity.PVI(probit_regression(2, prior_scale=2.0), solver=PowerEP(alpha))
    fit = cavity.run(algorithm, scenarios.clients(scenario.x, scenario.y, parts), **TIGHT)
    pooled = cavity.run(algorithm, {"pooled": (scenario.x, scenario.y)}, **TIGHT)
    assert fit.converged
    assert fit.history[-1]["unconverged"] == 0
    assert_moments(fit.posterior, (np.asarray(pooled.posterior.mean), np.asarray(pooled.posterior.covariance)), 1e-4)


@thorough
def test_single_precision():
    scenario = scenarios.probit()
    this = problem(probit_regression(2, prior_scale=2.0), scenario.x, scenario.y)
    expected = contract.solved(PowerEP(), this).tilted
    with jax.enable_x64(False):
        clients = scenarios.clients(scenario.x, scenario.y, scenarios.homogeneous(120, 2))
        fit = cavity.run(cavity.PVI(probit_regression(2, prior_scale=2.0), solver=PowerEP()), clients)
    assert fit.converged
    assert_moments(fit.posterior, (np.asarray(expected.mean), np.asarray(expected.covariance)), 1e-2)


# what goes wrong


@thorough
def test_a_row_with_an_improper_cavity_keeps_its_factor_for_a_sweep():
    """Two equal rows, one of positive and one of negative precision: without the first, q is improper."""
    x, y = rows("probit")
    x[1], y[1] = x[0], y[0]
    this = problem(probit_regression(1, prior_scale=2.0), x, y)
    solver = PowerEP()
    state = begun(solver, this)
    precision = state.factors.precision.at[0].set(10.0).at[1].set(-9.9)
    factors = replace(state.factors, precision=precision)
    design = np.column_stack([np.ones(9), x])
    q = this.cavity * FullGaussian(jnp.zeros(2), jnp.asarray(0.1 * np.outer(design[0], design[0])))
    bad = replace(state, q=q, shared=this.cavity**0.0, factors=factors)
    after = swept(solver, this, bad)
    assert not bool(after.complete)
    assert float(after.factors.precision[0, 0, 0]) == 10.0
    assert float(after.factors.precision[1, 0, 0]) > 0
    while not solver.done(after):
        after = swept(solver, this, after)
    solution = solver.result(this, after)
    assert bool(solution.converged)
    assert_moments(solution.tilted, in_numpy(probit_log_likelihood, x, y, 1.0), 1e-5)


@thorough
def test_an_improper_product_is_not_taken():
    """A sweep that leads to no Gaussian leaves q where it was, and the next one is half as long."""
    x, y = rows("probit")
    this = problem(probit_regression(1, prior_scale=2.0), x, y)
    solver = PowerEP()
    state = begun(solver, this)
    half = replace(
        state, q=this.start, shared=FullGaussian(jnp.zeros(2), -1e3 * jnp.eye(2)), step_size=jnp.asarray(0.5)
    )
    after = swept(solver, this, half)  # half of the shared factor would stay
    assert float(after.step_size) == 0.25
    assert not bool(after.complete)
    np.testing.assert_array_equal(after.q.precision, this.start.precision)


@thorough
def test_too_few_steps_are_reported():
    scenario = scenarios.logistic()
    algorithm = cavity.PVI(logistic_regression(2), solver=PowerEP(max_steps=5))
    fit = cavity.run(algorithm, scenarios.clients(scenario.x, scenario.y, scenarios.homogeneous(120, 2)), rounds=1)
    assert fit.history[-1]["unconverged"] == 2


@pytest.mark.parametrize("alpha", [0.0, -0.5, 1.5, np.nan, [0.5, 1.0]])
def test_bad_alphas(alpha):
    with pytest.raises(CavityError, match=r"alpha of power EP must be in \(0, 1\]"):
        PowerEP(alpha)
    with pytest.raises(CavityError, match=r"must be in \(0, 1\).*NaturalGradient.*PowerEP"):
        AlphaDivergence(alpha)


def test_what_power_ep_cannot_carry():
    logistic = logistic_regression(1)
    share = BernoulliShare(Beta.from_concentrations(np.array(1.0), np.array(1.0)))
    wide = function_model(lambda theta, batch: batch @ theta, jnp.zeros(21))
    for model, divergence, message in (
        (share, KL(), "Gaussian family.*Beta"),
        (logistic, Renyi(0.5), "KL.*Renyi.*LBFGS"),
        (wide, KL(), "without linear predictors up to 20 parameters.*21.*NaturalGradient"),
        (logistic_regression(1001, covariance=DiagonalGaussian), KL(), "up to 1000 parameters.*1002"),
    ):
        with pytest.raises(UnsuitableError, match=message):
            PowerEP().check(model, NegativeLogLikelihood(), divergence)


# Algorithm 3


@thorough
@pytest.mark.parametrize("alpha", [0.2, 0.5])
def test_a_minimum_of_the_alpha_divergence_has_the_moments_of_the_geometric_mean(alpha):
    """One coefficient, on a grid: q has the moments of tilted^alpha q^(1 - alpha)."""
    scenario = scenarios.logistic(40, 1, seed=3)
    model = logistic_regression(1, prior_scale=4.0, intercept=False)
    solution = contract.solved(AlphaDivergence(alpha), problem(model, scenario.x, scenario.y))
    assert bool(solution.converged)
    m, v = float(solution.tilted.mean[0]), float(solution.tilted.variance[0])

    def log_density(theta):
        posterior = (
            np.sum(logistic_log_likelihood(theta * scenario.x[:, 0], scenario.y), axis=1) - theta[:, 0] ** 2 / 32
        )
        return alpha * posterior - (1 - alpha) * (theta[:, 0] - m) ** 2 / (2 * v)

    mean, covariance = scenarios.grid_moments(log_density, [m], [np.sqrt(v)], num_points=20001, width=12.0)
    np.testing.assert_allclose((m - mean[0]) / np.sqrt(v), 0.0, atol=1e-4)
    np.testing.assert_allclose(v, covariance[0, 0], rtol=1e-4)


@thorough
def test_alpha_divergence_of_one_row_is_power_ep():
    """With one row at the client, Algorithms 2 and 3 have the same fixed points."""
    model, x, y = logistic_regression(1, prior_scale=3.0), np.array([[1.2]]), np.array([1.0])
    by_descent = contract.solved(AlphaDivergence(0.5), problem(model, x, y)).tilted
    by_moments = contract.solved(PowerEP(0.5), problem(model, x, y)).tilted
    assert_moments(by_descent, (np.asarray(by_moments.mean), np.asarray(by_moments.covariance)), 1e-4)
    vi = contract.solved(NaturalGradient(), problem(model, x, y)).tilted
    with pytest.raises(AssertionError):
        assert_moments(vi, (np.asarray(by_moments.mean), np.asarray(by_moments.covariance)), 1e-3)


@thorough
def test_alpha_divergence_near_zero_is_vi():
    scenario = scenarios.logistic()
    this = problem(logistic_regression(2, prior_scale=2.0), scenario.x, scenario.y)
    optimum = scenarios.gaussian_optimum(scenario, mean_field=False)
    assert_moments(contract.solved(AlphaDivergence(1e-6), this).tilted, optimum, 1e-4)


@pytest.mark.slow
def test_alpha_divergence_finds_the_conjugate_answer():
    contract.check_finds_the_conjugate_answer(AlphaDivergence(0.5), FullGaussian, rtol=1e-6)
    contract.check_improper_cavity(AlphaDivergence(0.5), FullGaussian, rtol=1e-6)


# the exact posterior, by NUTS


@pytest.fixture(scope="module")
def nuts():
    """Draws of a probit regression's posterior, with at least 10,000 effective ones of every coefficient."""
    import numpyro
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from numpyro.distributions import Normal
    from numpyro.infer import MCMC, NUTS

    scenario = scenarios.probit()

    def model(x, y):
        theta = numpyro.sample("theta", Normal(0.0, scenario.prior_scale).expand([3]).to_event(1))
        f = theta[0] + x @ theta[1:]
        numpyro.factor("y", jnp.sum(jax.scipy.special.log_ndtr((2 * y - 1) * f)))

    mcmc = MCMC(
        NUTS(model), num_warmup=500, num_samples=6000, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    mcmc.run(jax.random.key(0), jnp.asarray(scenario.x), jnp.asarray(scenario.y))
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["theta"])
    assert (effective_sample_size(draws) > 10_000).all()
    assert (effective_sample_size(draws**2) > 10_000).all()
    assert (split_gelman_rubin(draws) < 1.002).all()
    return draws.reshape(-1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("num_clients", [1, 4])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_means_and_sds_of_nuts(nuts, alpha, num_clients):
    scenario = scenarios.probit()
    algorithm = cavity.PVI(probit_regression(2, prior_scale=scenario.prior_scale), solver=PowerEP(alpha))
    clients = scenarios.clients(scenario.x, scenario.y, scenarios.homogeneous(120, num_clients))
    q = cavity.run(algorithm, clients).posterior
    sd = nuts.std(axis=0)
    np.testing.assert_allclose(np.asarray(q.mean), nuts.mean(axis=0), rtol=0, atol=0.05 * sd.min())
    np.testing.assert_allclose(np.sqrt(np.asarray(q.variance)), sd, rtol=0.03)
