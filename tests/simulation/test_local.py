"""The local engine: clients that share a program do not share anything else, and few programs serve many runs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity import ledger
from cavity.aggregation import Fixed
from cavity.core import ClientPart, Solution, Solver
from cavity.core.client_data import Weighted, prepare_clients
from cavity.core.messages import ClientState
from cavity.core.random import name_number
from cavity.simulation import local
from cavity.simulation.drive import client_keys
from cavity.simulation.local import LocalEngine
from cavity.simulation.stacks import pad
from cavity.solvers import FixedPoint, NaturalGradient
from tests import scenarios
from tests.contracts.faults import World, distance
from tests.marks import thorough

CLOSE = 1e-12  # sums over more rows, zeros among them, may round differently


def unequal_clients(num_clients=4):
    """Of 3, 6, 9, ... rows."""
    num_rows = 3 * num_clients * (num_clients + 1) // 2
    problem = scenarios.logistic(num_rows, 1)
    edges = np.cumsum([3 * size for size in range(1, num_clients)])
    return scenarios.clients(problem.x, problem.y, np.split(np.arange(num_rows), edges))


class Noisy(Solver):
    """The cavity moved at random: what a stochastic solver does with its key."""

    def check(self, model, loss, divergence):
        pass

    def init(self, problem):
        return problem.cavity.precision_mean, 0

    def step(self, key, problem, state):
        value, steps = state
        return value + jax.random.normal(key, value.shape), steps + 1

    def done(self, state):
        return state[1] >= 3

    def result(self, problem, state):
        tilted = problem.cavity * type(problem.cavity)(state[0], jnp.zeros_like(problem.cavity.precision))
        return Solution(tilted, jnp.zeros(()), jnp.asarray(state[1]), jnp.asarray(True))


class Diary(cavity.PVI):
    """PVI whose clients write down, per row of their data, how often they were asked."""

    @property
    def client(self):
        return DiaryClient(self.solver, super().client)


class DiaryClient(ClientPart):
    solver: Solver
    inner: ClientPart

    def initial_local(self, data):
        return np.zeros(int(data.num_rows))

    def problem(self, inputs, local, data):
        return self.inner.problem(inputs, None, data)

    def update(self, inputs, local, problem, solution):
        return self.inner.update(inputs, None, problem, solution)[0], local + 1


ALGORITHMS = {
    "closed form": lambda: cavity.PVI(cavity.models.linear_regression(1, noise_sd=1.0)),
    "iterative": lambda: cavity.PVI(cavity.models.logistic_regression(1)),
    "random": lambda: cavity.PVI(cavity.models.linear_regression(1, noise_sd=1.0), solver=Noisy()),
    "with latents": lambda: Diary(cavity.models.linear_regression(1, noise_sd=1.0)),
}


def replies(algorithm, clients, names=None, seed=5):
    """What the clients answer to their first message, in an engine that has these clients' data."""
    data = prepare_clients(algorithm.model, clients)
    engine = LocalEngine(algorithm, data, seed=seed)
    server = ledger.open_ledger(algorithm, list(clients), seed)
    _, messages = ledger.dispatch(algorithm, server, names or list(clients))
    for message in messages:
        engine.submit(message)
    return {reply.client: reply.update for reply in engine.collect(len(messages))}, engine


@pytest.mark.parametrize("kind", ALGORITHMS)
@thorough
def test_a_reply_does_not_depend_on_the_others(kind):
    """Not on who else is there (padding), nor on who else works (the program), nor on the order."""
    algorithm, clients = ALGORITHMS[kind](), unequal_clients(4)
    together, _ = replies(algorithm, clients)
    backwards, _ = replies(algorithm, dict(reversed(clients.items())))
    for name in list(clients)[: 1 if kind == "iterative" else 3]:
        alone, _ = replies(algorithm, {name: clients[name]})  # nothing to pad to
        among, _ = replies(algorithm, clients, [name])
        assert together[name].report.gap > 1e-3
        for other in (alone[name], among[name], backwards[name]):
            assert distance(other.delta, together[name].delta) < CLOSE
            assert distance(other.report.gap, together[name].report.gap) < CLOSE


