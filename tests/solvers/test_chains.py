"""Tilted inference by chains: their moments on linear-Gaussian rows, and every spread against its definition."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cavity.core import pad
from cavity.distributions import DiagonalGaussian, FullGaussian, IsotropicGaussian
from cavity.distributions.point import PointMass
from cavity.errors import CavityError, UnsuitableError
from cavity.losses import Beta
from cavity.models import function_model, logistic_regression
from cavity.simulation.drive import solve
from cavity.solvers import (
    SGHMC,
    SGLD,
    SGMCMC,
    DiagonalFisher,
    LedoitWolf,
    NaturalVI,
    Point,
    SampleMoments,
    ScaledIdentity,
    SGDIterates,
)
from cavity.solvers.fisher import diagonal_fisher
from cavity.solvers.sgmcmc.covariance import Samples, ledoit_wolf
from cavity.solvers.sgmcmc.solver import part, shuffled
from tests.contracts import solver as contract
from tests.marks import thorough

DESCENT = SGDIterates(0.3)


def the_problem(family=DiagonalGaussian, cavity_precision=1.0):
    return contract.problem(family, contract.as_data(*contract.rows()), cavity_precision)


def isotropic_problem():
    problem = the_problem()
    cavity, start = (IsotropicGaussian(q.precision_mean, q.precision[0]) for q in (problem.cavity, problem.start))
    return replace(problem, cavity=cavity, start=start)


def design(problem):
    x, _ = (np.asarray(leaf) for leaf in problem.data.batch)
    return np.column_stack([np.ones(len(x)), x])


@pytest.mark.parametrize("family", [DiagonalGaussian, FullGaussian])
def test_descent_ends_at_the_mode(family):
    """All rows in each step: no noise, so the last iterate is the tilted mean, and I adds n c to the cavity."""
    problem = the_problem(family)
    solver = SGMCMC(DESCENT, ScaledIdentity(0.7), num_epochs=400, burn_in=399, batch_size=None)
    tilted = contract.solved(solver, problem).tilted
    mean, _ = contract.known_answer(problem)
    np.testing.assert_allclose(tilted.mean, mean, rtol=1e-8)
    expected = np.asarray(problem.cavity.precision_matrix) + contract.NUM_ROWS * 0.7 * np.eye(3)
    np.testing.assert_allclose(tilted.precision_matrix, expected, rtol=1e-12)


def test_an_improper_cavity_is_no_hindrance():
    problem = the_problem(cavity_precision=-0.3)
    solver = SGMCMC(DESCENT, ScaledIdentity(0.7), num_epochs=600, burn_in=599, batch_size=None)
    np.testing.assert_allclose(
        contract.solved(solver, problem).tilted.mean, contract.known_answer(problem)[0], rtol=1e-6
    )


def test_isotropic_family():
    """One number for the precision: half of what crosses the wire."""
    problem = isotropic_problem()
    solver = SGMCMC(DESCENT, ScaledIdentity(0.7), num_epochs=400, burn_in=399, batch_size=None)
    tilted = solve(solver, contract.KEY, problem).tilted
    np.testing.assert_allclose(tilted.precision, 1.0 + contract.NUM_ROWS * 0.7, rtol=1e-12)
    np.testing.assert_allclose(tilted.mean, contract.known_answer(problem)[0], rtol=1e-8)


@pytest.mark.parametrize(
    "chain", [SGLD(0.01), SGHMC(0.02, num_integration_steps=25, friction=1.0)], ids=["sgld", "sghmc"]
)
@thorough
def test_chains_that_sample(chain):
    """Means within 0.1 sd, variances within 15 % of the tilted distribution."""
    pytest.importorskip("blackjax")
    problem = the_problem(FullGaussian)
    solver = SGMCMC(chain, LedoitWolf(), num_epochs=60_000, burn_in=500, batch_size=None)
    tilted = contract.solved(solver, problem).tilted
    mean, precision = contract.known_answer(problem)
    covariance = np.linalg.inv(precision)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_array_less(np.abs(tilted.mean - mean) / sd, 0.1)
    np.testing.assert_allclose(np.diag(tilted.covariance), np.diag(covariance), rtol=0.15)
    np.testing.assert_allclose(tilted.covariance / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.15)


def test_sample_moments_are_shrunk_as_fedpa_does():
    problem = the_problem()
    draws = np.random.default_rng(0).normal(0.4, 0.05, size=(6, 3))
    for shrinkage in (0.0, 0.3, np.inf):
        spread = SampleMoments(shrinkage, precision_per_row=0.7)
        samples = spread.init(jnp.zeros(3), 6)
        for draw in draws:
            samples = spread.add(samples, jnp.asarray(draw))
        weight = 1 / (1 + 5 * shrinkage)
        target = 1 / (1.0 + contract.NUM_ROWS * 0.7)
        expected = (1 - weight) * draws.var(axis=0, ddof=1) + weight * target
        tilted = spread.tilted(contract.KEY, problem, samples)
        np.testing.assert_allclose(tilted.variance, expected, rtol=1e-10)
        np.testing.assert_allclose(tilted.mean, draws.mean(axis=0), rtol=1e-10)


def test_a_single_sample_has_no_spread_of_its_own():
    spread, problem = SampleMoments(np.inf, precision_per_row=0.7), the_problem()
    samples = spread.add(spread.init(jnp.zeros(3), 1), jnp.ones(3))
    np.testing.assert_allclose(spread.tilted(contract.KEY, problem, samples).precision, 1 + contract.NUM_ROWS * 0.7)


def test_samples_wider_than_the_cavity_give_no_negative_factor():
    spread, problem = SampleMoments(np.inf), the_problem(cavity_precision=4.0)
    samples = spread.init(jnp.zeros(3), 50)
    for draw in np.random.default_rng(0).normal(0.0, 3.0, size=(50, 3)):
        samples = spread.add(samples, jnp.asarray(draw))
    np.testing.assert_allclose(spread.tilted(contract.KEY, problem, samples).precision, 4.0)


def test_ledoit_wolf():
    covariance = pytest.importorskip("sklearn.covariance")
    for number in (5, 40):
        draws = np.random.default_rng(number).normal(size=(number, 4)) @ np.diag([1.0, 2.0, 0.5, 3.0])
        np.testing.assert_allclose(ledoit_wolf(jnp.asarray(draws)), covariance.ledoit_wolf(draws)[0], rtol=1e-10)


def test_fisher_information_of_a_linear_regression():
    """Sum of x^2 / noise^2, by outcomes that are drawn: 4,000 passes over 12 rows."""
    problem = the_problem()
    solver = DiagonalFisher(4000)
    mean = jnp.asarray([0.3, -0.2, 0.9])
    tilted = jax.jit(lambda: solver.tilted(contract.KEY, problem, Samples(jnp.asarray(1), mean, None)))()
    expected = np.sum(design(problem) ** 2, axis=0) / contract.NOISE_SD**2
    np.testing.assert_allclose(tilted.precision - 1.0, expected, rtol=0.03)
    np.testing.assert_allclose(tilted.mean, mean, rtol=1e-10)


def test_fisher_information_of_a_logistic_regression():
    """Sum of p (1 - p) x^2, whatever the outcomes in the data are; weights count rows."""
    x = np.random.default_rng(1).normal(size=(9, 2))
    model = logistic_regression(2, covariance=DiagonalGaussian)
    weight = np.array([2.0, 0.0, *[1.0] * 7])
    theta = jnp.asarray([0.2, 1.0, -0.5])
    problem = the_problem()
    rows = np.column_stack([np.ones(9), x])
    p = 1 / (1 + np.exp(-rows @ theta))
    expected = (weight * p * (1 - p)) @ rows**2
    for y in (np.zeros(9), np.ones(9)):
        this = replace(problem, model=model, data=contract.as_data(x, y, weight))
        keys = jax.random.split(jax.random.key(3), 6000)
        found = jax.jit(jax.vmap(lambda key, this=this: diagonal_fisher(key, this, theta)))(keys).mean(axis=0)
        np.testing.assert_allclose(found, expected, rtol=0.04)


def test_fisher_in_pieces(monkeypatch):
    problem, theta = the_problem(), jnp.asarray([0.3, -0.2, 0.9])
    whole = diagonal_fisher(contract.KEY, problem, theta)
    monkeypatch.setattr("cavity.solvers.fisher.NUMBERS_AT_ONCE", 15)  # five rows at a time
    np.testing.assert_allclose(diagonal_fisher(contract.KEY, problem, theta), whole, rtol=1e-12)


def test_natural_vi_is_the_fisher_information_where_it_is_constant():
    problem = the_problem()
    spread = NaturalVI(num_epochs=400, num_draws=5, decay=0.98, precision_per_row=5.0)
    tilted = jax.jit(lambda: spread.tilted(contract.KEY, problem, Samples(jnp.asarray(1), jnp.ones(3), None)))()
    expected = np.sum(design(problem) ** 2, axis=0) / contract.NOISE_SD**2
    np.testing.assert_allclose(tilted.precision - 1.0, expected, rtol=0.12)


def test_natural_vi_starts_at_the_scaled_identity():
    """After one epoch, decay of it is left (Algorithm 5, lines 10 and 11)."""
    problem, samples = the_problem(), Samples(jnp.asarray(1), jnp.ones(3), None)
    precisions = [
        NaturalVI(1, 1, decay, precision_per_row=5.0).tilted(contract.KEY, problem, samples).precision - 1.0
        for decay in (0.0, 0.5, 0.9)
    ]
    start = contract.NUM_ROWS * 5.0
    np.testing.assert_allclose(precisions[1], 0.5 * start + 0.5 * precisions[0], rtol=1e-10)
    np.testing.assert_allclose(precisions[2], 0.9 * start + 0.1 * precisions[0], rtol=1e-10)


@thorough
@pytest.mark.parametrize("spread", [ScaledIdentity(), SampleMoments(0.1), DiagonalFisher(2), NaturalVI(2, 2), Point()])
def test_padding_does_not_matter(spread):
    problem = the_problem()
    padded = pad(jax.tree.map(np.asarray, problem.data), 31)
    solver = SGMCMC(SGDIterates(0.05, momentum=0.5), spread, num_epochs=3, burn_in=1, batch_size=5)
    short, long = (
        solve(solver, contract.KEY, replace(problem, data=jax.tree.map(jnp.asarray, data)))
        for data in (problem.data, padded)
    )
    assert int(short.steps) == int(long.steps) == 9
    for a, b in zip(jax.tree.leaves(short.tilted), jax.tree.leaves(long.tilted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_an_epoch_is_every_row_once():
    data = pad(jax.tree.map(np.asarray, the_problem().data), 16)
    order = shuffled(jax.random.key(4), data)
    assert sorted(np.asarray(order[:12]).tolist()) == list(range(12))
    seen, total = [], 0.0
    for place in range(3):
        batch = part(data, order, jnp.asarray(place), 5)
        used = np.asarray(batch.weight) > 0
        seen += np.asarray(batch.batch[1])[used].tolist()
        total += float(batch.weight.sum())
        np.testing.assert_allclose(batch.weight.sum(), 12.0)  # each estimates the sum over all rows
    assert sorted(seen) == sorted(np.asarray(data.batch[1][:12]).tolist())


def test_any_optimiser_and_one_program_for_a_sweep():
    contract.check_no_recompilation(
        *(SGMCMC(SGDIterates(size, optimiser=optax.adam), ScaledIdentity(c), 2) for size, c in ((0.1, 1.0), (0.2, 0.5)))
    )


def test_point():
    solver = SGMCMC(DESCENT, Point(), num_epochs=400, burn_in=399, batch_size=None)
    tilted = contract.solved(solver, the_problem()).tilted
    assert isinstance(tilted, PointMass)
    np.testing.assert_allclose(tilted.location, contract.known_answer(the_problem())[0], rtol=1e-8)


def test_a_chain_that_diverges_answers_nothing():
    solver = SGMCMC(SGDIterates(3.0), num_epochs=50, batch_size=None)
    solution = contract.solved(solver, the_problem())
    assert not bool(solution.converged)
    assert np.isnan(solution.tilted.precision).all()


def test_bad_parts():
    with pytest.raises(CavityError, match="burn_in must leave"):
        SGMCMC(DESCENT, num_epochs=5, burn_in=5)
    with pytest.raises(CavityError, match="batch_size"):
        SGMCMC(DESCENT, batch_size=0)
    with pytest.raises(CavityError, match="step size must be positive"):
        SGDIterates(0.0)
    with pytest.raises(CavityError, match="shrinkage"):
        SampleMoments(-1.0)
    own = function_model(lambda p, batch: -((batch - p) ** 2), 0.0, covariance=DiagonalGaussian)
    problem = the_problem()
    for spread in (DiagonalFisher(), NaturalVI()):
        with pytest.raises(UnsuitableError, match="can draw outcomes"):
            SGMCMC(DESCENT, spread).check(own, problem.loss, problem.divergence)
        with pytest.raises(UnsuitableError, match="of a likelihood"):
            SGMCMC(DESCENT, spread).check(problem.model, Beta(0.5), problem.divergence)
