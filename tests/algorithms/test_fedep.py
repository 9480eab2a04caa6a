"""FedEP, FedSEP, FedPA and FedAvg: against each other, against independent definitions, and after faults."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cavity
from cavity import PVI, ClientSource, FedAvg, FedEP, FedPA, FedSEP, run
from cavity.aggregation import Fixed
from cavity.algorithms.fedep import REMAINDER
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.errors import CavityError, ProtocolError
from cavity.models import linear_regression, logistic_regression
from cavity.schedules import SampledCount
from cavity.solvers import (
    SGMCMC,
    Conjugate,
    DiagonalFisher,
    NaturalVI,
    Point,
    PowerEP,
    SampleMoments,
    ScaledIdentity,
    SGDIterates,
)
from tests import scenarios
from tests.contracts.faults import check_survives_faults
from tests.marks import thorough

NAMES = ("leeds", "york", "hull")
C = 0.4  # precision per row
DESCENT = SGMCMC(SGDIterates(0.1), ScaledIdentity(C), num_epochs=30, burn_in=29, batch_size=None)
TO_A_POINT = SGMCMC(SGDIterates(0.1), Point(), num_epochs=30, burn_in=29, batch_size=None)
SPREADS = [ScaledIdentity(C), SampleMoments(1e-2, C), DiagonalFisher(20), NaturalVI(3, 3, 0.5, C)]


def linear_clients(sizes=(8, 12, 16), seed=5):
    x, y = scenarios.linear(sum(sizes), 2, 1.0, seed)
    ends = np.cumsum(sizes)
    return {name: (x[end - n : end], y[end - n : end]) for name, n, end in zip(NAMES, sizes, ends, strict=True)}


def linear_model(family=DiagonalGaussian):
    return linear_regression(2, noise_sd=1.0, covariance=family)


def logistic_clients():
    problem = scenarios.logistic(90, 2)
    return scenarios.clients(problem.x, problem.y, scenarios.homogeneous(90, 3))


def assert_same(a, b, rtol=1e-10):
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(left, right, rtol=rtol, atol=rtol)


def assert_product(fit):
    """The invariant: prior times the factors in the ledger."""
    assert_same(
        fit.posterior, fit.algorithm.server.entries.rebuild(fit.server.prior, list(fit.server.entries.values()))
    )


@thorough
def test_with_exact_moments_it_is_ep():
    """By quadrature, which is its default for a regression."""
    model = logistic_regression(2, covariance=DiagonalGaussian)
    fit = run(FedEP(model), logistic_clients())
    assert isinstance(fit.algorithm.solver, PowerEP)
    assert fit.converged
    assert_same(fit.posterior, run(PVI(model, solver=PowerEP()), logistic_clients()).posterior, 1e-6)
    assert_product(fit)


@thorough
def test_plain_descent_on_deltas_is_damping():
    model, clients = linear_model(), linear_clients()
    damped = run(FedEP(model, solver=DESCENT, step_size=0.3), clients, rounds=4, tolerance=0.0)
    descended = run(FedEP(model, solver=DESCENT, optimiser=optax.sgd, step_size=0.3), clients, rounds=4, tolerance=0.0)
    assert_same(damped.posterior, descended.posterior)


@thorough
@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("optimiser", [optax.adam, optax.adagrad])
def test_any_optimiser_per_entry_keeps_the_product(optimiser, block):
    """Also for clients who come and go; and the same in a block of rounds."""
    algorithm = FedEP(linear_model(), solver=DESCENT, optimiser=optimiser, step_size=0.1)
    fit = run(algorithm, linear_clients(), rounds=3, tolerance=0.0, rounds_per_block=block)
    assert_product(fit)
    assert_product(fit.withdraw("york", rounds=2, tolerance=0.0))


@thorough
def test_the_papers_two_optimisers():
    """The server's on the mean of the deltas, the client's on its own; the remainder is an entry of the server."""
    model, clients = linear_model(), linear_clients()
    algorithm = FedEP(
        model,
        solver=DESCENT,
        optimiser=optax.sgd,
        step_size=0.5,
        server_optimiser=optax.sgd,
        server_step_size=0.5,
    )
    fit = run(algorithm, clients, rounds=1, tolerance=0.0)
    assert_product(fit)
    assert REMAINDER in fit.server.entries
    alone = run(FedEP(model, solver=DESCENT, step_size=0.5), clients, rounds=1, tolerance=0.0)
    deltas = [row.factor**2.0 for row in alone.server.entries.values()]  # the first factors, undamped
    mean = jax.tree.map(lambda *leaves: sum(leaves) / 3, *deltas)
    assert_same(fit.posterior, ledger_prior(fit) * mean**0.5)
    for name in NAMES:
        assert_same(fit.server.entries[name].factor, alone.server.entries[name].factor)
    assert_product(run(algorithm, clients, rounds=4, tolerance=0.0))


def ledger_prior(fit):
    return fit.server.prior


@pytest.mark.parametrize("spread", SPREADS, ids=lambda spread: type(spread).__name__)
@thorough
def test_every_spread_finds_the_mode(spread):
    """Where no client wants to move, the slopes of all rows and the prior add up to nothing, whatever the spreads are.

    The precision of L is then the prior's and the Fisher information of all rows.
    """
    model, clients = logistic_regression(2, covariance=DiagonalGaussian), logistic_clients()
    solver = SGMCMC(SGDIterates(0.2, momentum=0.5), spread, num_epochs=30, burn_in=25, batch_size=None)
    fit = run(FedEP(model, solver=solver, step_size=0.5), clients, rounds=60, tolerance=0.0)
    x, y = (np.concatenate(parts) for parts in zip(*clients.values(), strict=True))
    rows, prior = np.column_stack([np.ones(len(x)), x]), np.asarray(model.prior.precision)
    theta = np.zeros(3)
    for _ in range(30):
        p = 1 / (1 + np.exp(-rows @ theta))
        fisher = (rows * (p * (1 - p))[:, None]).T @ rows
        theta += np.linalg.solve(fisher + np.diag(prior), rows.T @ (y - p) - prior * theta)
    np.testing.assert_allclose(fit.posterior.mean, theta, atol=0.02 / np.sqrt(np.max(np.diag(fisher))))
    if isinstance(spread, DiagonalFisher):
        np.testing.assert_allclose(fit.posterior.precision, prior + np.diag(fisher), rtol=0.12)
    assert_product(fit)


@thorough
def test_fedsep_with_one_client_is_fedep():
    model, clients = linear_model(), {"leeds": linear_clients()["leeds"]}
    for optimiser in (optax.sgd, optax.adam):
        options = {"solver": DESCENT, "optimiser": optimiser, "step_size": 0.3}
        ep = run(FedEP(model, **options), clients, rounds=4, tolerance=0.0)
        sep = run(FedSEP(model, **options), clients, rounds=4, tolerance=0.0)
        assert_same(ep.posterior, sep.posterior)


def test_fedsep_removes_the_average_factor():
    """Two rounds by hand, with N given and with N estimated after the first round."""
    model, clients = linear_model(FullGaussian), linear_clients()
    sizes = {name: len(y) for name, (_, y) in clients.items()}
    total = sum(sizes.values())
    for num_rows in (total, None):
        fit = run(FedSEP(model, solver=Conjugate(), step_size=0.7, num_rows=num_rows), clients, rounds=2, tolerance=0.0)
        prior, q = model.prior, model.prior
        for number in range(2):
            changes = []
            for name, (x, y) in clients.items():
                h, precision = scenarios.linear_posterior(x, y, 1.0, np.inf)
                share = 1 / 3 if num_rows is None and number == 0 else sizes[name] / total
                cavity = q / (q / prior) ** share
                changes.append(cavity * FullGaussian(jnp.asarray(h), jnp.asarray(precision)) / q)
            mean = jax.tree.map(lambda *leaves: sum(leaves) / 3, *changes)
            q = q * mean**0.7
        assert_same(fit.posterior, q)


def test_fedpa_multiplies_the_clients_own_posteriors():
    """With all clients and undamped, in one round: exact for full Gaussians, and a fixed point."""
    model, clients = linear_model(FullGaussian), linear_clients()
    exact = run(PVI(model), clients).posterior
    for rounds in (1, 3):
        fit = run(FedPA(model, solver=Conjugate()), clients, rounds=rounds, tolerance=0.0)
        assert_same(fit.posterior, exact, 1e-9)


def test_fedpa_with_some_clients_estimates_the_sum_over_all():
    """Two of three, who speak for all 36 rows: from the prior, their own posteriors to the power 36 / their rows."""
    model, clients = linear_model(FullGaussian), linear_clients()
    algorithm = FedPA(model, solver=Conjugate(), num_rows=36)
    fit = run(algorithm, clients, schedule=SampledCount(2), rounds=1, tolerance=0.0)
    on_replies = list(fit.history[0]["gaps"])
    assert len(on_replies) == 2
    own = [scenarios.linear_posterior(*clients[name], 1.0, np.inf) for name in on_replies]
    power = 36 / sum(len(clients[name][1]) for name in on_replies)
    h, precision = (sum(parts) * power for parts in zip(*own, strict=True))
    assert_same(fit.posterior, model.prior * FullGaussian(jnp.asarray(h), jnp.asarray(precision)))


def test_fedpa_is_the_first_round_of_fedep_from_a_flat_start():
    clients = linear_clients()
    flat = linear_regression(2, noise_sd=1.0, covariance=DiagonalGaussian, prior_scale=1e8)  # as good as flat
    pa = run(FedPA(flat, solver=DESCENT), clients, rounds=1, tolerance=0.0)
    ep = run(FedEP(flat, solver=DESCENT), clients, rounds=1, tolerance=0.0)
    assert_same(pa.posterior, ep.posterior)


def test_fedavg_against_an_independent_average():
    """Thirty steps of descent on the mean square at each client, weighted by rows."""
    clients = linear_clients()
    fit = run(FedAvg(linear_model(), solver=TO_A_POINT), clients, rounds=3, tolerance=0.0)
    theta, total = np.zeros(3), 36
    for _ in range(3):
        found = np.zeros(3)
        for x, y in clients.values():
            rows, own = np.column_stack([np.ones(len(x)), x]), theta.copy()
            for _ in range(30):
                own -= 0.1 * rows.T @ (rows @ own - y) / len(y)
            found += len(y) / total * own
        theta = found
    np.testing.assert_allclose(fit.posterior.location, theta, rtol=1e-10)


def test_fedavg_is_the_point_mass_of_fedpa():
    """With factors that are multiples of the identity by rows, whatever the multiple: the same means, to rounding."""
    clients = linear_clients()
    avg = run(FedAvg(linear_model(), solver=TO_A_POINT), clients, rounds=3, tolerance=0.0)
    flat = linear_regression(2, noise_sd=1.0, covariance=DiagonalGaussian, prior_scale=1e8)
    pa = run(FedPA(flat, solver=DESCENT, num_rows=36), clients, rounds=3, tolerance=0.0)
    np.testing.assert_allclose(pa.posterior.mean, avg.posterior.location, rtol=1e-8)
    np.testing.assert_allclose(pa.posterior.precision, 36 * C, rtol=1e-8)


def test_fedadam():
    clients = linear_clients()
    algorithm = FedAvg(linear_model(), solver=TO_A_POINT, optimiser=optax.adam, step_size=0.05, start=jnp.ones(3))
    fit = run(algorithm, clients, rounds=1, tolerance=0.0)
    plain = run(FedAvg(linear_model(), solver=TO_A_POINT, start=jnp.ones(3)), clients, rounds=1, tolerance=0.0)
    step = plain.posterior.location - 1.0
    np.testing.assert_allclose(fit.posterior.location - 1.0, 0.05 * np.sign(step), rtol=1e-5)


@thorough
def test_burn_in_and_warm_start():
    """The product is kept and nothing counted twice: EP then converges to the posterior of the pooled rows."""
    model, clients = linear_model(FullGaussian), linear_clients()
    burnt = run(FedAvg(linear_model(), solver=TO_A_POINT), clients, rounds=2, tolerance=0.0)
    start = burnt.warm_start(FedEP(model, solver=Conjugate()), precision_per_row=C)
    assert_product(start)
    np.testing.assert_allclose(start.server.entries["york"].factor.precision, 12 * C * np.eye(3), rtol=1e-12)
    np.testing.assert_allclose(start.server.entries["york"].factor.mean, burnt.posterior.location, rtol=1e-10)
    exact = run(PVI(model), clients).posterior
    assert_same(start.refine(20).posterior, exact, 1e-9)
    for method in (FedSEP(model, solver=Conjugate(), step_size=0.9), FedPA(model, solver=Conjugate())):
        other = burnt.warm_start(method, precision_per_row=C)
        assert_same(other.posterior, start.posterior)
        assert other.refine(3).history


def test_where_all_rows_are_known_no_client_is_loaded_to_count_them():
    """There may be hundreds of thousands."""
    clients = linear_clients()
    burnt = run(FedAvg(linear_model(), solver=TO_A_POINT), clients, rounds=1, tolerance=0.0)

    class Unloadable(ClientSource):
        names = NAMES

        def load(self, names):
            raise AssertionError(names)

    streamed = replace(burnt, clients=Unloadable())
    known = streamed.warm_start(FedSEP(linear_model(), solver=DESCENT, num_rows=36))
    counted = burnt.warm_start(FedSEP(linear_model(), solver=DESCENT))
    assert_same(known.posterior, counted.posterior)
    np.testing.assert_allclose(known.posterior.precision, known.server.prior.precision + 36 * C, rtol=1e-12)


def test_an_impossible_warm_start():
    clients = linear_clients()
    burnt = run(FedAvg(linear_model(), solver=TO_A_POINT), clients, rounds=1, tolerance=0.0)
    with pytest.raises(CavityError, match="give `precision_per_row`"):
        burnt.warm_start(FedEP(linear_model(), solver=SGMCMC(SGDIterates(0.1), DiagonalFisher())))
    with pytest.raises(CavityError, match="from FedAvg to FedEP"):
        run(PVI(linear_model()), clients).warm_start(FedEP(linear_model()))


def test_some_clients_at_a_time():
    fit = run(
        FedSEP(linear_model(), solver=DESCENT, step_size=0.5, num_rows=36),
        linear_clients(),
        schedule=SampledCount(2),
        rounds=40,
        tolerance=0.0,
    )
    assert np.isfinite(fit.posterior.mean).all()
    np.testing.assert_allclose(fit.posterior.precision, fit.server.prior.precision + 36 * C, rtol=1e-3)


@thorough
def test_a_client_whose_loss_is_nan_is_refused_and_the_others_continue():
    def log_likelihood(theta, batch):
        return -0.5 * (batch - theta) ** 2 + jnp.log(jnp.where(batch > 90.0, -1.0, 1.0))

    model = cavity.models.function_model(log_likelihood, 0.0, covariance=DiagonalGaussian)
    clients = {"leeds": np.array([1.0, 1.2]), "york": np.array([99.0]), "hull": np.array([0.8])}
    solver = SGMCMC(SGDIterates(0.1), ScaledIdentity(1.0), num_epochs=20, burn_in=19)
    for algorithm in (FedEP(model, solver=solver), FedSEP(model, solver=solver), FedAvg(model)):
        fit = run(algorithm, clients, rounds=2, tolerance=0.0)
        for number, record in enumerate(fit.history, 1):
            assert record["round"] == number
            assert list(record["refusals"]) == ["york"]
            assert "NaN" in record["refusals"]["york"]
        assert 0.2 < float(fit.posterior.mean[0]) < 1.1
        assert fit.server.clients["hull"].settled.sequence


def test_a_client_whose_chain_diverges_is_refused():
    clients = linear_clients()
    clients["york"] = (1e4 * clients["york"][0], clients["york"][1])
    fit = run(FedEP(linear_model(), solver=DESCENT, damping=Fixed(0.5)), clients, rounds=2, tolerance=0.0)
    assert {name for record in fit.history for name in record["refusals"]} == {"york"}
    assert_product(fit)


@thorough
@pytest.mark.parametrize("held_by_clients", [False, True], ids=["server-held", "client-held"])
def test_no_rows_count_twice_after_faults(held_by_clients):
    """Lost, repeated and late replies, crashes and wiped disks: the invariant after each, and the undisturbed end."""
    algorithm = FedEP(linear_model(FullGaussian), solver=Conjugate(), step_size=0.9)
    check_survives_faults(algorithm, linear_clients(), 20, first_seed=40_000, held_by_clients=held_by_clients)


def test_saved_and_resumed(tmp_path):
    algorithm, clients = FedEP(linear_model(), solver=DESCENT, optimiser=optax.adam, step_size=0.1), linear_clients()
    whole = run(algorithm, clients, rounds=4, tolerance=0.0, rounds_per_block=1)
    run(algorithm, clients, rounds=2, tolerance=0.0, directory=tmp_path, rounds_per_block=1)
    resumed = cavity.resume(tmp_path, clients, algorithm=algorithm, rounds=4, tolerance=0.0, rounds_per_block=1)
    assert_same(resumed.posterior, whole.posterior, 1e-12)


@thorough
def test_prediction_with_a_point_and_with_draws():
    model, clients = logistic_regression(2, covariance=DiagonalGaussian), logistic_clients()
    fit = run(FedEP(model), clients)
    x = np.array([[3.0, -2.0]])
    f = np.array([1.0, *x[0]]) @ fit.posterior.mean
    np.testing.assert_allclose(fit.predict(x, point=True).mean, 1 / (1 + np.exp(-f)), rtol=1e-6)
    average = run(FedAvg(model, solver=TO_A_POINT), clients, rounds=2, tolerance=0.0)
    f = np.array([1.0, *x[0]]) @ average.posterior.location
    np.testing.assert_allclose(average.predict(x).mean, 1 / (1 + np.exp(-f)), rtol=1e-6)
    assert abs(float(fit.predict(x).mean[0]) - 0.5) < abs(float(fit.predict(x, point=True).mean[0]) - 0.5)


@thorough
def test_what_cannot_be():
    model, clients = linear_model(), linear_clients()
    with pytest.raises(ProtocolError, match="optimiser.s state"):
        run(FedEP(model, solver=DESCENT, optimiser=optax.adam), clients, factors="clients")
    with pytest.raises(CavityError, match="keeps no factor per client"):
        run(FedSEP(model, solver=DESCENT), clients, rounds=1).withdraw("york")
    with pytest.raises(CavityError, match="ends in a point"):
        FedAvg(model, solver=DESCENT)
    with pytest.raises(CavityError, match="rows of all clients must be positive"):
        FedSEP(model, num_rows=0)
