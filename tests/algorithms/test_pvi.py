"""Partitioned variational inference as a whole: the claims of the paper, each against an answer found elsewhere.

The numbers of properties and equations are those of Ashman et al. (2022).
"""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import betaln, expit, gammaln

import cavity
from cavity.aggregation import Fixed
from cavity.distributions import Beta, DiagonalGaussian, Dirichlet, FullGaussian, Gamma
from cavity.models import (
    BernoulliShare,
    CategoricalShares,
    PoissonRate,
    linear_regression,
    logistic_regression,
    poisson_regression,
    probit_regression,
    softmax_regression,
)
from cavity.schedules import Sequential, SequentialLargestFirst, SequentialShuffled, Synchronous
from cavity.solvers import FixedPoint
from tests import scenarios
from tests.contracts.solver import natural_descent
from tests.marks import thorough

SCHEDULES = [Synchronous(), Sequential(), SequentialShuffled(), SequentialLargestFirst()]
FAMILIES = {"full": FullGaussian, "mean field": DiagonalGaussian}
family_of = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
schedule_of = pytest.mark.parametrize("schedule", SCHEDULES[:2], ids=["synchronous", "sequential"])
precision_of = pytest.mark.parametrize(("double", "rtol"), [(True, 1e-9), (False, 1e-5)], ids=["float64", "float32"])


def moments(q):
    return np.asarray(q.mean), np.asarray(q.covariance)


def kl_to(fit, reference) -> float:
    return scenarios.gaussian_kl(*moments(fit.posterior), *reference)


def relative_error(got, expected) -> float:
    got, expected = np.asarray(got), np.asarray(expected)
    return float(np.max(np.abs(got - expected)) / np.max(np.abs(expected)))


@st.composite
def ownerships(draw, num_rows, num_clients):
    """A client for every row, none without rows, of any sizes."""
    owner = np.random.default_rng(draw(st.integers(0, 999))).integers(0, num_clients, num_rows)
    owner[: draw(st.integers(0, num_rows - num_clients))] = 0
    owner[-num_clients:] = np.arange(num_clients)
    return owner


def by_weight(batch, owner):
    """Clients who all see every row but count only their own: so all partitions run the same compiled program."""
    return {f"c{m}": cavity.Weighted(batch, (owner == m).astype(float)) for m in np.unique(owner)}


# (1) conjugate models: exact after one pass

LINEAR = scenarios.linear(num_rows=30)
NOISE_SD, PRIOR_SCALE = 0.7, 3.0


def one_pass(model, clients, schedule, **arguments):
    return cavity.run(cavity.PVI(model, damping=Fixed(1.0)), clients, schedule=schedule, rounds=1, **arguments)


@precision_of
@schedule_of
@settings(max_examples=10, deadline=None)
@given(owner=ownerships(30, 4))
def test_linear_regression_is_exact_after_one_pass(schedule, double, rtol, owner):
    h, precision = scenarios.linear_posterior(*LINEAR, NOISE_SD, PRIOR_SCALE)
    with jax.enable_x64(double):
        model = linear_regression(3, noise_sd=NOISE_SD, prior_scale=PRIOR_SCALE)
        q = one_pass(model, by_weight(LINEAR, owner), schedule).posterior
    assert q.precision.dtype == np.float64
    assert relative_error(q.precision, precision) < rtol
    assert relative_error(q.precision_mean, h) < rtol
    assert relative_error(q.mean, np.linalg.solve(precision, h)) < rtol
    assert relative_error(q.covariance, np.linalg.inv(precision)) < rtol


@precision_of
@schedule_of
@pytest.mark.parametrize("sizes", [[30], [1, 4, 25], [1] * 30], ids=["one client", "unequal sizes", "single rows"])
def test_linear_regression_with_rows_at_one_client_only(schedule, double, rtol, sizes):
    h, precision = scenarios.linear_posterior(*LINEAR, NOISE_SD, PRIOR_SCALE)
    parts = np.split(np.arange(30), np.cumsum(sizes)[:-1])
    with jax.enable_x64(double):
        model = linear_regression(3, noise_sd=NOISE_SD, prior_scale=PRIOR_SCALE)
        q = one_pass(model, scenarios.clients(*LINEAR, parts), schedule).posterior
    assert relative_error(q.precision, precision) < rtol
    assert relative_error(q.precision_mean, h) < rtol


