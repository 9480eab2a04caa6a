"""How a run begins: anew, from its directory, or from a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from cavity import training
from cavity.core import Algorithm, ClientSource, Encoding, Schedule
from cavity.core.client_data import prepare_clients, unit_labels
from cavity.core.messages import ClientState, ServerState
from cavity.core.progress import Watcher
from cavity.errors import CavityError, CheckpointError
from cavity.fit import execution
from cavity.fit.fit import Fit
from cavity.io import serialization
from cavity.io.checkpoints import CHECKPOINT, RunDirectory
from cavity.schedules import Synchronous
from cavity.training import Observer, Stopping

__all__ = ["Fit", "load", "resume", "run"]


def run(
    algorithm: Any,
    clients: Mapping[str, PyTree] | ClientSource,
    *,
    schedule: Schedule | None = None,
    rounds: int | None = None,
    tolerance: float = 1e-6,
    seed: int = 0,
    held_by_clients: bool = False,
    metrics: Mapping[str, Callable[[Any], float]] | None = None,
    observers: Sequence[Observer] = (),
    directory: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 5.0,
    rounds_per_block: int | None = None,
    visit_seconds: Mapping[str, float] | None = None,
    chunk: int | None = None,
    progress: bool | Watcher = False,
) -> Fit:
    """Run a method over clients in this process.

    Args:
        algorithm: such as `PVI(model)`.
        clients: name -> data; for a regression a pair (x, y) or a dict with both. Clients too many to hold come from a
            `ClientSource`.
        schedule: who works when; None is everybody at once.
        rounds: at the latest after so many rounds; None takes as many as the method plans, 100 for most.
        tolerance: or when no client's data pull the posterior by more than this, KL(tilted : posterior) in nats. SFVI
            and SFVI-Avg end when the bound and the posterior have settled. 0 never ends a run early.
        seed: of all randomness.
        held_by_clients: let each client keep its own factor, and the server only their product.
        metrics: name -> function of the posterior, evaluated after each round for the history.
        observers: called after each round with its record and the server's state.
        directory: where to keep checkpoints; `cavity.resume` goes on from there.
        checkpoint_seconds: how much work an interruption may cost; 0 writes one after every round.
        rounds_per_block: run so many synchronous rounds as one program where that is possible (in double precision);
            metrics, the stopping rule, observers and checkpoints then come once per block. None is 1 for most methods.
        visit_seconds: virtual seconds that each client takes per visit, to try out an `Asynchronous` schedule; the
            history then has the virtual time.
        chunk: how many clients of a source are held at a time; None takes what suits the size of the posterior.
        progress: True shows a line with clients per second and the time left; or a function that gets a `Progress`.

    Returns:
        The fit.
    """
    at_most: int = algorithm.defaults.rounds if rounds is None else rounds
    block: int = algorithm.defaults.rounds_per_block if rounds_per_block is None else rounds_per_block
    data = clients if isinstance(clients, ClientSource) else prepare_clients(algorithm.model, clients)
    names = execution.names_of(data, algorithm.model)
    execution.check_run(names, data, held_by_clients=held_by_clients, rounds_per_block=block, chunk=chunk)
    execution.check_visit_seconds(names, data, visit_seconds)
    schedule = Synchronous() if schedule is None else schedule
    algorithm, initial_rounds = execution.initialised(algorithm, data, seed)
    server = training.open_federation(algorithm, schedule, names, seed, held_by_clients=held_by_clients)
    labels = unit_labels(algorithm.model, clients)
    fit = Fit(algorithm, server, [], "rounds", schedule, data, labels=labels, initial_rounds=initial_rounds)
    return execution.continue_run(
        fit,
        Stopping(at_most, tolerance),
        metrics=metrics,
        observers=observers,
        directory=directory,
        checkpoint_seconds=checkpoint_seconds,
        rounds_per_block=block,
        visit_seconds=visit_seconds,
        chunk=chunk,
        progress=progress,
    )


def resume(
    directory: str | os.PathLike[str],
    clients: Mapping[str, PyTree] | ClientSource,
    *,
    algorithm: Any = None,
    schedule: Schedule | None = None,
    rounds: int | None = None,
    tolerance: float = 1e-6,
    metrics: Mapping[str, Callable[[Any], float]] | None = None,
    observers: Sequence[Observer] = (),
    checkpoint_seconds: float = 5.0,
    rounds_per_block: int | None = None,
    chunk: int | None = None,
    progress: bool | Watcher = False,
) -> Fit:
    """Go on with an interrupted run from its directory: bit for bit the run that was not interrupted.

    Args:
        directory: what `run` was given.
        clients: the same data as before.
        algorithm: needed again where it holds functions of the user's or parts from outside Cavity.
        schedule: needed again where it comes from outside Cavity.
        rounds: in all, those before the interruption included; None as in `run`.
        tolerance: as in `run`.
        metrics: as in `run`.
        observers: as in `run`.
        checkpoint_seconds: as in `run`.
        rounds_per_block: as in `run`.
        chunk: as in `run`.
        progress: as in `run`.
    """
    fit = load(directory, algorithm=algorithm, schedule=schedule, clients=clients)
    missing = set(fit.server.names) ^ set(execution.names_of(fit.clients or {}, fit.algorithm.model))
    if missing:
        raise CavityError(
            f"the checkpoint and the data differ in their clients: {', '.join(sorted(missing))}. Give the same "
            "clients, then use fit.join or fit.withdraw"
        )
    return execution.continue_run(
        fit,
        Stopping(fit.algorithm.defaults.rounds if rounds is None else rounds, tolerance),
        metrics=metrics,
        observers=observers,
        directory=directory,
        checkpoint_seconds=checkpoint_seconds,
        rounds_per_block=fit.algorithm.defaults.rounds_per_block if rounds_per_block is None else rounds_per_block,
        chunk=chunk,
        progress=progress,
    )


def load(
    path: str | os.PathLike[str],
    *,
    algorithm: Any = None,
    schedule: Schedule | None = None,
    clients: Mapping[str, PyTree] | ClientSource | None = None,
) -> Fit:
    """A fit from a file that `Fit.save` wrote, or from a run's directory."""
    path = Path(path)
    directory, name = (path, CHECKPOINT) if path.is_dir() else (path.parent, path.name)
    types = serialization.types_beside((algorithm, schedule))
    if algorithm is not None:
        part = algorithm.server.entries
        types |= serialization.types_in(
            (None if part is None else part.initial(), algorithm.server.initial_state(1), algorithm.declaration.delta)
        )
    if schedule is not None:
        types |= serialization.types_in(schedule.init(()))
    saved, history = RunDirectory(directory).read(types, name)
    if not _is_saved_fit(saved):
        raise CheckpointError(f"{path}: it does not hold a fit; check the path, or delete it and start the run anew")
    algorithm = saved["algorithm"] if algorithm is None else algorithm
    schedule = saved["schedule"] if schedule is None else schedule
    if algorithm is None or schedule is None:
        raise CheckpointError(f"{path}: it holds parts from outside Cavity; give `algorithm=` and `schedule=` again")
    _check_encoding(path, algorithm)
    data = clients
    if isinstance(clients, Mapping):
        data = prepare_clients(algorithm.model, clients)
    labels = unit_labels(algorithm.model, clients)
    fit = Fit(algorithm, saved["server"], history, saved["stopped"], schedule, data, saved["clients"], labels)
    return replace(fit, closing=saved.get("closing"))


