"""Solvers by gradient, L-BFGS and stochastic natural gradient: on linear-Gaussian problems the answer is known.

In the full family it is cavity * likelihood; a smaller one has the same mean and the part of the precision it can hold.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import TypeCheckError

from cavity import PVI, training
from cavity.aggregation import Fixed
from cavity.core import Data, Divergence, Problem
from cavity.distributions import Beta, DiagonalGaussian, FullGaussian, IsotropicGaussian
from cavity.divergences import KL
from cavity.errors import CavityError, UnsuitableError
from cavity.losses import NegativeLogLikelihood
from cavity.models import BernoulliShare, function_model, linear_regression, logistic_regression
from cavity.schedules import Synchronous
from cavity.simulation import drive
from cavity.simulation.local import LocalEngine
from cavity.solvers import LBFGS, Gradient, StochasticNaturalGradient
from cavity.solvers.coordinates import MomentCoordinates, NaturalCoordinates
from cavity.solvers.estimators import Exact
from cavity.solvers.plateau import Plateau
from cavity.solvers.start import Tight
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

NOISE_SD = 2.0
NUM_KEYS = 32
FAMILIES = [FullGaussian, DiagonalGaussian, IsotropicGaussian]
family_of = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
proper_or_not = pytest.mark.parametrize("cavity_precision", [1.0, -0.2], ids=["proper cavity", "improper cavity"])


def shaped(family, precision):
    """A multiple of the identity, as the family holds it."""
    return (
        precision * {FullGaussian: jnp.eye(2), DiagonalGaussian: jnp.ones(2), IsotropicGaussian: jnp.ones(())}[family]
    )


def rows(num_rows=12, num_padded=4):
    """One feature, weights, and padding that would be seen if it counted."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(num_rows, 1)), np.full((num_padded, 1), 50.0)])
    y = 0.4 - 0.9 * x[:, 0] + NOISE_SD * rng.normal(size=len(x))
    weight = np.concatenate([rng.uniform(0.5, 1.5, num_rows), np.zeros(num_padded)])
    return jax.tree.map(jnp.asarray, Data((x, y), weight, np.asarray(num_rows)))


def problem(family, cavity_precision=1.0, divergence=None):
    """From a standard normal start that is not the cavity."""
    prior = family(jnp.zeros(2), shaped(family, 1.0))
    model = linear_regression(1, noise_sd=NOISE_SD, prior=prior)
    cavity = family(jnp.array([0.3, -0.1]), shaped(family, cavity_precision))
    return Problem(model, NegativeLogLikelihood(), divergence or KL(), cavity, prior, rows())


def update(problem):
    """Mean and precision of the best member, by the normal equations."""
    x, y = (np.asarray(part) for part in problem.data.batch)
    a = np.column_stack([np.ones(len(x)), x])
    scaled = a * np.asarray(problem.data.weight)[:, None] / NOISE_SD**2
    precision = np.asarray(problem.cavity.precision_matrix) + scaled.T @ a
    mean = np.linalg.solve(precision, np.asarray(problem.cavity.precision_mean) + scaled.T @ y)
    if isinstance(problem.start, DiagonalGaussian):
        precision = np.diag(precision)
    elif isinstance(problem.start, IsotropicGaussian):
        precision = np.mean(np.diag(precision))
    return mean, precision


@eqx.filter_jit
def solve(solver, problem, key):
    return drive.solve(solver, key, problem)


def solved(solver, problem, key=None):
    solver.check(problem.model, problem.loss, problem.divergence)
    return solve(solver, problem, jax.random.key(0) if key is None else key)


def over_keys(solver, problem):
    """The means and precisions that different keys give."""
    solver.check(problem.model, problem.loss, problem.divergence)

    @eqx.filter_jit
    @eqx.filter_vmap(in_axes=(None, None, 0))
    def run(solver, problem, key):
        tilted = drive.solve(solver, key, problem).tilted
        return tilted.mean, tilted.precision

    return run(solver, problem, jax.random.split(jax.random.key(1), NUM_KEYS))


def assert_answer(solution, problem, rtol=1e-6):
    mean, precision = update(problem)
    np.testing.assert_allclose(solution.tilted.mean, mean, rtol=rtol)
    np.testing.assert_allclose(solution.tilted.precision, precision, rtol=rtol, atol=rtol)


def exact(step_size, num_steps=1500, **options):
    """Plain descent without noise: it converges linearly, so that the answer is met to rounding."""
    return Gradient(optax.sgd, step_size, num_steps, batch_size=None, estimator=Exact(), **options)