COUNTS = np.random.default_rng(0).poisson(3.0, 30).astype(float)
BINARY = (COUNTS > 3).astype(float)
CLASSES = np.minimum(COUNTS, 4) // 2
SEEN = np.bincount(CLASSES.astype(int), minlength=3)
CONJUGATE = {
    "beta-bernoulli": (
        BernoulliShare(Beta.from_concentrations(np.array(1.5), np.array(2.0))),
        BINARY,
        [0.5 + BINARY.sum(), 1.0 + 30 - BINARY.sum()],
        betaln(1.5 + BINARY.sum(), 2.0 + 30 - BINARY.sum()) - betaln(1.5, 2.0),
    ),
    "gamma-poisson": (
        PoissonRate(Gamma.from_shape_rate(np.array(1.5), np.array(2.0))),
        COUNTS,
        [0.5 + COUNTS.sum(), 2.0 + 30],
        gammaln(1.5 + COUNTS.sum())
        - (1.5 + COUNTS.sum()) * np.log(32)
        - gammaln(1.5)
        + 1.5 * np.log(2.0)
        - gammaln(COUNTS + 1).sum(),
    ),
    "dirichlet-categorical": (
        CategoricalShares(Dirichlet.from_concentration(np.array([0.5, 1.0, 2.0])), 3),
        CLASSES,
        [np.array([-0.5, 0.0, 1.0]) + SEEN],
        np.sum(gammaln(np.array([0.5, 1.0, 2.0]) + SEEN) - gammaln([0.5, 1.0, 2.0])) - gammaln(33.5) + gammaln(3.5),
    ),
}
conjugate_of = pytest.mark.parametrize("case", CONJUGATE.values(), ids=CONJUGATE.keys())


@thorough
@conjugate_of
@precision_of
@settings(max_examples=10, deadline=None)
@given(owner=ownerships(30, 4))
def test_rates_and_shares_are_exact_after_one_pass(case, double, rtol, owner):
    model, y, expected, _ = case
    with jax.enable_x64(double):
        model = jax.tree.map(np.asarray, model)
        fit = one_pass(model, by_weight(y, owner), Synchronous() if double else Sequential())
    for leaf, update in zip(jax.tree.leaves(fit.posterior), expected, strict=True):
        assert relative_error(leaf, update) < rtol


@conjugate_of
def test_free_energy_of_rates_and_shares_is_the_log_evidence(case):
    """Property 2.2 (a): where the family holds the posterior, the free energy at the fixed point is log p(y)."""
    model, y, _, evidence = case
    clients = {f"c{i}": y[rows] for i, rows in enumerate(scenarios.homogeneous(30, 3))}
    fit = cavity.run(cavity.PVI(model), clients)
    assert fit.converged
    np.testing.assert_allclose(fit.history[-1]["free_energy"], evidence, rtol=1e-12)


@schedule_of
def test_free_energy_of_linear_regression_is_the_log_evidence(schedule):
    x, y = LINEAR
    design = np.column_stack([np.ones(30), x])
    covariance = NOISE_SD**2 * np.eye(30) + PRIOR_SCALE**2 * design @ design.T
    model = linear_regression(3, noise_sd=NOISE_SD, prior_scale=PRIOR_SCALE)
    fit = cavity.run(cavity.PVI(model), scenarios.clients(x, y, scenarios.homogeneous(30, 4)), schedule=schedule)
    assert fit.converged
    evidence = stats.multivariate_normal(np.zeros(30), covariance).logpdf(y)
    np.testing.assert_allclose(fit.history[-1]["free_energy"], evidence, rtol=1e-11)


