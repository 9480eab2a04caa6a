"""Clients from a source, chunk by chunk: a method without rows, whose clients exist only while they are computed.

The toy method finds the weighted mean of all rows in one round: each client returns the step to its own mean, and the
server applies the weighted average of the steps when all have replied.
"""

import threading
from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from cavity import ledger, training
from cavity.core import Algorithm, ClientPart, ClientSource, Data, Declaration, ServerPart, Solver
from cavity.core.messages import ClientUpdate, Report
from cavity.distributions import PointMass
from cavity.errors import DataError, UnsuitableError
from cavity.schedules import SampledCount, Synchronous
from cavity.simulation import streaming
from cavity.simulation.streaming import StreamingEngine
from tests.marks import thorough

NUM_CLIENTS = 40
NAMES = [f"client-{i}" for i in range(NUM_CLIENTS)]


class Mean(Solver):
    """The weighted mean of a client's rows, and their weight."""

    def check(self, model, loss, divergence):
        return None

    def steps_for(self, num_rows):
        return 0

    def init(self, problem):
        rows, weight = problem
        return weight @ rows / jnp.sum(weight), jnp.sum(weight)

    def step(self, key, problem, state):
        return state

    def done(self, state):
        return jnp.asarray(True)

    def result(self, problem, state):
        return state


class Averaging(Algorithm):
    """Federated averaging of means; the server keeps sums until all clients have replied."""

    model: None
    solver: Mean
    keeps_something: bool = False

    @property
    def prior(self):
        return PointMass(jnp.zeros(2))

    @property
    def client(self):
        return MeanClient(self.solver, self.keeps_something)

    @property
    def server(self):
        return SumServer()

    @property
    def declaration(self):
        return Declaration((self.prior, np.zeros(())))


class MeanClient(ClientPart):
    solver: Mean
    keeps_something: bool

    def initial_local(self, data):
        return np.zeros(1) if self.keeps_something else None

    def problem(self, inputs, local, data):
        return data.batch, data.weight

    def update(self, inputs, local, problem, solution):
        mean, weight = solution
        step = PointMass(mean) / inputs.posterior
        report = Report(jnp.max(jnp.abs(step.location)), jnp.asarray(jnp.nan), jnp.asarray(0), jnp.asarray(True))
        return ClientUpdate((step, weight), report), local


class SumServer(ServerPart):
    entries: None = eqx.field(default=None, init=False, static=True)

    def absorb(self, server, replies):
        total, weight, replied = server.method
        for reply in replies:
            step, its_weight = reply.update.delta
            total, weight, replied = total * step**its_weight, weight + its_weight, replied + 1
        posterior, method = server.posterior, (total, weight, replied)
        if replied == len(server.clients):
            posterior, method = posterior * total ** (1 / weight), self.initial_state(replied)
        return ledger.Change(posterior, server.entries, method, {reply.client: 1.0 for reply in replies})

    def initial_state(self, num_clients):
        return PointMass(np.zeros(2)), 0.0, 0


def make(name):
    """A client from its name alone, with one to nine rows and weights."""
    rng = np.random.default_rng(list(name.encode()))
    num_rows = int(rng.integers(1, 10))
    return Data(rng.normal(size=(num_rows, 2)), rng.uniform(0.5, 2.0, num_rows), np.asarray(num_rows))


class Lazy(ClientSource):
    """Makes clients when they are asked for, and remembers who asked for how many."""

    def __init__(self):
        self.calls = []

    @property
    def names(self):
        return NAMES

    def load(self, names):
        self.calls.append((len(names), threading.current_thread().name))
        return [make(name) for name in names]


def truth():
    data = [make(name) for name in NAMES]
    rows, weights = np.concatenate([d.batch for d in data]), np.concatenate([d.weight for d in data])
    return weights @ rows / weights.sum()


def opened(engine_source, chunk, **options):
    algorithm = Averaging(None, Mean(), **options)
    engine = StreamingEngine(algorithm, engine_source, chunk=chunk)
    return algorithm, engine, training.open_federation(algorithm, Synchronous(), NAMES, 0)


def submit(algorithm, engine, server, names=NAMES):
    server, messages = ledger.dispatch(algorithm, server, names)
    for message in messages:
        engine.submit(message)
    return server


def prefetchers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("cavity-prefetch")]


