"""Parts from outside Cavity: each is a small class in this file, and nothing in the package changes.

Every one of them runs, resumes bit for bit from a directory, and survives the faults of a network.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity import ledger
from cavity.aggregation import Fixed
from cavity.aggregation.entries import EntryServer
from cavity.core import (
    Algorithm,
    ClientPart,
    Damping,
    Data,
    Declaration,
    Divergence,
    Entries,
    Likelihood,
    Model,
    Plan,
    Problem,
    Schedule,
    ServerPart,
    Solver,
)
from cavity.core.messages import ClientUpdate, Report
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.distributions.natural import product
from cavity.divergences import KL
from cavity.io import serialization
from cavity.ledger import client as client_ledger
from cavity.losses import NegativeLogLikelihood
from cavity.models.glm.regression import Regression, gaussian_prior
from cavity.solvers import Conjugate
from tests import scenarios
from tests.contracts.faults import check_survives_faults, distance
from tests.contracts.solver import natural_descent
from tests.fit.test_resume import Killed, assert_same_run, kill_in_round
from tests.marks import thorough

VARIANTS = pytest.mark.parametrize("held_by_clients", [False, True], ids=["server-held", "client-held"])


def check_runs_and_resumes(directory, algorithm, clients, *, schedule=None, rounds=8, **options):
    """The uninterrupted run, after a killed one was found to be the same."""
    options = {"rounds": rounds, "tolerance": 0.0, **options}
    whole = cavity.run(algorithm, clients, schedule=schedule, **options)
    with pytest.raises(Killed):
        cavity.run(
            algorithm,
            clients,
            schedule=schedule,
            directory=directory,
            checkpoint_seconds=0.0,
            observers=[kill_in_round(4)],
            **options,
        )
    again = {"rounds": rounds, "tolerance": 0.0}
    assert_same_run(cavity.resume(directory, clients, algorithm=algorithm, schedule=schedule, **again), whole)
    return whole


def linear_clients(num_clients=3, num_features=1):
    x, y = scenarios.linear(24, num_features)
    return scenarios.clients(x, y, scenarios.homogeneous(24, num_clients))


class ScaledKL(Divergence):
    """w KL(q : p): a posterior that trusts the data 1/w as much."""

    weight: float

    def __call__(self, q, p):
        return self.weight * q.kl(p)

    def objective(self, q, p):
        return -self.weight * (q.entropy + q.cross(p))


def tempered():
    model = cavity.models.linear_regression(
        1, noise_sd=2.0, prior_scale=0.5, covariance=DiagonalGaussian, intercept=False
    )
    solver = natural_descent(4.0, 100)
    return cavity.FedGVI(model, NegativeLogLikelihood(), ScaledKL(2.0), solver=solver, damping=Fixed(1.0))


def test_a_divergence(tmp_path):
    algorithm, clients = tempered(), linear_clients()
    fit = check_runs_and_resumes(tmp_path, algorithm, clients, rounds=20)
    x, y = (np.concatenate(arrays) for arrays in zip(*clients.values(), strict=True))
    tempered_precision = float(algorithm.prior.precision[0]) + np.sum(x**2) / (2.0 * 2.0**2)
    assert fit.posterior.precision[0] == pytest.approx(tempered_precision, rel=1e-6)
    assert fit.posterior.mean[0] == pytest.approx(x[:, 0] @ y / (2.0 * 2.0**2) / tempered_precision, rel=1e-6)


@thorough
@VARIANTS
def test_a_divergence_survives_faults(held_by_clients):
    check_survives_faults(tempered(), linear_clients(), 15, held_by_clients=held_by_clients, tolerance=1e-7, rest=1e-9)


class LogisticNoise(Likelihood):
    """y - f has a logistic distribution: heavier tails than a Gaussian's, and still log-concave."""

    scale: float

    @property
    def num_predictors(self):
        return 1

    def log_prob(self, f, y):
        z = (y - f[..., 0]) / self.scale
        return -z - 2.0 * jax.nn.softplus(-z) - jnp.log(self.scale)

    def mean(self, f):
        return f[..., 0]

    def check(self, y):
        return None


def heavy_tailed():
    model = Regression(prior=gaussian_prior(2, 10.0), likelihood=LogisticNoise(0.4), features=("dose",))
    return cavity.PVI(model)