def test_the_gap_is_the_kl_from_the_tilted_to_the_posterior():
    """In the first round each client's tilted distribution is its own posterior, and the largest gap is recorded."""
    parts, zeros = [np.arange(20), np.arange(20, 30)], np.zeros(4)
    model = linear_regression(3, noise_sd=NOISE_SD, prior_scale=PRIOR_SCALE)
    fit = cavity.run(cavity.PVI(model), scenarios.clients(*LINEAR, parts), rounds=1)
    expected = []
    for rows in parts:
        h, precision = scenarios.linear_posterior(LINEAR[0][rows], LINEAR[1][rows], NOISE_SD, PRIOR_SCALE)
        tilted = np.linalg.solve(precision, h), np.linalg.inv(precision)
        expected.append(scenarios.gaussian_kl(*tilted, zeros, PRIOR_SCALE**2 * np.eye(4)))
    np.testing.assert_allclose(list(fit.server.gaps.values()), expected, rtol=1e-10)
    np.testing.assert_allclose(fit.history[-1]["gap"], max(expected), rtol=1e-10)


# (2) the optimum of global VI, found by SciPy

REGRESSIONS = {
    "logistic": (scenarios.logistic(), logistic_regression),
    "probit": (scenarios.probit(), probit_regression),
    "softmax": (scenarios.softmax(), lambda features, **arguments: softmax_regression(features, 3, **arguments)),
    "poisson": (scenarios.poisson(), poisson_regression),
}


def model_of(name, family=FullGaussian):
    scenario, constructor = REGRESSIONS[name]
    return constructor(scenario.x.shape[1], prior_scale=scenario.prior_scale, covariance=family)


@cache
def optimum(name, family=FullGaussian):
    return scenarios.gaussian_optimum(REGRESSIONS[name][0], mean_field=family is DiagonalGaussian)


def split(name, sort, num_clients=3):
    scenario, _ = REGRESSIONS[name]
    num_rows = len(scenario.y)
    parts = scenarios.label_sorted(scenario.y, num_clients) if sort else scenarios.homogeneous(num_rows, num_clients)
    return scenarios.clients(scenario.x, scenario.y, parts)


@family_of
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("logistic", "poisson") else [pytest.mark.slow, pytest.mark.exhaustive])
        for name in REGRESSIONS
    ],
)
def test_every_schedule_ends_at_the_optimum_of_global_vi(name, family):
    """Homogeneous and label-sorted clients; all in one test, because they share their compiled programs.

    There the free energy is SciPy's, found with its own nodes or closed forms: property 2.2 (a) at the fixed point.
    """
    algorithm = cavity.PVI(model_of(name, family))
    highest = scenarios.free_energy(REGRESSIONS[name][0], *optimum(name, family))
    for sort in (False, True):
        for schedule in SCHEDULES:
            fit = cavity.run(algorithm, split(name, sort), schedule=schedule, tolerance=1e-8)
            case = f"{type(schedule).__name__}, {'sorted' if sort else 'homogeneous'}"
            assert fit.converged, case
            assert kl_to(fit, optimum(name, family)) < 1e-5, case
            if isinstance(schedule, Synchronous):
                # at a maximum the free energy falls by no more than the KL
                assert abs(fit.history[-1]["free_energy"] - highest) < 1e-5, case


@thorough
def test_single_precision_ends_there_too():
    with jax.enable_x64(False):
        fit = cavity.run(cavity.PVI(model_of("logistic")), split("logistic", sort=True))
    assert fit.converged
    assert kl_to(fit, optimum("logistic")) < 1e-5


# (4) the properties

FITTED = replace(scenarios.logistic(), expectation=scenarios.by_quadrature(scenarios.logistic_loss, 32))


def posteriors_and_free_energies(algorithm, clients, **arguments):
    """The posterior that each round's messages carried, with the free energy that the round reported."""
    sent, reported = [algorithm.prior], []

    def observe(record, server):
        sent.append(server.posterior)
        reported.append(record["free_energy"])

    fit = cavity.run(algorithm, clients, observers=[observe], **arguments)
    return fit, list(zip(sent, reported, strict=False))


@family_of
def test_local_free_energies_add_up_at_every_synchronous_round(family):
    """Property 2.2 (a): sum_m F_m(q) + log Z_q = F(q), with the nodes of the solver, so to rounding."""
    algorithm = cavity.PVI(model_of("logistic", family), damping=Fixed(0.5))
    fit, rounds = posteriors_and_free_energies(algorithm, split("logistic", sort=True), rounds=60, tolerance=1e-9)
    assert fit.converged
    assert len(rounds) > 5
    for posterior, reported in rounds:
        np.testing.assert_allclose(reported, scenarios.free_energy(FITTED, *moments(posterior)), rtol=1e-11)