@family_of
@proper_or_not
def test_descent_in_moments(family, cavity_precision):
    this = problem(family, cavity_precision)
    assert_answer(solved(exact(0.1), this), this)


@family_of
@proper_or_not
def test_descent_in_natural_parameters(family, cavity_precision):
    this = problem(family, cavity_precision)
    assert_answer(solved(exact(0.5, coordinates=NaturalCoordinates()), this), this)


@thorough
@family_of
@proper_or_not
def test_lbfgs(family, cavity_precision):
    this = problem(family, cavity_precision)
    solution = solved(LBFGS(), this)
    assert_answer(solution, this)
    assert bool(solution.converged)
    assert int(solution.steps) < 50


def test_lbfgs_says_when_its_steps_ran_out():
    solution = solved(LBFGS(max_steps=2), problem(FullGaussian))
    assert not bool(solution.converged)
    assert int(solution.steps) == 2


@thorough
@pytest.mark.parametrize("batch_size", [None, 6])
@pytest.mark.parametrize("family", FAMILIES[:2], ids=lambda family: family.__name__)
@proper_or_not
def test_stochastic_natural_gradient(family, cavity_precision, batch_size):
    """Averages over keys are within 4 standard errors, and what the retraction adds: half a step, relatively."""
    this = problem(family, cavity_precision)
    solver = StochasticNaturalGradient(1500, step_size=0.2, decay=0.02, batch_size=batch_size)
    last_step = 0.2 / (1 + 0.02 * 1500)
    for found, true in zip(over_keys(solver, this), update(this), strict=True):
        error = np.std(found, axis=0) / np.sqrt(NUM_KEYS)
        scale = np.max(np.abs(true))
        np.testing.assert_array_less(np.abs(np.mean(found, axis=0) - true), 4 * error + 0.5 * last_step * scale)
        assert np.max(4 * error) < 0.1 * scale


def test_annealed_descent_with_noise():
    """Any function of a step size is an optimiser; with mini-batches and draws the answer is right on average."""

    def annealed(step_size):
        return optax.adam(optax.cosine_decay_schedule(step_size, 1000))

    this = problem(DiagonalGaussian)
    means, precisions = over_keys(Gradient(annealed, 0.03, num_steps=1000, batch_size=4), this)
    found = np.concatenate([means, np.log(precisions)], axis=1)
    mean, precision = update(this)
    error = np.std(found, axis=0) / np.sqrt(NUM_KEYS)
    true = np.concatenate([mean, np.log(precision)])
    np.testing.assert_array_less(np.abs(np.mean(found, axis=0) - true), 4 * error)
    assert np.max(4 * error) < 0.1


class Reverse(Divergence):
    """KL(p : q), for which moments are matched where there is nothing to learn."""

    def __call__(self, q, p):
        return p.kl(q)

    def objective(self, q, p):
        return p.kl(q)


@pytest.mark.parametrize("solver", [exact(0.1), LBFGS()], ids=["gradient", "L-BFGS"])
def test_another_divergence(solver):
    this = problem(DiagonalGaussian, 2.0, Reverse())
    this = eqx.tree_at(lambda p: p.data.weight, this, jnp.zeros_like(this.data.weight))
    solution = solved(solver, this)
    np.testing.assert_allclose(solution.tilted.mean, this.cavity.mean, rtol=1e-5)
    np.testing.assert_allclose(solution.tilted.precision, this.cavity.precision, rtol=1e-5)


@pytest.mark.parametrize("solver", [exact(0.1, 3), LBFGS()], ids=["gradient", "L-BFGS"])
def test_the_loss_at_the_start_is_reported(solver):
    """What the free energy of a round is made of, so at the posterior received and not at the answer."""
    this = problem(DiagonalGaussian)
    x, y = (np.asarray(part) for part in this.data.batch)
    square = y**2 + 1 + x[:, 0] ** 2  # (y - f)^2 under a standard normal
    losses = 0.5 * square / NOISE_SD**2 + np.log(NOISE_SD) + 0.5 * np.log(2 * np.pi)
    expected = np.asarray(this.data.weight) @ losses
    np.testing.assert_allclose(solved(solver, this).expected_loss, expected, rtol=1e-9)


