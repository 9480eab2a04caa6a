"""An improper prior: nothing is refused wrongly, no NaN is shown as a number, and errors say what is missing."""

import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity.aggregation import Adaptive, Fixed, Stale
from cavity.core.progress import Progress
from cavity.distributions import DiagonalGaussian, FullGaussian, Gamma
from cavity.divergences import Renyi, ReverseKL
from cavity.errors import CavityError, ImproperError, UnsuitableError
from cavity.losses import NegativeLogLikelihood
from cavity.models import PoissonRate, linear_regression, logistic_regression, normal_location
from cavity.schedules import Sequential
from cavity.solvers import MomentMatching, NaturalGradient, PowerEP
from tests import scenarios
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

X, Y = scenarios.linear(num_rows=12)
FLAT = FullGaussian(np.zeros(4), np.zeros((4, 4)))
PARTS = scenarios.clients(X, Y, np.split(np.arange(12), [5]))


def model(prior=FLAT):
    return linear_regression(3, noise_sd=0.7, prior=prior)


def assert_least_squares(fit):
    """With a flat prior the posterior is the likelihood."""
    h, precision = scenarios.linear_posterior(X, Y, 0.7, np.inf)
    np.testing.assert_allclose(fit.posterior.precision, precision, rtol=1e-12)
    np.testing.assert_allclose(fit.posterior.precision_mean, h, rtol=1e-12)


@pytest.mark.parametrize("damping", [Adaptive(), Fixed(1.0), Stale(Adaptive())])
@pytest.mark.parametrize("schedule", [None, Sequential()], ids=["synchronous", "sequential"])
def test_a_flat_prior_ends_at_the_likelihood(schedule, damping):
    fit = cavity.run(cavity.PVI(model(), damping=damping), PARTS, schedule=schedule)
    assert_least_squares(fit)
    assert fit.converged
    assert all(record["refused"] == 0 and record["exponent"] == 1.0 for record in fit.history)
    assert fit.history[0]["gap"] == np.inf
    assert fit.history[-1]["gap"] < 1e-20
    assert all(np.isnan(record["free_energy"]) for record in fit.history)


def test_blocks_do_the_same():
    one = cavity.run(cavity.PVI(model(), damping=Fixed(0.5)), PARTS, rounds=6, tolerance=0.0)
    block = cavity.run(cavity.PVI(model(), damping=Fixed(0.5)), PARTS, rounds=6, tolerance=0.0, rounds_per_block=6)
    np.testing.assert_allclose(block.posterior.precision, one.posterior.precision, rtol=1e-12)
    for left, right in zip(one.history, block.history, strict=True):
        assert (left["exponent"], left["refused"]) == (right["exponent"], right["refused"])
        np.testing.assert_allclose(left["gap"], right["gap"], rtol=1e-9)
        assert np.isnan(right["free_energy"])
    assert block.history[0]["gap"] == np.inf


@pytest.mark.parametrize("schedule", [None, Sequential()], ids=["synchronous", "sequential"])
def test_clients_that_do_not_determine_all_coefficients_are_accepted(schedule):
    """Two rows do not determine four coefficients: the product is improper until others have replied."""
    parts = scenarios.clients(X, Y, np.split(np.arange(12), [2, 4]))
    fit = cavity.run(cavity.PVI(model()), parts, schedule=schedule)
    assert_least_squares(fit)
    assert all(record["refused"] == 0 for record in fit.history)


def test_a_proper_posterior_never_becomes_improper():
    """The rule for what was improper before is for that alone."""
    from cavity import ledger

    algorithm = cavity.PVI(model(FLAT * FullGaussian.from_moments(jnp.zeros(4), jnp.eye(4))))
    server = ledger.open_ledger(algorithm, ["leeds"])
    server, (message,) = ledger.dispatch(algorithm, server, ["leeds"])
    report = cavity.core.messages.Report(gap=1.0, free_energy=0.0, steps=0, converged=True)
    worse = FullGaussian(np.zeros(4), -4.0 * np.eye(4))
    reply = cavity.core.messages.Reply(
        "leeds", message.version, message.sequence, cavity.core.messages.ClientUpdate(worse, report)
    )
    server, outcome = ledger.receive(algorithm, server, [reply])
    assert outcome.accepted == {"leeds": 0.125}
    assert ledger.is_proper(server.posterior)