@thorough
@pytest.mark.parametrize("chunk", [1, 7, 8, 64])
def test_the_weighted_mean_in_chunks_of_any_size(chunk):
    """40 clients in 40 chunks, in 6 of which the last is not full, in 5, and in one that is not."""
    source = Lazy()
    algorithm, engine, server = opened(source, chunk)
    stopping = training.Stopping(2, tolerance=0.0)
    server, history, _ = training.run(algorithm, engine, Synchronous(), server, [], stopping)
    engine.close()
    np.testing.assert_allclose(server.posterior.location, truth(), rtol=1e-12)
    assert [record["communications"] for record in history] == [NUM_CLIENTS, 2 * NUM_CLIENTS]
    # each client was loaded once a round, never more than a chunk at a time, and not by this thread
    sizes = [size for size, _ in source.calls]
    assert max(sizes) <= chunk
    assert sum(sizes) == 2 * NUM_CLIENTS
    assert len(sizes) == 2 * -(-NUM_CLIENTS // chunk)
    assert all(thread.startswith("cavity-prefetch") for _, thread in source.calls)


def test_some_clients_only():
    """A sampled round loads whom it needs."""
    source = Lazy()
    algorithm, engine, server = opened(source, 4)
    _, record = training.run_round(algorithm, engine, SampledCount(6), server)
    engine.close()
    assert record["communications"] == 6
    assert [size for size, _ in source.calls] == [4, 2]


def test_the_thread_ends_with_close():
    algorithm, engine, server = opened(Lazy(), 8)
    submit(algorithm, engine, server)
    assert len(engine.collect(NUM_CLIENTS)) == 8
    assert len(prefetchers()) == 1
    engine.close()
    assert prefetchers() == []


def test_one_chunk_is_loaded_ahead():
    """While a chunk is computed the next one is loaded, and no more than that."""
    begun, allowed = threading.Event(), threading.Event()

    class Waiting(Lazy):
        def load(self, names):
            loaded = super().load(names)
            if names[0] == NAMES[8]:
                begun.set()
                assert allowed.wait(20)
            return loaded

    source = Waiting()
    algorithm, engine, server = opened(source, 8)
    submit(algorithm, engine, server)
    # the second chunk is not to be had yet, and the first does not wait for it
    assert [reply.client for reply in engine.collect(NUM_CLIENTS)] == NAMES[:8]
    assert begun.wait(20)
    assert len(source.calls) == 2
    allowed.set()
    assert [reply.client for reply in engine.collect(NUM_CLIENTS)] == NAMES[8:16]
    engine.close()
    assert len(source.calls) <= 3


@pytest.mark.parametrize("failing", ["client-1", "client-12"], ids=["first chunk", "a chunk ahead"])
def test_a_failing_source_raises_its_own_error_with_the_names(failing):
    class Broken(Lazy):
        def load(self, names):
            if failing in names:
                raise OSError("the disk is gone")
            return super().load(names)

    algorithm, engine, server = opened(Broken(), 8)
    stopping = training.Stopping(1, tolerance=0.0)
    with pytest.raises(OSError, match="the disk is gone") as caught:
        training.run(algorithm, engine, Synchronous(), server, [], stopping)
    assert repr(failing) in "".join(caught.value.__notes__)
    engine.close()


def test_a_source_that_forgets_somebody():
    """Else somebody's rows would count under another name."""

    class Forgetful(Lazy):
        def load(self, names):
            return super().load(names)[1:]

    algorithm, engine, server = opened(Forgetful(), 20)
    submit(algorithm, engine, server)
    with pytest.raises(DataError, match=r"19 data sets for 20 clients \('client-0', .* and 10 others\)"):
        engine.collect(1)
    engine.close()


def test_clients_that_keep_something_cannot_be_streamed():
    algorithm, engine, server = opened(Lazy(), 8, keeps_something=True)
    submit(algorithm, engine, server)
    with pytest.raises(UnsuitableError, match="hold them in memory"):
        engine.collect(1)
    engine.close()


def test_nothing_to_do():
    _, engine, _ = opened(Lazy(), 8)
    assert engine.collect(1) == []
    assert engine.client_states() == {}
    engine.close()


def test_few_shapes(monkeypatch):
    """Rows are padded to powers of two, so that chunks of other sizes compile nothing."""
    shapes = set()
    run_clients = streaming.run_clients

    def spy(algorithm, work, mesh):
        shapes.add(work.data.weight.shape)
        return run_clients(algorithm, work, mesh)

    monkeypatch.setattr(streaming, "run_clients", spy)
    algorithm, engine, server = opened(Lazy(), 16)
    training.run(algorithm, engine, Synchronous(), server, [], training.Stopping(1, tolerance=0.0))
    engine.close()
    # the last eight clients have at most eight rows each
    assert shapes == {(16, 16), (8, 8)}


class Sized(Lazy):
    """A source that knows the number of rows of a client: most have a few, every tenth a thousand times as many."""

    def num_rows(self, name):
        return 2000 if name.endswith("7") else 2 + int(name.split("-")[1]) % 3

    def load(self, names):
        self.calls.append((len(names), {self.num_rows(name) >= 2000 for name in names}))
        return [self.rows(name, Sized.num_rows(self, name)) for name in names]

    def rows(self, name, size):
        rows = np.random.default_rng(list(name.encode())).normal(len(name), 1.0, (size, 2))
        return Data(rows, np.ones(size), np.asarray(size))


def test_clients_of_similar_size_work_together():
    """A small one is not padded to a thousand times its rows; what comes out does not depend on who is beside it."""

    class Untold(Sized):
        def num_rows(self, name):
            return None if threading.current_thread().name == "MainThread" else super().num_rows(name)

    class Together(Averaging):
        """Takes all replies of a round at once."""

        absorbs_together = True

    found, algorithm = [], Together(None, Mean())
    for source in (Sized(), Untold()):
        _, engine, server = opened(source, 16)
        server, record = training.run_round(algorithm, engine, Synchronous(), server)
        engine.close()
        found.append((server.posterior.location, list(record["gaps"])))
        mixed = [kinds for _, kinds in source.calls if len(kinds) > 1]
        assert bool(mixed) == isinstance(source, Untold)
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-13)
    # replies are taken in the order of the plan, whatever the order of the work
    assert found[0][1] == found[1][1] == NAMES