def test_plateau_by_hand():
    """Windows of two with means 5, 4, 3.9 and 4.5, of which the last two are no progress by 0.5."""
    plateau = Plateau(window=2, patience=2, tolerance=0.5)
    state, reached = plateau.init(float), []
    for value in (6.0, 4.0, 3.9, 4.1, 3.9, 3.9, 0.0, 9.0):
        state = plateau.update(state, jnp.asarray(value), jnp.asarray(-value))
        reached.append(bool(plateau.reached(state)))
    assert reached == [False] * 7 + [True]
    # any later progress resets the count
    state = plateau.update(
        plateau.update(state, jnp.asarray(0.0), jnp.asarray(0.0)), jnp.asarray(0.0), jnp.asarray(0.0)
    )
    assert not bool(plateau.reached(state))
    # the loss rises all the time
    watching = Plateau(window=1, patience=1, expected_loss_only=True)
    state = watching.init(float)
    for value in (2.0, 1.0):
        state = watching.update(state, jnp.asarray(value), jnp.asarray(-value))
    assert bool(watching.reached(state))


def test_plateau_stops_and_says_so():
    this = problem(DiagonalGaussian)
    plateau = Plateau(window=10, patience=3, tolerance=1e-9)
    solution = solved(exact(0.1, plateau=plateau), this)
    assert bool(solution.converged)
    assert int(solution.steps) < 1500
    assert int(solution.steps) % 10 == 0
    assert_answer(solution, this, rtol=1e-4)
    for limited in (exact(0.1, 20, plateau=plateau), exact(0.1, 20)):
        solution = solved(limited, this)
        assert int(solution.steps) == 20
        assert not bool(solution.converged)


@family_of
def test_initial_sd_tightens_around_the_mean_of_the_start(family):
    this = eqx.tree_at(lambda p: p.start, problem(family), family(jnp.array([2.0, -4.0]), shaped(family, 4.0)))
    solver = exact(0.1, 1, start=Tight(0.01))
    start = MomentCoordinates().member(solver.init(this).coordinates, this.start)
    np.testing.assert_allclose(start.mean, [0.5, -1.0])
    np.testing.assert_allclose(start.covariance, 1e-4 * np.eye(2), rtol=1e-9)
    # where it starts elsewhere, it does not know the loss under the posterior
    assert np.isnan(solved(solver, this).expected_loss)


@family_of
def test_a_tight_start_breaks_the_symmetry_at_the_prior_only(family):
    """By the same vector for all clients; once there is information, the posterior's own mean is kept."""
    at_prior = problem(family)
    at_prior = eqx.tree_at(lambda p: p.start, at_prior, at_prior.model.prior)
    later = eqx.tree_at(lambda p: p.start, at_prior, family(jnp.array([2.0, -4.0]), shaped(family, 4.0)))
    start = Tight(0.01, jitter=0.1, first_only=True)
    moved = start(at_prior)
    shift = np.asarray(moved.mean - at_prior.model.prior.mean)
    assert (np.abs(shift) > 0).all()
    assert (np.abs(shift) < 0.1).all()
    assert shift[0] != shift[1]
    np.testing.assert_allclose(moved.mean, Tight(0.5, jitter=0.1)(at_prior).mean, rtol=1e-12)
    np.testing.assert_allclose(moved.covariance, 1e-4 * np.eye(2), rtol=1e-9, atol=1e-15)
    assert eqx.tree_equal(start(later), later.start)
    np.testing.assert_allclose(Tight(0.01, jitter=0.1)(later).mean, [0.5, -1.0])


def test_early_stopping_on_the_loss_keeps_a_tight_start_tight():
    """The mean is found before the spread costs more loss than the mean saves (PVI, section 5.3.1)."""
    this = problem(DiagonalGaussian)
    (mean, precision), options = update(this), {"window": 1, "patience": 1, "tolerance": 1e-7}
    early = solved(exact(0.1, start=Tight(1e-3), plateau=Plateau(**options, expected_loss_only=True)), this)
    late = solved(exact(0.1, start=Tight(1e-3), plateau=Plateau(**options)), this)
    assert bool(early.converged)
    assert bool(late.converged)
    assert int(early.steps) < int(late.steps)
    np.testing.assert_allclose(late.tilted.precision, precision, rtol=1e-2)
    assert (np.asarray(early.tilted.precision) > 2 * precision).all()
    # it has gone most of the way, and not past what the loss alone would have
    start_gap, early_gap = np.linalg.norm(mean), np.linalg.norm(np.asarray(early.tilted.mean) - mean)
    assert early_gap < 0.5 * start_gap