def test_randomness_differs_where_it_should():
    algorithm, clients = ALGORITHMS["random"](), unequal_clients(2)
    same_rows = {"a": clients["client-1"], "b": clients["client-1"]}
    updates, _ = replies(algorithm, same_rows)
    other_seed, _ = replies(algorithm, same_rows, seed=6)
    assert distance(updates["a"].delta, updates["b"].delta) > 1e-3
    assert distance(updates["a"].delta, other_seed["a"].delta) > 1e-3


def test_keys_depend_on_seed_version_attempt_and_client_only():
    def keys(seed, *headers):
        columns = (jnp.asarray(column, jnp.uint32) for column in zip(*headers, strict=True))
        return np.asarray(jax.random.key_data(client_keys(jnp.asarray(seed, jnp.uint32), *columns)))

    a, b = name_number("a"), name_number("b")
    headers = [(0, 1, a), (0, 2, a), (1, 1, a), (0, 1, b), (1, 0, a)]
    many = keys(0, *headers)
    assert len(np.unique(np.concatenate([many, keys(1, *headers)]), axis=0)) == 10
    assert (keys(0, headers[2]) == many[2]).all()


def test_padding_has_no_weight():
    data = prepare_clients(cavity.models.logistic_regression(1), {"a": Weighted(([[1.0], [2.0]], [0, 1]), [2.0, 3.0])})
    longer = pad(data["a"], 5)
    x, y = longer.batch
    assert longer.weight.tolist() == [2, 3, 0, 0, 0]
    assert x[:, 0].tolist() == [1, 2, 1, 1, 1]  # copies of a real row: no loss can overflow there
    assert y.tolist() == [0, 1, 0, 0, 0]
    assert longer.num_rows == 2


def test_weights_are_repeats():
    (x, y), model = unequal_clients(1)["client-0"], cavity.models.linear_regression(1, noise_sd=1.0)
    weighted = cavity.run(cavity.PVI(model), {"a": Weighted((x, y), [2.0, 1.0, 0.0])})
    repeated = cavity.run(cavity.PVI(model), {"a": (x[[0, 0, 1]], y[[0, 0, 1]])})
    assert distance(weighted.posterior, repeated.posterior) < 1e-9


@pytest.mark.parametrize("factors", ["server", "clients"])
def test_the_order_of_clients_does_not_matter(factors):
    clients = unequal_clients()
    algorithm = ALGORITHMS["closed form"]()
    options = {"rounds": 5, "tolerance": 0.0, "factors": factors}
    fit = cavity.run(algorithm, clients, **options)
    other = cavity.run(algorithm, dict(reversed(clients.items())), **options)
    assert distance(other.posterior, fit.posterior) < 1e-10
    if factors == "server":
        assert max(distance(other.server.entries[name], fit.server.entries[name]) for name in clients) < 1e-10


def test_the_engine_does_what_the_ledger_does():
    """The simulation of faults, undisturbed, runs no engine; they agree."""
    clients = unequal_clients(3)
    algorithm = ALGORITHMS["closed form"]()
    fit = cavity.run(algorithm, clients, rounds=5, tolerance=0.0)
    assert distance(fit.posterior, World(algorithm, clients).undisturbed(clients)) < 1e-9


def one_client_with_latents(held_by_clients):
    algorithm, clients = ALGORITHMS["with latents"](), unequal_clients(1)
    engine = LocalEngine(algorithm, prepare_clients(algorithm.model, clients), held_by_clients=held_by_clients)
    server = ledger.open_ledger(algorithm, list(clients), held_by_clients=held_by_clients)
    return algorithm, clients, engine, server