@family_of
def test_a_fixed_point_is_a_maximum_of_the_global_free_energy(family):
    """Property 2.2 (b): every local problem is solved by q, so the global gradient vanishes, and q is a maximum."""
    algorithm = cavity.PVI(model_of("logistic", family))
    fit = cavity.run(algorithm, split("logistic", sort=True), tolerance=1e-11, rounds=200)
    assert fit.converged
    mean, covariance = moments(fit.posterior)
    by_mean, by_covariance = scenarios.free_energy_gradient(FITTED, mean, covariance)
    if family is DiagonalGaussian:
        by_covariance = np.diag(np.diag(by_covariance))
    # in units of the posterior's own spread, where the free energy has curvature 1: KL is half the square
    root = np.linalg.cholesky(covariance)
    assert np.linalg.norm(root.T @ by_mean) < 1e-4
    assert np.linalg.norm(root.T @ by_covariance @ root) < 1e-4
    top = scenarios.free_energy(FITTED, mean, covariance)
    rng = np.random.default_rng(0)
    for _ in range(20):
        shift, stretch = rng.normal(size=3), np.diag(np.exp(0.1 * rng.normal(size=3)))
        assert scenarios.free_energy(FITTED, mean + 0.1 * root @ shift, root @ stretch**2 @ root.T) < top


ROWS = len(FITTED.y)


RATE, RHO, NUM_ROUNDS = 2e-4, 0.4, 3
DESCENT = natural_descent(RATE)
FIXED_POINT = FixedPoint(RHO, max_steps=1, newton=False)
DESIGN = jnp.asarray(FITTED.design[:, 0])


def dynamics(solver, family, clients):
    """Natural parameters after every synchronous, undamped round."""
    seen = []
    algorithm = cavity.PVI(model_of("logistic", family), solver=solver, damping=Fixed(1.0))
    cavity.run(
        algorithm, clients, rounds=NUM_ROUNDS, tolerance=0.0, observers=[lambda record, server: seen.append(server)]
    )
    return [(server.posterior.precision_mean, server.posterior.precision) for server in seen]


@cache
def global_descent(family):
    """eta <- eta + rate dF/deta on pooled data, property 3.1: the gradient of an independent free energy."""
    nodes, weights = (jnp.asarray(a) for a in scenarios.hermite(32))

    def free_energy(eta):
        h, precision = eta
        precision = jnp.diag(precision) if precision.ndim == 1 else (precision + precision.T) / 2
        covariance = jnp.linalg.inv(precision)
        mean = covariance @ h
        spread = jnp.sqrt(jnp.sum((DESIGN @ covariance) * DESIGN, axis=1))
        f = (DESIGN @ mean)[:, None] + spread[:, None] * nodes
        log_likelihood = jnp.sum((FITTED.y[:, None] * f - jnp.logaddexp(0.0, f)) @ weights)
        scale = FITTED.prior_scale
        quadratic = (jnp.trace(covariance) + mean @ mean) / scale**2
        kl = 0.5 * (quadratic + jnp.linalg.slogdet(precision)[1] + 6 * jnp.log(scale) - 3)
        return log_likelihood - kl

    unit = np.ones(3) if family is DiagonalGaussian else np.eye(3)
    eta, seen = (jnp.zeros(3), jnp.asarray(unit / FITTED.prior_scale**2)), []
    gradient = jax.jit(jax.grad(free_energy))
    for _ in range(NUM_ROUNDS):
        eta = jax.tree.map(lambda value, slope: value + RATE * slope, eta, gradient(eta))
        seen.append(eta)
    return seen