SWEEPS = {
    "step size": [exact(step_size, 5) for step_size in (0.1, 0.05, np.float64(0.01), jnp.asarray(0.2))],
    "number of steps": [exact(0.1, num_steps) for num_steps in (1, 2, np.int64(3))],
    "initial sd": [exact(0.1, 5, start=Tight(sd)) for sd in (0.1, 1, np.float32(0.5))],
    "plateau": [
        exact(0.1, 5, plateau=Plateau(window, patience, tolerance))
        for window, patience, tolerance in ((1, 1, 0.0), (2, 3, 1e-3), (np.int32(2), 1, 1))
    ],
    "stochastic natural gradient": [
        StochasticNaturalGradient(num_steps, step_size, decay)
        for num_steps, step_size, decay in ((5, 0.1, 0.01), (3, 0.05, 0), (2, np.float64(0.1), 1.0))
    ],
}


@thorough
@pytest.mark.parametrize(
    ("run", "sweep"),
    [(drive.run_as_loop, name) for name in SWEEPS]
    + [(drive.run_as_steps, name) for name in ("number of steps", "plateau", "stochastic natural gradient")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_sweep_compiles_once(run, sweep):
    """The log likelihood is called while tracing only, so it counts traces."""
    calls = []

    def log_likelihood(theta, batch):
        calls.append(None)
        return -0.5 * (batch - theta) ** 2

    model = function_model(log_likelihood, 0.0, covariance=DiagonalGaussian)
    data = Data(jnp.arange(3.0), jnp.ones(3), jnp.asarray(3))
    counts = []
    for solver in SWEEPS[sweep]:
        algorithm = PVI(model, solver=solver)
        inputs = drive.ClientInput(algorithm.prior, algorithm.server.entries.initial())
        inputs, stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (inputs, data))
        run(algorithm.client, drive.Work(jax.random.split(jax.random.key(0), 1), inputs, None, stacked), None)
        counts.append(len(calls))
    assert counts[0] > 0
    assert counts == counts[:1] * len(SWEEPS[sweep])


def test_numbers_are_leaves():
    """Which is why a sweep compiles once, also over those that are too slow to try here."""
    for solver, number in ((LBFGS(1, 5), 2), (StochasticNaturalGradient(), 3), (exact(0.1, plateau=Plateau()), 5)):
        leaves = jax.tree.leaves(solver)
        assert len(leaves) == number
        assert all(isinstance(leaf, jax.Array) and not leaf.weak_type for leaf in leaves)


@thorough
def test_one_step_of_all_clients_is_one_of_global_inference():
    """PVI, property 3.1: plain descent in natural parameters, one step, undamped, whoever has which rows."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(30, 1)), rng.integers(0, 2, 30).astype(float)
    solver = exact(0.2, 1, coordinates=NaturalCoordinates())
    algorithm = PVI(logistic_regression(1), solver=solver, damping=Fixed(1.0))

    def run(parts):
        clients = {str(i): Data((x[part], y[part]), np.ones(len(part)), np.asarray(len(part))) for i, part in parts}
        engine = LocalEngine(algorithm, clients)
        server = training.open_federation(algorithm, Synchronous(), list(clients), 0)
        server, history, _ = training.run(
            algorithm, engine, Synchronous(), server, [], training.Stopping(4, tolerance=0.0)
        )
        return server.posterior, [record["free_energy"] for record in history]

    pooled, pooled_energy = run([(0, np.arange(30))])
    split, split_energy = run(enumerate(np.split(np.arange(30), [8, 19])))
    for mine, theirs in zip(jax.tree.leaves(split), jax.tree.leaves(pooled), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)
    np.testing.assert_allclose(split_energy, pooled_energy, rtol=1e-9)
    assert pooled_energy[-1] > pooled_energy[0]


def test_unsuitable_parts_are_refused():
    nll, kl = NegativeLogLikelihood(), KL()
    share = BernoulliShare(Beta.from_concentrations(np.array(1.0), np.array(1.0)))
    isotropic = problem(IsotropicGaussian).model
    refused = [
        (exact(0.1), share, kl, "Gaussian family"),
        (LBFGS(), share, kl, "Gaussian family"),
        (StochasticNaturalGradient(), isotropic, kl, "full Gaussian or a diagonal"),
        (StochasticNaturalGradient(), logistic_regression(2), Reverse(), "divergence KL"),
    ]
    for solver, model, divergence, message in refused:
        with pytest.raises(UnsuitableError, match=message):
            solver.check(model, nll, divergence)


def test_bad_options_are_refused():
    with pytest.raises(CavityError, match="batch_size must be at least 1"):
        Gradient(optax.adam, 0.1, batch_size=0)
    with pytest.raises((CavityError, TypeCheckError), match="optimiser"):
        Gradient(optax.adam(0.1), 0.1)