@pytest.mark.parametrize("held_by_clients", [False, True])
def test_a_repeated_message_gets_the_stored_reply(held_by_clients):
    algorithm, clients, engine, server = one_client_with_latents(held_by_clients)
    server, (message,) = ledger.dispatch(algorithm, server, list(clients))
    first = collect(engine, message)
    again = collect(engine, message)
    assert again[0].update is first[0].update
    server, _ = ledger.receive(algorithm, server, first + again)
    # one step was taken, and is committed when the server says that it was accepted
    assert engine.client_states()["client-0"].local.tolist() == [0, 0, 0]
    assert engine.client_states()["client-0"].pending.local.tolist() == [1, 1, 1]
    server, (message,) = ledger.dispatch(algorithm, server, list(clients))
    (reply,) = collect(engine, message)
    assert engine.client_states()["client-0"].local.tolist() == [1, 1, 1]
    assert reply.sequence == 2


def collect(engine, *messages):
    for message in messages:
        engine.submit(message)
    return engine.collect(len(messages))


@pytest.mark.parametrize("held_by_clients", [False, True])
def test_a_message_that_was_overtaken_changes_nothing(held_by_clients):
    algorithm, clients, engine, server = one_client_with_latents(held_by_clients)
    server, (late,) = ledger.dispatch(algorithm, server, list(clients))
    server, (message,) = ledger.dispatch(algorithm, server, list(clients))
    (reply,) = collect(engine, message)
    before = engine.client_states()["client-0"]
    assert collect(engine, late) == []
    assert engine.client_states()["client-0"] is before
    server, outcome = ledger.receive(algorithm, server, [reply])
    assert outcome.accepted
    server, (message,) = ledger.dispatch(algorithm, server, list(clients))
    collect(engine, message)
    assert engine.client_states()["client-0"].settled == reply.sequence


@pytest.fixture
def programs(monkeypatch):
    """The sizes of the groups of clients that ran as one program."""
    sizes = []
    run_clients = local.run_clients

    def counted(algorithm, work, mesh):
        sizes.append(len(work.keys))
        return run_clients(algorithm, work, mesh)

    monkeypatch.setattr(local, "run_clients", counted)
    return sizes


def test_a_synchronous_round_is_one_program(programs):
    cavity.run(ALGORITHMS["closed form"](), unequal_clients(), rounds=3, tolerance=0.0)
    assert programs == [4, 4, 4]


def test_a_sequential_round_is_one_program_per_client(programs):
    schedule = cavity.schedules.Sequential()
    cavity.run(ALGORITHMS["closed form"](), unequal_clients(), rounds=2, tolerance=0.0, schedule=schedule)
    assert programs == [1] * 8


def test_clients_of_different_shapes_are_grouped(programs):
    clients = unequal_clients(3)
    twin = {"twin": clients["client-1"]}
    updates, engine = replies(ALGORITHMS["with latents"](), clients | twin)
    assert sorted(programs) == [1, 1, 2]  # latents of 3, 6, 9 and 6 rows
    assert set(updates) == {*clients, "twin"}
    shapes = {name: state.pending.local.shape for name, state in engine.client_states().items()}
    assert shapes == {"client-0": (3,), "client-1": (6,), "client-2": (9,), "twin": (6,)}
    assert distance(updates["twin"].delta, updates["client-1"].delta) < CLOSE


def counting_model():
    """A model that counts how often it is traced."""
    traces = []

    def log_likelihood(parameters, batch):
        traces.append(None)
        return -jnp.logaddexp(batch - parameters["location"], parameters["location"] - batch)

    return cavity.models.function_model(log_likelihood, {"location": 0.0}), traces


CLIENTS = {"a": np.array([1.0, 2.0]), "b": np.array([0.5, 0.1, 3.0])}


