"""The memory of a round over very many streamed clients, measured in a process of its own.

    python -m cavity_experiments.core_memory NUM_CLIENTS

prints JSON: the megabytes that a round took beyond what the process held before it, at its peak, and its seconds.
Clients keep no state and have no entries at the server; each sends the mean of its data, and the server averages.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from cavity import training
from cavity.core import Algorithm, ClientPart, ClientSource, Data, Declaration, ServerPart, Solver
from cavity.core.messages import Change, ClientInput, ClientUpdate, Reply, Report, ServerState
from cavity.distributions import PointMass
from cavity.schedules import Synchronous
from cavity.simulation.streaming import StreamingEngine

ROWS_PER_CLIENT, NUM_COLUMNS = 500, 100  # in single precision 200 kB per client, 200 MB per 1,000 clients


class Mean(Solver):
    """The weighted mean of a client's rows, in closed form."""

    def check(self, model: Any, loss: Any, divergence: Any) -> None:
        return None

    def steps_for(self, num_rows: Any) -> Any:
        return 0

    def init(self, problem: Data) -> PyTree:
        return problem.weight @ problem.batch / jnp.sum(problem.weight)

    def step(self, key: Any, problem: Data, state: PyTree) -> PyTree:
        return state

    def done(self, state: PyTree) -> Any:
        return jnp.asarray(True)

    def result(self, problem: Data, state: PyTree) -> Any:
        return state


class Average(Algorithm):
    """Moves the posterior, a point, to the average of the clients' means once all have replied."""

    model: Any = None

    @property
    def prior(self) -> PointMass:
        return PointMass(jnp.zeros(NUM_COLUMNS, jnp.float32))

    @property
    def client(self) -> ClientPart:
        return MeanClient()

    @property
    def server(self) -> ServerPart:
        return AverageServer()

    @property
    def declaration(self) -> Declaration:
        return Declaration(self.prior)


class MeanClient(ClientPart):
    """Sends the mean of the client's rows."""

    solver: Solver = Mean()

    def problem(self, inputs: ClientInput, local: PyTree, data: Data) -> Data:
        return data

    def update(self, inputs: ClientInput, local: PyTree, problem: Data, solution: Any) -> tuple[ClientUpdate, PyTree]:
        delta = PointMass(solution) / inputs.posterior
        gap = jnp.max(jnp.abs(delta.location))
        return ClientUpdate(delta, Report(gap, jnp.asarray(jnp.nan), jnp.asarray(0), jnp.asarray(True))), None


class AverageServer(ServerPart):
    """Keeps the sum of the replies until all have come."""

    entries: None = eqx.field(default=None, init=False, static=True)

    def absorb(self, server: ServerState, replies: Sequence[Reply]) -> Change:
        total, count = server.method
        for reply in replies:
            total, count = total * reply.update.delta, count + 1
        posterior, method = server.posterior, (total, count)
        if count == len(server.clients):
            posterior, method = posterior * total ** (1 / count), self.initial_state(count)
        return Change(posterior, server.entries, method, {reply.client: 1.0 for reply in replies})

    def initial_state(self, num_clients: int) -> PyTree:
        return PointMass(np.zeros(NUM_COLUMNS)), 0


class Made(ClientSource):
    """Clients whose rows are made when they are asked for: a common table, moved by the client's number."""

    def __init__(self, num_clients: int):
        self._names = [f"client-{i}" for i in range(num_clients)]
        self._table = np.random.default_rng(0).normal(size=(ROWS_PER_CLIENT, NUM_COLUMNS)).astype(np.float32)

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def load(self, names: Sequence[str]) -> list[Data]:
        weight, num_rows = np.ones(ROWS_PER_CLIENT, np.float32), np.asarray(ROWS_PER_CLIENT)
        return [Data(self._table + np.float32(name.split("-")[1]), weight, num_rows) for name in names]


def peak_megabytes(*, from_here: bool = False) -> float:
    """The largest memory so far; `from_here` forgets what was larger before, where the system can (Linux)."""
    if from_here and (clear := Path("/proc/self/clear_refs")).exists():
        clear.write_text("5")
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1000
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def measure(num_clients: int) -> dict[str, float]:
    """One round over all clients."""
    algorithm, source, schedule = Average(), Made(num_clients), Synchronous()
    engine = StreamingEngine(algorithm, source)
    server = training.open_federation(algorithm, schedule, source.names, seed=0)
    before, began = peak_megabytes(from_here=True), perf_counter()
    server, _ = training.run_round(algorithm, engine, schedule, server)
    seconds = perf_counter() - began
    engine.close()
    table = source.load(["client-0"])[0].batch
    expected = table.mean(0) + (num_clients - 1) / 2
    error = float(np.max(np.abs(server.posterior.location - expected)) / num_clients)
    return {
        "clients": num_clients,
        "megabytes": peak_megabytes() - before,
        "megabytes_before": before,
        "seconds": seconds,
        "relative_error": error,
    }


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print(json.dumps(measure(int(sys.argv[1]))))