@thorough
def test_a_likelihood(tmp_path):
    clients = linear_clients()
    fit = check_runs_and_resumes(tmp_path, heavy_tailed(), clients)
    x, y = (np.concatenate(arrays) for arrays in zip(*clients.values(), strict=True))
    pooled = cavity.run(heavy_tailed(), {"all": (x, y)}, tolerance=1e-12)
    assert cavity.kl(fit.posterior, pooled.posterior) < 1e-8
    assert fit.summary()["dose"].sd > 0
    assert fit.predict([[1.0]]).mean.shape == (1,)


@thorough
@VARIANTS
def test_a_likelihood_survives_faults(held_by_clients):
    check_survives_faults(heavy_tailed(), linear_clients(), 6, held_by_clients=held_by_clients, rest=1e-10)


class HalfAtRandom(Schedule):
    """Each turn some half of the idle clients; the turns are counted."""

    def init(self, names):
        return 0

    def next(self, rng, state, gaps, idle):
        size = (len(idle) + 1) // 2
        chosen = rng.choice(len(idle), size, replace=False) if idle else []
        return Plan(tuple(idle[i] for i in chosen), size), state + 1

    def visits_per_round(self, num_clients):
        return num_clients


def conjugate():
    return cavity.PVI(cavity.models.linear_regression(1, noise_sd=0.7), damping=Fixed(0.9))


def test_a_schedule(tmp_path):
    clients = linear_clients(4)
    fit = check_runs_and_resumes(tmp_path, conjugate(), clients, schedule=HalfAtRandom())
    assert fit.server.schedule == 16  # two turns make a round
    other_order = cavity.run(conjugate(), clients, tolerance=1e-20)
    fit = cavity.run(conjugate(), clients, schedule=HalfAtRandom(), tolerance=1e-20)
    assert distance(fit.posterior, other_order.posterior) < 1e-8


@thorough
@VARIANTS
def test_a_schedule_survives_faults(held_by_clients):
    check_survives_faults(conjugate(), linear_clients(4), 10, held_by_clients=held_by_clients, schedule=HalfAtRandom())


class Offset(eqx.Module):
    """What a client of the next class keeps to itself: its own level, and how often it has moved it."""

    level: Any
    moves: Any


class Product(Entries):
    """Factors that are multiplied."""

    prior: FullGaussian

    def initial(self):
        return self.prior**0.0

    def merge(self, entry, delta, exponent):
        return entry * delta**exponent

    def rebuild(self, prior, entries):
        return prior * product(entries)


class FromPrior(Algorithm):
    """A method that starts at the model's prior, and whose clients send members of its family."""

    model: Model
    solver: Solver

    @property
    def prior(self):
        return self.model.prior

    @property
    def declaration(self):
        return Declaration(self.prior)


class PrivateOffset(FromPrior):
    """Every client has a level b_m of its own, y = b_m + x . theta, which it fits and keeps."""

    damping: Damping

    @property
    def client(self):
        return OffsetClient(self.solver, self.model)

    @property
    def server(self):
        return EntryServer(Product(self.prior), self.damping)


class OffsetClient(ClientPart):
    solver: Solver
    model: Model

    def initial_local(self, data):
        return Offset(np.zeros(()), np.zeros((), int))

    def problem(self, inputs, local, data):
        x, y = data.batch
        shifted = Data((x, y - local.level), data.weight, data.num_rows)
        cavity = inputs.posterior / inputs.entry
        return Problem(self.model, NegativeLogLikelihood(), KL(), cavity, inputs.posterior, shifted)

    def update(self, inputs, local, problem, solution):
        x, left = problem.data.batch
        weight = problem.data.weight / jnp.sum(problem.data.weight)
        moved = Offset(local.level + weight @ (left - x @ solution.tilted.mean), local.moves + 1)
        report = Report(solution.tilted.kl(inputs.posterior), jnp.nan, solution.steps, solution.converged)
        return ClientUpdate(solution.tilted / inputs.posterior, report), moved


def with_levels():
    model = cavity.models.linear_regression(1, noise_sd=0.7, intercept=False)
    clients = {name: (x, y + 3.0 * i) for i, (name, (x, y)) in enumerate(linear_clients().items())}
    return PrivateOffset(model, Conjugate(), Fixed(1.0)), clients


@VARIANTS
def test_an_algorithm_whose_clients_keep_something(tmp_path, held_by_clients):
    algorithm, clients = with_levels()
    factors = "clients" if held_by_clients else "server"
    fit = check_runs_and_resumes(tmp_path, algorithm, clients, factors=factors, rounds=60)
    for name, (x, y) in clients.items():
        state = fit.client_states[name]
        assert state.pending.local.moves == 60  # as often as it was asked
        assert state.local.moves == 59  # the fate of the last answer is not known yet
        level = float(np.mean(y - x @ np.asarray(fit.posterior.mean)))
        assert state.pending.local.level == pytest.approx(level, abs=1e-9)