@thorough
def test_one_compilation_per_shape():
    model, traces = counting_model()
    algorithm = cavity.PVI(model)
    prepare_clients(model, CLIENTS)  # here it is looked at once whether its rows depend on each other
    traces.clear()
    cavity.run(algorithm, CLIENTS, rounds=3, tolerance=0.0)
    once = len(traces)
    assert once > 0
    cavity.run(algorithm, CLIENTS, rounds=5, tolerance=0.0, seed=3)
    cavity.run(cavity.PVI(model), {name: 2 * data for name, data in CLIENTS.items()}, rounds=1)
    cavity.run(algorithm, CLIENTS, rounds=2, tolerance=0.0, factors="clients")
    assert len(traces) == once
    cavity.run(algorithm, CLIENTS | {"c": np.zeros(2)}, rounds=3, tolerance=0.0)  # three clients: another shape
    assert len(traces) == 2 * once


@thorough
@pytest.mark.parametrize(
    "sweep",
    [
        [{"damping": Fixed(exponent)} for exponent in (0.3, 0.5, 1.0)],
        [{"solver": NaturalGradient(tolerance=tolerance)} for tolerance in (1e-2, 1e-6, 1e-10)],
        [{"solver": FixedPoint(size)} for size in (1.0, 0.5)],
    ],
    ids=["damping", "tolerance", "step size"],
)
def test_a_sweep_does_not_compile_again(sweep):
    """A number is an argument of the program, not a part of it, also where a user writes it as a float."""
    model, traces = counting_model()
    counts, fits = [], []
    for options in sweep:
        fits.append(cavity.run(cavity.PVI(model, **options), CLIENTS, rounds=3, tolerance=0.0))
        counts.append(len(traces))
    assert counts[0] > 0
    assert counts == [counts[0]] * len(sweep)
    assert distance(fits[0].posterior, fits[-1].posterior) > 0  # and it is not ignored


def test_a_sweep_over_the_prior_does_not_compile_again():
    model, traces = counting_model()
    for scale in (1.0, 2.0):
        other = type(model)(log_likelihood=model.log_likelihood, template=model.template, prior=model.prior**scale)
        cavity.run(cavity.PVI(other), CLIENTS, rounds=1)
        if scale == 1.0:
            once = len(traces)
    assert len(traces) == once > 0


@thorough
def test_single_precision_stays_single():
    """Also where double precision is enabled, and a part has a number that a user wrote as a float."""

    class Shrunk(Solver):
        rate: float

        def check(self, model, loss, divergence):
            pass

        def init(self, problem):
            return self.rate * problem.cavity.precision_mean

        def step(self, key, problem, state):
            return state

        def done(self, state):
            return jnp.asarray(True)

        def result(self, problem, state):
            tilted = type(problem.cavity)(state, problem.cavity.precision)
            return Solution(tilted, jnp.zeros((), state.dtype), jnp.asarray(0), jnp.asarray(True))

    ones = jnp.ones(1, jnp.float32)
    model = cavity.models.function_model(
        lambda parameters, batch: batch, {"location": 0.0}, prior=cavity.distributions.DiagonalGaussian(ones, ones)
    )
    algorithm = cavity.PVI(model, solver=Shrunk(0.5))
    engine = LocalEngine(algorithm, prepare_clients(model, CLIENTS))
    server = ledger.open_ledger(algorithm, list(CLIENTS))
    _, messages = ledger.dispatch(algorithm, server, list(CLIENTS))
    single = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), [message.inputs for message in messages])
    update = collect(engine, *(replace(m, inputs=inputs) for m, inputs in zip(messages, single, strict=True)))[0].update
    assert {leaf.dtype.name for leaf in jax.tree.leaves(update.delta)} == {"float32"}


def test_states_from_a_checkpoint_are_taken_up():
    algorithm, clients = ALGORITHMS["with latents"](), unequal_clients(1)
    data = prepare_clients(algorithm.model, clients)
    engine = LocalEngine(algorithm, data, states={"client-0": ClientState(local=np.array([7.0, 7.0, 7.0]))})
    server = ledger.open_ledger(algorithm, list(clients))
    _, (message,) = ledger.dispatch(algorithm, server, list(clients))
    collect(engine, message)
    assert engine.client_states()["client-0"].pending.local.tolist() == [8, 8, 8]