@cache
def global_fixed_point_iteration(family):
    """Eq. (23) on pooled data: eta <- (1 - rho) eta + rho (eta_0 + d/dmu E_q[log p(y | theta)]).

    In the mean parameters of a Gaussian that derivative is (H m - g, H), with g = dE[loss]/dm and H = 2 dE[loss]/dS
    of the quadrature sum.
    """
    nodes, weights = scenarios.hermite(32)
    design, prior = np.asarray(DESIGN), np.eye(3) / FITTED.prior_scale**2
    h, precision, seen = np.zeros(3), prior, []
    for _ in range(NUM_ROUNDS):
        covariance = np.linalg.inv(precision)
        mean = covariance @ h
        spread = np.sqrt(np.einsum("nd,de,ne->n", design, covariance, design))
        slopes = expit((design @ mean)[:, None] + spread[:, None] * nodes) - FITTED.y[:, None]
        g = design.T @ (slopes @ weights)
        H = (design * (slopes @ (weights * nodes) / spread)[:, None]).T @ design
        if family is DiagonalGaussian:
            H = np.diag(np.diag(H))
        h = (1 - RHO) * h + RHO * (H @ mean - g)
        precision = (1 - RHO) * precision + RHO * (prior + H)
        seen.append((h, np.diag(precision) if family is DiagonalGaussian else precision))
    return seen