@VARIANTS
@thorough
def test_an_algorithm_whose_clients_keep_something_survives_faults(held_by_clients):
    algorithm, clients = with_levels()
    seen = check_survives_faults(algorithm, clients, 15, held_by_clients=held_by_clients, rest=1e-10)
    assert seen["message overtaken"] > 5


def settle_early(algorithm, state, message):
    """Latents are taken over with the answer, whatever became of it."""
    return state if state.pending is None else replace(state, local=state.pending.local, pending=None)


def settle_never(algorithm, state, message):
    return replace(state, pending=None)


def never_stale(state, message):
    return False


@pytest.mark.parametrize(
    ("function", "broken"), [("settle", settle_early), ("settle", settle_never), ("is_stale", never_stale)]
)
def test_latents_that_do_not_fit_the_ledger_are_caught(monkeypatch, function, broken):
    monkeypatch.setattr(client_ledger, function, broken)
    algorithm, clients = with_levels()
    with pytest.raises(AssertionError, match="latents that do not belong"):
        check_survives_faults(algorithm, clients, 40)


def test_what_a_client_keeps_is_in_no_message():
    algorithm, clients = with_levels()
    fit = cavity.run(algorithm, clients, rounds=2, tolerance=0.0)
    assert Offset in serialization.types_in(dict(fit.client_states))
    assert Offset not in serialization.types_in(fit.server)


class Pool(FromPrior):
    """The geometric mean of the clients' own posteriors: a method without entries."""

    @property
    def client(self):
        return AloneClient(self.solver, self.model)

    @property
    def server(self):
        return MeanServer()


class AloneClient(ClientPart):
    solver: Solver
    model: Model

    def problem(self, inputs, local, data):
        return Problem(self.model, NegativeLogLikelihood(), KL(), inputs.shared, inputs.posterior, data)

    def update(self, inputs, local, problem, solution):
        report = Report(solution.tilted.kl(inputs.posterior), jnp.nan, solution.steps, solution.converged)
        return ClientUpdate(solution.tilted / inputs.posterior, report), local


class MeanServer(ServerPart):
    entries: None = eqx.field(default=None, init=False, static=True)

    def initial_state(self, num_clients):
        return None

    def shared(self, server):
        return server.prior

    def absorb(self, server, replies):
        posterior = server.posterior
        for reply in replies:
            posterior = posterior * reply.update.delta ** (1.0 / len(server.clients))
        return ledger.Change(posterior, server.entries, None, {reply.client: 1.0 for reply in replies})


def pool():
    return Pool(cavity.models.linear_regression(1, noise_sd=0.7), Conjugate())


def test_an_algorithm_without_entries(tmp_path):
    clients = linear_clients()
    fit = check_runs_and_resumes(tmp_path, pool(), clients)
    alone = [cavity.run(conjugate(), {name: clients[name]}, tolerance=1e-20).posterior for name in clients]
    assert distance(fit.posterior, product(alone) ** (1 / 3)) < 1e-9


def test_an_algorithm_without_entries_survives_faults():
    seen = check_survives_faults(pool(), linear_clients(), 20)
    assert seen["reply refused"] > 20


def accept_repeats(server, reply):
    return None if reply.client in server.clients else "not a member"


def test_without_entries_repeats_are_caught_too(monkeypatch):
    monkeypatch.setattr(ledger.server, "reason_to_refuse", accept_repeats)
    with pytest.raises(AssertionError, match="answers no outstanding message"):
        check_survives_faults(pool(), linear_clients(), 20)


def test_without_entries_an_unexplained_change_is_caught_too(monkeypatch):
    """A server that applies what it has abandoned: no reply is accepted, and yet the posterior moves."""

    def drift(server, names, abandon=ledger.abandon):
        return abandon(replace(server, posterior=server.posterior**1.01), names)

    monkeypatch.setattr(ledger, "abandon", drift)
    with pytest.raises(AssertionError, match="from what was accepted"):
        check_survives_faults(pool(), linear_clients(), 20)