@thorough
def test_summary_and_weights_of_draws():
    fit = cavity.run(cavity.PVI(model()), PARTS)
    text = str(fit.summary())
    assert "nan" not in text
    assert "inf" not in text
    assert "approximation: exact for practical purposes" in text
    with pytest.raises(CavityError, match="no evidence under an improper prior"):
        fit.log_evidence
    with pytest.raises(CavityError, match="no evidence under an improper prior"):
        fit.importance_weights().log_evidence
    once = cavity.run(cavity.PVI(model()), PARTS, rounds=1)
    assert "not converged: the gap is not known" in str(once.summary())
    assert "gap" not in str(Progress(2, 9, 0, 2, once.history[-1]["gap"], 1.0, 1.0))


@thorough
def test_weights_of_draws_say_what_the_family_lacks():
    """Up to their constant they are those under a prior so wide that it does not matter."""
    wide = DiagonalGaussian.from_moments(jnp.zeros(4), jnp.full(4, 1e10))
    effective = []
    for prior in (wide, wide**0.0):
        fit = cavity.run(cavity.PVI(model(prior), solver=MomentMatching()), PARTS, tolerance=1e-14)
        effective.append(fit.importance_weights().effective_draws)
    np.testing.assert_allclose(*effective, rtol=1e-4)


def test_a_posterior_that_stays_improper_has_no_summary():
    fit = cavity.run(cavity.PVI(model()), {"leeds": (X[:2], Y[:2])}, rounds=1)
    with pytest.raises(ImproperError, match="do not determine every parameter"):
        fit.summary()


def test_a_client_leaves_and_another_joins():
    fit = cavity.run(cavity.PVI(model()), PARTS)
    left = fit.withdraw(next(iter(PARTS)))
    rest = next(reversed(PARTS.values()))
    h, precision = scenarios.linear_posterior(*rest, 0.7, np.inf)
    np.testing.assert_allclose(left.posterior.precision, precision, rtol=1e-9)
    np.testing.assert_allclose(left.posterior.precision_mean, h, rtol=1e-9)


def test_other_families_too():
    """A rate of counts under a flat prior: theta^9 exp(-3 theta)."""
    prior = Gamma(jnp.asarray(1.0), jnp.asarray(1.0)) ** 0.0
    fit = cavity.run(cavity.PVI(PoissonRate(prior)), {"a": np.array([2.0, 3.0]), "b": np.array([4.0])})
    assert fit.converged
    assert all(np.isnan(record["free_energy"]) for record in fit.history)
    np.testing.assert_allclose(fit.posterior.mean, 10 / 3, rtol=1e-12)


@pytest.mark.parametrize("solver", [NaturalGradient(), PowerEP()], ids=["natural gradient", "power EP"])
def test_a_solver_that_needs_a_start_says_so(solver):
    prior = FullGaussian(np.zeros(3), np.zeros((3, 3)))
    with pytest.raises(UnsuitableError, match=f"the prior is improper, and {type(solver).__name__} starts from it"):
        cavity.PVI(logistic_regression(2, prior=prior), solver=solver)


def test_divergences_that_need_a_proper_prior_say_so():
    location = normal_location(2, prior=FullGaussian(np.zeros(2), np.zeros((2, 2))))
    with pytest.raises(UnsuitableError, match="the server needs a proper prior"):
        cavity.FedGVI(location, NegativeLogLikelihood(), server_divergence=Renyi(0.5))
    with pytest.raises(UnsuitableError, match="improper"):
        cavity.FedGVI(location, NegativeLogLikelihood(), ReverseKL())