def _is_saved_fit(saved: Any) -> bool:
    """Whether this is what `execution.saved` makes; `cavity.io.serialization` has checked the parts' fields."""
    kinds = {
        "server": ServerState,
        "clients": dict,
        "stopped": str,
        "algorithm": (Algorithm, type(None)),
        "schedule": (Schedule, type(None)),
    }
    return (
        isinstance(saved, dict)
        and saved.keys() - {"closing"} == kinds.keys()
        and _is_closing(saved.get("closing"))
        and all(isinstance(saved[key], kind) for key, kind in kinds.items())
        and all(isinstance(state, ClientState) for state in saved["clients"].values())
        and saved["server"].clients.told.keys() <= set(saved["server"].names)
    )


def _is_closing(closing: Any) -> bool:
    """Whether this is a version with the evidence at it, or nothing."""
    pair = isinstance(closing, tuple) and tuple(map(type, closing)) == (int, float)
    return closing is None or pair


def _check_encoding(path: Path, algorithm: Any) -> None:
    """A formula from a file is held to the rules that one from a study is."""
    encoding = getattr(getattr(algorithm, "model", None), "encoding", None)
    if encoding is None:
        return
    if not isinstance(encoding, Encoding):
        raise CheckpointError(f"{path}: its encoding is a {type(encoding).__name__}")
    try:
        encoding.check()
    except CavityError as error:
        raise CheckpointError(f"{path}: {error}") from None