@pytest.mark.parametrize(("num_clients", "filled"), [(1, 1), (3, 3), (7, 7), (9, 10), (13, 14), (33, 40), (250, 256)])
def test_few_numbers_of_clients_at_little_cost(num_clients, filled):
    assert streaming.filled(num_clients, 256, 1) == filled
    for num_devices in (2, 3, 8):
        assert num_clients <= streaming.filled(num_clients, 256, num_devices) <= 1.25 * num_clients + num_devices


def test_the_chunk_suits_the_posterior():
    """Very many small posteriors fit into memory, many of millions of numbers do not; what a user says holds."""
    assert streaming.suitable_chunk(PointMass(np.zeros(10))) == streaming.LARGEST_CHUNK
    assert streaming.suitable_chunk(PointMass(np.zeros(10_000_000, np.float32))) == 6
    assert streaming.suitable_chunk(PointMass(np.broadcast_to(np.float32(0), 10**9))) == 1
    _, engine, _ = opened(Lazy(), None)
    assert engine.chunk == streaming.LARGEST_CHUNK
    engine.close()
    _, engine, _ = opened(Lazy(), 3)
    assert engine.chunk == 3
    engine.close()


def test_the_common_input_is_not_copied_for_each_client(monkeypatch):
    """A posterior of millions of numbers, once per client of a chunk, would be gigabytes."""
    seen = []
    run_clients = streaming.run_clients

    def spy(algorithm, work, mesh):
        seen.append(work)
        return run_clients(algorithm, work, mesh)

    monkeypatch.setattr(streaming, "run_clients", spy)
    algorithm, engine, server = opened(Lazy(), 16)
    server, _ = training.run_round(algorithm, engine, Synchronous(), server)
    assert [work.common.posterior.location.shape for work in seen] == [(2,)] * 3
    assert all(work.inputs.posterior is None for work in seen)
    assert seen[0].common.posterior.location is seen[1].common.posterior.location  # put there once
    # after a change of the posterior the clients see the new one
    training.run_round(algorithm, engine, Synchronous(), server)
    np.testing.assert_allclose(seen[-1].common.posterior.location, truth())
    engine.close()


def test_messages_of_different_versions_keep_their_own(monkeypatch):
    """Each client answers the posterior that it received, also if clients run together."""
    algorithm, engine, server = opened(Lazy(), 8)
    server, first = ledger.dispatch(algorithm, server, NAMES[:2])
    moved = replace(server, posterior=PointMass(np.array([3.0, 4.0])), version=1)
    _, second = ledger.dispatch(algorithm, moved, NAMES[2:4])
    for message in first + second:
        engine.submit(message)
    replies = engine.collect(4)
    engine.close()
    for reply, at in zip(replies, [(0, 0), (0, 0), (3, 4), (3, 4)], strict=True):
        data = make(reply.client)
        mean = data.weight @ data.batch / data.weight.sum()
        np.testing.assert_allclose(reply.update.delta[0].location, mean - np.array(at), rtol=1e-12)


def test_the_history_says_how_long_was_computed():
    algorithm, engine, server = opened(Lazy(), 8)
    stopping = training.Stopping(2, tolerance=0.0)
    _, history, _ = training.run(algorithm, engine, Synchronous(), server, [], stopping)
    engine.close()
    assert 0 < history[0]["compute_seconds"] < history[1]["compute_seconds"] < history[1]["seconds"]
