"""Clients from a source, chunk by chunk: a method without rows, whose clients exist only while they are computed.

The toy method finds the weighted mean of all rows in one round: each client returns the step to its own mean, and the
server applies the weighted average of the steps when all have replied.
"""

import threading

import jax.numpy as jnp
import numpy as np
import pytest

from cavity import federation, ledger
from cavity.distributions import PointMass
from cavity.engines import streaming
from cavity.engines.streaming import StreamingEngine
from cavity.errors import DataError, UnsuitableError
from cavity.interfaces import Algorithm, ClientSource, Data, Solver
from cavity.schedules import SampledCount, Synchronous
from cavity.state import Answer, Report

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
    """Federated averaging of means; the server keeps sums until everybody has replied."""

    model: None
    solver: Mean
    keeps_something: bool = False

    @property
    def prior(self):
        return PointMass(jnp.zeros(2))

    def empty_row(self):
        return None

    def problem(self, brief, local, data):
        return data.batch, data.weight

    def answer(self, brief, local, problem, solution):
        mean, weight = solution
        step = PointMass(mean) / brief.posterior
        report = Report(jnp.max(jnp.abs(step.location)), jnp.asarray(jnp.nan), jnp.asarray(0), jnp.asarray(True))
        return Answer((step, weight), report), local

    def absorb(self, server, replies):
        total, weight, replied = server.method
        for reply in replies:
            step, its_weight = reply.answer.delta
            total, weight, replied = total * step**its_weight, weight + its_weight, replied + 1
        posterior, method = server.posterior, (total, weight, replied)
        if replied == len(server.clients):
            posterior, method = posterior * total ** (1 / weight), self.initial_method(replied)
        return ledger.Change(posterior, server.rows, method, {reply.client: 1.0 for reply in replies})

    def merge(self, row, delta, exponent):
        return row

    def initial_method(self, num_clients):
        return PointMass(np.zeros(2)), 0.0, 0

    def initial_local(self, data):
        return np.zeros(1) if self.keeps_something else None

    def shared(self, server):
        return None


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
    everybody = [make(name) for name in NAMES]
    rows, weights = np.concatenate([d.batch for d in everybody]), np.concatenate([d.weight for d in everybody])
    return weights @ rows / weights.sum()


def opened(engine_source, chunk, **options):
    algorithm = Averaging(None, Mean(), **options)
    engine = StreamingEngine(algorithm, engine_source, chunk=chunk)
    return algorithm, engine, federation.open_federation(algorithm, Synchronous(), NAMES, 0)


def submit(algorithm, engine, server, names=NAMES):
    server, messages = ledger.dispatch(algorithm, server, names)
    for message in messages:
        engine.submit(message)
    return server


def prefetchers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("cavity-prefetch")]


@pytest.mark.parametrize("chunk", [1, 7, 8, 64])
def test_the_weighted_mean_in_chunks_of_any_size(chunk):
    """40 clients in 40 chunks, in 6 of which the last is not full, in 5, and in one that is not."""
    source = Lazy()
    algorithm, engine, server = opened(source, chunk)
    stopping = federation.Stopping(2, tolerance=0.0)
    server, history, _ = federation.run(algorithm, engine, Synchronous(), server, [], stopping)
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
    _, record = federation.run_round(algorithm, engine, SampledCount(6), server)
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
    stopping = federation.Stopping(1, tolerance=0.0)
    with pytest.raises(OSError, match="the disk is gone") as caught:
        federation.run(algorithm, engine, Synchronous(), server, [], stopping)
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
    """Rows are padded to powers of two and chunks to their size, so that chunks of other sizes compile nothing."""
    shapes = set()
    run_clients = streaming.run_clients

    def spy(algorithm, work, mesh):
        shapes.add(work.data.weight.shape)
        return run_clients(algorithm, work, mesh)

    monkeypatch.setattr(streaming, "run_clients", spy)
    algorithm, engine, server = opened(Lazy(), 16)
    federation.run(algorithm, engine, Synchronous(), server, [], federation.Stopping(1, tolerance=0.0))
    engine.close()
    # the last eight clients have at most eight rows each
    assert shapes == {(16, 16), (16, 8)}
