"""How a run is carried on in this process: its engine, its checkpoints, and what a file holds of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jaxtyping import PyTree

from cavity import training
from cavity.core import Algorithm, ClientSource, Data, Engine
from cavity.core.client_data import Prepared
from cavity.core.messages import ServerState
from cavity.core.progress import ProgressLine, Watcher
from cavity.errors import CavityError
from cavity.io import serialization
from cavity.io.checkpoints import RunDirectory
from cavity.schedules import Synchronous
from cavity.simulation.local import LocalEngine
from cavity.simulation.streaming import StreamingEngine
from cavity.training import Record, Stopping

logger = logging.getLogger("cavity")
INITIALISATION_ROUNDS = 30
INITIALISATION_TOLERANCE = 1e-15  # nats: to rounding, so that it does not matter how rows are shared out
FAR = 1e-3  # nats: the method itself goes on from there


def names_of(clients: Mapping[str, Any] | ClientSource, model: Any) -> list[str]:
    """All clients, of a prepared dict or a source, and the owner of the server's own rows."""
    return list(Prepared(model, clients).names if isinstance(clients, ClientSource) else clients)


def in_chunks(model: Any, clients: Mapping[str, Data] | ClientSource, chunk: int = 256) -> Iterator[Mapping[str, Data]]:
    """The prepared rows of all clients, the server's own included: those of a dict at once, those of a source not."""
    if not isinstance(clients, ClientSource):
        yield clients
        return
    source = Prepared(model, clients)
    everybody = source.names
    for first in range(0, len(everybody), chunk):
        names = everybody[first : first + chunk]
        yield dict(zip(names, source.load(names), strict=True))


def check_run(
    names: Sequence[str], clients: Any, *, held_by_clients: bool, rounds_per_block: int, chunk: int | None
) -> None:
    """Raise CavityError where the arguments of a run do not fit together."""
    if not names:
        raise CavityError("the source has no clients; it must name at least one")
    if len(set(names)) < len(names):
        raise CavityError("the source names a client twice; every client needs a name of its own")
    if isinstance(clients, ClientSource) and held_by_clients:
        raise CavityError("clients that are streamed keep nothing, so they cannot keep their factors either")
    for what, value in (("rounds_per_block", rounds_per_block), ("chunk", chunk)):
        if value is not None and value < 1:
            raise CavityError(f"{what} must be at least 1, not {value}")


def check_visit_seconds(names: Sequence[str], clients: Any, visit_seconds: Mapping[str, float] | None) -> None:
    """Raise CavityError unless every client has its time, and nobody else."""
    if visit_seconds is None:
        return
    if isinstance(clients, ClientSource):
        raise CavityError("virtual time is for clients that are held in memory; leave `visit_seconds` out")
    if unlike := set(names) ^ set(visit_seconds):
        raise CavityError(f"visit_seconds must name every client and nobody else; see {', '.join(sorted(unlike))}")
    if not all(seconds > 0 for seconds in visit_seconds.values()):
        raise CavityError("visit_seconds must be positive")


def _engine(fit: Any, visit_seconds: Mapping[str, float] | None, chunk: int | None) -> Engine:
    if fit.clients is None:
        raise CavityError("to go on, load the fit with the clients' data: cavity.load(path, clients=...)")
    if isinstance(fit.clients, ClientSource):
        source = Prepared(fit.algorithm.model, fit.clients)
        return StreamingEngine(fit.algorithm, source, seed=fit.server.seed, chunk=chunk)
    return LocalEngine(
        fit.algorithm,
        fit.clients or {},
        seed=fit.server.seed,
        held_by_clients=fit.server.held_by_clients,
        states=fit.client_states,
        seconds=visit_seconds,
    )


def initialised(algorithm: Algorithm, clients: Mapping[str, Data] | ClientSource, seed: int) -> tuple[Algorithm, int]:
    """The method at the start that its initialisation finds, and how many rounds that took; in double precision."""
    with jax.enable_x64(True):
        stage = algorithm.initialisation
    if stage is None or isinstance(clients, ClientSource):
        return algorithm, 0
    with jax.enable_x64(True):
        first, schedule = stage.algorithm, Synchronous()
        data = {name: stage.data(rows) for name, rows in clients.items()} | first.model.server_entries()
        engine = LocalEngine(first, data, seed=seed)
        server = training.open_federation(first, schedule, list(data), seed)
        stopping = Stopping(INITIALISATION_ROUNDS, INITIALISATION_TOLERANCE)
        try:
            server, history, _ = training.run(first, engine, schedule, server, [], stopping)
        except RuntimeError as error:
            raise CavityError(f"no start was found: {error}. Try without, with `initialise=False`") from None
        finally:
            engine.close()
    if not history[-1]["gap"] < FAR:
        logger.warning(
            "the start is not quite found: the last of %d rounds changed it by %.1e nats",
            len(history),
            history[-1]["gap"],
        )
    return stage.start(server.posterior), len(history)


def continue_run(
    fit: Any,
    stopping: Stopping,
    *,
    directory: str | os.PathLike[str] | None = None,
    visit_seconds: Mapping[str, float] | None = None,
    chunk: int | None = None,
    progress: bool | Watcher = False,
    **options: Any,
) -> Any:
    """Run on; `options` are those of `federation.run`."""
    engine = _engine(fit, visit_seconds, chunk)

    def finished(server: ServerState, history: list[Record], stopped: str) -> Any:
        return replace(fit, server=server, history=history, stopped=stopped, client_states=engine.client_states())

    def checkpoint(server: ServerState, history: list[Record]) -> None:
        if directory is not None:
            stopped = stopping.reason(history, fit.algorithm.convergence.settled(server.method)) or "rounds"
            RunDirectory(directory).write(saved(finished(server, history, stopped)), history)

    try:
        server, history, stopped = training.run(
            fit.algorithm,
            engine,
            fit.schedule,
            fit.server,
            fit.history,
            stopping,
            checkpoint=None if directory is None else checkpoint,
            progress=ProgressLine() if progress is True else progress or None,
            **options,
        )
    finally:
        engine.close()
    return finished(server, history, stopped)


def saved(fit: Any) -> dict[str, PyTree]:
    """What goes into a file; parts that cannot be written (functions) are left for the reader to give again."""
    return {
        "server": fit.server,
        "clients": dict(fit.client_states or {}),
        "stopped": fit.stopped,
        "closing": fit.closing,
        "algorithm": _if_writable(fit.algorithm),
        "schedule": _if_writable(fit.schedule),
    }


def _if_writable(part: Any) -> Any:
    try:
        serialization.pack(part)
    except TypeError:
        return None
    return part if serialization.is_self_contained(part) else None