class Pseudo(eqx.Module):
    """A Gaussian times pseudo-observations N(value; anchor . theta, 1 / weight), as many as one likes."""

    base: FullGaussian
    anchors: Any
    shift: Any
    weight: Any

    @property
    def gaussian(self):
        precision = self.anchors.T @ (self.weight[:, None] * self.anchors)
        return self.base * FullGaussian(self.anchors.T @ self.shift, precision)

    @property
    def is_proper(self):
        return self.gaussian.is_proper


class Union(Algorithm):
    """The posterior is the union of all clients' pseudo-observations, one per distinct x that a client has."""

    model: Model
    solver: Solver
    damping: Damping

    @property
    def prior(self):
        dimension = self.model.prior.dimension
        return Pseudo(self.model.prior, jnp.zeros((0, dimension)), jnp.zeros(0), jnp.zeros(0))

    @property
    def client(self):
        return UnionClient(self.solver, self.model, self.server.entries)

    @property
    def server(self):
        return EntryServer(UnionEntries(self.prior, self.model.prior**0.0), self.damping, in_blocks=False)

    @property
    def declaration(self):
        return Declaration(self.server.entries.initial())


class UnionClient(ClientPart):
    solver: Solver
    model: Model
    entries: Entries

    def initial_local(self, data):
        (design,), _ = self.model.designs(jax.tree.map(jnp.asarray, data.batch))
        return np.unique(np.asarray(design), axis=0)

    def problem(self, inputs, local, data):
        posterior = inputs.posterior.gaussian
        return Problem(self.model, NegativeLogLikelihood(), KL(), posterior / inputs.entry.gaussian, posterior, data)

    def update(self, inputs, local, problem, solution):
        factor = solution.tilted / problem.cavity
        inverse = jnp.linalg.pinv(local)
        refit = Pseudo(
            inputs.entry.base,
            local,
            inverse.T @ factor.precision_mean,
            jnp.diagonal(inverse.T @ factor.precision @ inverse),
        )
        report = Report(solution.tilted.kl(problem.start), jnp.nan, solution.steps, solution.converged)
        return ClientUpdate(
            refit if inputs.entry.weight.size == 0 else self.entries.merge(refit, inputs.entry, -1.0), report
        ), local


class UnionEntries(Entries):
    prior: Pseudo
    unit: FullGaussian

    def initial(self):
        return eqx.tree_at(lambda row: row.base, self.prior, self.unit)

    def initial_posterior(self, prior, posterior, entries):
        return self.rebuild(prior, list(entries.values()))

    def merge(self, row, delta, exponent):
        if row.weight.size == 0:
            row = Pseudo(row.base, delta.anchors, 0.0 * delta.shift, 0.0 * delta.weight)
        return Pseudo(row.base, row.anchors, row.shift + exponent * delta.shift, row.weight + exponent * delta.weight)

    def rebuild(self, prior, rows):
        parts = [prior, *rows]
        stacked = (np.concatenate([getattr(part, name) for part in parts]) for name in ("anchors", "shift", "weight"))
        return Pseudo(prior.base, *stacked)


def grouped():
    """Three clients, with one, two and two distinct rows of x."""
    rng = np.random.default_rng(3)
    clients = {}
    for name, num_groups in {"leeds": 1, "york": 2, "hull": 2}.items():
        x = np.repeat(rng.normal(size=(num_groups, 2)), 4, axis=0)
        clients[name] = (x, x @ [1.0, -2.0] + rng.normal(size=len(x)))
    return Union(cavity.models.linear_regression(2, noise_sd=1.0), Conjugate(), Fixed(0.9)), clients


@thorough
def test_entries_of_different_sizes(tmp_path):
    algorithm, clients = grouped()
    fit = check_runs_and_resumes(tmp_path, algorithm, clients, rounds=12)
    assert {name: len(row.weight) for name, row in fit.server.entries.items()} == {"leeds": 1, "york": 2, "hull": 2}
    assert len(fit.posterior.weight) == 5
    x, y = (np.concatenate(arrays) for arrays in zip(*clients.values(), strict=True))
    pooled = cavity.run(cavity.PVI(algorithm.model), {"all": (x, y)})
    assert distance(fit.posterior.gaussian, pooled.posterior) < 1e-8
    without = cavity.run(cavity.PVI(algorithm.model), {name: clients[name] for name in ("leeds", "york")})
    assert distance(fit.withdraw("hull", tolerance=1e-20).posterior.gaussian, without.posterior) < 1e-8


@pytest.mark.slow
def test_entries_of_different_sizes_survive_faults():
    algorithm, clients = grouped()
    check_survives_faults(algorithm, clients, 15, canonical=lambda posterior: posterior.gaussian)