def assert_same_dynamics(got, expected):
    for mine, theirs in zip(got, expected, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert relative_error(a, b) < 1e-10


@pytest.mark.parametrize(
    ("solver", "pooled"),
    [(DESCENT, global_descent), (FIXED_POINT, global_fixed_point_iteration)],
    ids=["gradient", "fixed point"],
)
@family_of
@settings(max_examples=5, deadline=None)
@given(owner=ownerships(ROWS, 3))
@thorough
def test_one_step_is_global_vi(solver, pooled, family, owner):
    """Properties 3.1 and 3.3, whatever the partition."""
    clients = by_weight((FITTED.x, FITTED.y), owner)
    assert_same_dynamics(dynamics(solver, family, clients), pooled(family))


def test_global_dynamics_with_clients_of_unequal_size():
    """The same, with rows that only one client has; the smallest has one."""
    clients = scenarios.clients(FITTED.x, FITTED.y, np.split(np.arange(ROWS), [1, 21]))
    assert_same_dynamics(dynamics(FIXED_POINT, FullGaussian, clients), global_fixed_point_iteration(FullGaussian))


# Withdrawal, late joining, influence

TIGHT = {"tolerance": 1e-9, "rounds": 200}


@pytest.fixture(scope="module")
def four():
    clients = split("logistic", sort=True, num_clients=4)
    return clients, cavity.run(cavity.PVI(model_of("logistic")), clients, **TIGHT)


def reference_without(clients, name):
    """SciPy's optimum on the rows of the other clients."""
    x, y = (np.concatenate(parts) for parts in zip(*(d for n, d in clients.items() if n != name), strict=True))
    return scenarios.gaussian_optimum(replace(scenarios.logistic(), x=x, y=y), mean_field=False)


@thorough
def test_withdrawing_is_never_having_been_there(four):
    clients, fit = four
    name = "client-1"
    without = fit.withdraw(name, **TIGHT)
    assert without.converged
    assert name not in without.server.names
    assert name not in without.server.entries
    never = cavity.run(fit.algorithm, {n: d for n, d in clients.items() if n != name}, **TIGHT)
    assert cavity.kl(without.posterior, never.posterior) < 1e-5
    assert kl_to(without, reference_without(clients, name)) < 1e-5
    # and the withdrawal is a change worth the name
    assert cavity.kl(without.posterior, fit.posterior) > 0.1


def test_joining_late_is_having_been_there(four):
    clients, fit = four
    name = "client-2"
    early = cavity.run(fit.algorithm, {n: d for n, d in clients.items() if n != name}, **TIGHT)
    late = early.join(name, clients[name], **TIGHT)
    assert late.converged
    assert cavity.kl(late.posterior, fit.posterior) < 1e-5
    assert kl_to(late, optimum("logistic")) < 1e-5


def test_leaving_and_coming_back_changes_nothing(four):
    clients, fit = four
    back = fit.withdraw("client-0", **TIGHT).join("client-0", clients["client-0"], **TIGHT)
    assert cavity.kl(back.posterior, fit.posterior) < 1e-5


def test_influence_is_the_shift_of_a_withdrawal(four):
    clients, fit = four
    influence = fit.influence(refine=True)
    assert set(influence) == set(clients)
    mean, covariance = moments(fit.posterior)
    for name, weighed in influence.items():
        other_mean, other_covariance = reference_without(clients, name)
        expected = scenarios.gaussian_kl(other_mean, other_covariance, mean, covariance)
        # the run behind it stops at a KL of about 1e-6, so its own KL moves by about sqrt(2 KL 1e-6)
        np.testing.assert_allclose(weighed.kl, expected, rtol=1e-3)
        shift = (other_mean - mean) / np.sqrt(np.diag(covariance))
        np.testing.assert_allclose(list(weighed.shift.values()), shift, atol=1e-3 * (1 + np.max(np.abs(shift))))
        assert list(weighed.shift) == list(fit.algorithm.model.parameter_names)


def test_the_last_client_leaves_the_prior():
    fit = cavity.run(cavity.PVI(linear_regression(3, noise_sd=1.0)), {"only": LINEAR})
    prior = fit.withdraw("only").posterior
    np.testing.assert_array_equal(prior.precision, fit.server.prior.precision)


# The exact posterior, by NUTS


@pytest.mark.slow
def test_posterior_against_nuts():
    """Means and sds agree up to Monte Carlo error and the gap between the best Gaussian and the truth.

    The gap comes from a dense grid over the two coefficients, so nothing in the tolerance is chosen.
    """
    import numpyro
    from numpyro.distributions import Bernoulli, Normal
    from numpyro.infer import MCMC, NUTS

    scenario = scenarios.logistic(num_rows=60, num_features=1, seed=6)
    clients = scenarios.clients(scenario.x, scenario.y, scenarios.homogeneous(60, 3))
    fit = cavity.run(cavity.PVI(logistic_regression(1, prior_scale=scenario.prior_scale)), clients)
    mean, sd = np.asarray(fit.posterior.mean), np.sqrt(np.asarray(fit.posterior.variance))

    def model(x, y):
        theta = numpyro.sample("theta", Normal(0.0, scenario.prior_scale).expand([2]).to_event(1))
        numpyro.sample("y", Bernoulli(logits=theta[0] + x[:, 0] * theta[1]), obs=y)

    mcmc = MCMC(NUTS(model), num_warmup=400, num_samples=4000, progress_bar=False)
    mcmc.run(jax.random.key(0), jnp.asarray(scenario.x), jnp.asarray(scenario.y))
    draws = np.asarray(mcmc.get_samples()["theta"])
    # batch means: 40 batches of 100 draws, far longer than the chain remembers
    error = draws.reshape(40, 100, 2).mean(axis=1).std(axis=0, ddof=1) / np.sqrt(40)
    squares = ((draws - draws.mean(axis=0)) ** 2).reshape(40, 100, 2).mean(axis=1)
    error_of_sd = squares.std(axis=0, ddof=1) / np.sqrt(40) / (2 * draws.std(axis=0))

    def log_density(theta):
        f = theta[:, :1] + theta[:, 1:] * scenario.x[:, 0]
        log_likelihood = np.sum(scenario.y * f - np.logaddexp(0, f), axis=1)
        return log_likelihood - 0.5 * np.sum(theta**2, axis=1) / scenario.prior_scale**2

    exact_mean, exact_covariance = scenarios.grid_moments(log_density, mean, sd, num_points=201)
    exact_sd = np.sqrt(np.diag(exact_covariance))
    best_mean, best_covariance = scenarios.gaussian_optimum(scenario, mean_field=False)
    gap, gap_of_sd = np.abs(best_mean - exact_mean), np.abs(np.sqrt(np.diag(best_covariance)) - exact_sd)
    assert (gap < 0.1 * exact_sd).all()

    assert (np.abs(draws.mean(axis=0) - exact_mean) < 4 * error).all()
    assert (np.abs(draws.mean(axis=0) - mean) < 4 * error + gap + 1e-3 * exact_sd).all()
    assert (np.abs(draws.std(axis=0) - sd) < 4 * error_of_sd + gap_of_sd + 1e-3 * exact_sd).all()
