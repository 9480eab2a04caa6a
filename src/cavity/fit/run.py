"""Run an algorithm over clients, resume an interrupted run, load a saved fit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxtyping import PyTree

from cavity import training
from cavity.core import Algorithm, ClientSource, Schedule
from cavity.core.progress import Watcher
from cavity.errors import CavityError
from cavity.fit import arguments, files, initialisation, method
from cavity.fit.execution import Metrics, Options, continue_run
from cavity.fit.fit import Fit
from cavity.fit.population import population_of, prepared
from cavity.schedules import Synchronous
from cavity.training import Observer, Stopping

__all__ = ["Fit", "load", "prepare", "resume", "run"]


def run(
    algorithm: Algorithm,
    clients: Mapping[str, PyTree] | ClientSource,
    *,
    schedule: Schedule | None = None,
    rounds: int | None = None,
    tolerance: float = 1e-6,
    seed: int = 0,
    factors: str = "server",
    metrics: Metrics | None = None,
    observers: Sequence[Observer] = (),
    directory: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 5.0,
    rounds_per_block: int | None = None,
    visit_seconds: Mapping[str, float] | None = None,
    chunk: int | None = None,
    progress: bool | Watcher = False,
) -> Fit:
    """Run an algorithm over clients in this process.

    Args:
        algorithm: such as `PVI(model)`.
        clients: name -> data; for a regression a pair (x, y) or a dict with both. Clients that do not fit into memory
            together come from a `ClientSource`.
        schedule: which clients work when; None is all clients in every round.
        rounds: maximum number of rounds; None is the algorithm's default, 100 for most.
        tolerance: convergence tolerance, in nats: stop when KL(tilted : posterior) of every client is below this. SFVI
            and SFVI-Avg stop when the bound and the posterior have settled. 0 never stops a run early.
        seed: random seed.
        factors: who keeps the factors, the "server" or the "clients". With "clients" the server has their product only.
        metrics: name -> function of the posterior, computed after each round for the history.
        observers: called after each round with its record and the server's state.
        directory: where checkpoints are written; `cavity.resume` continues from there.
        checkpoint_seconds: least time between two checkpoints; 0 writes one after every round.
        rounds_per_block: run this many synchronous rounds as one program where that is possible (in double precision);
            metrics, the stopping rule, observers and checkpoints then come once per block. None is 1 for most
            algorithms.
        visit_seconds: virtual seconds that each client takes per visit, to try out an `Asynchronous` schedule; the
            history then has the virtual time.
        chunk: how many clients of a source are in memory at a time; None chooses by the size of the posterior.
        progress: True shows a line with clients per second and the time left; a function is called with each
            `Progress`.

    Returns:
        The fit.

    Raises:
        CavityError: where an argument is not what it should be, or a client's data cannot be used.
    """
    arguments.check_numbers(rounds=rounds, tolerance=tolerance)
    options = Options(
        metrics, observers, directory, checkpoint_seconds, rounds_per_block, visit_seconds, chunk, progress
    )
    fit = prepare(
        algorithm,
        clients,
        schedule=schedule,
        seed=seed,
        factors=factors,
        visit_seconds=visit_seconds,
    )
    return continue_run(fit, Stopping(method.rounds_or_default(fit.algorithm, rounds), tolerance), options)


def prepare(
    algorithm: Algorithm,
    clients: Mapping[str, PyTree] | ClientSource,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
    factors: str = "server",
    visit_seconds: Mapping[str, float] | None = None,
) -> Fit:
    """The fit before the first round: data are checked, and the initialisation has run.

    Args:
        algorithm: as in `run`.
        clients: as in `run`.
        schedule: as in `run`.
        seed: as in `run`.
        factors: as in `run`.
        visit_seconds: as in `run`; here it is only checked.

    Returns:
        A fit without history; `Fit.refine` runs rounds.
    """
    arguments.check_algorithm(algorithm)
    arguments.check_clients(clients)
    arguments.check_schedule(schedule)
    arguments.check_numbers(seed=seed)
    data, labels = prepared(algorithm.model, clients)
    population = population_of(algorithm.model, data)
    held = arguments.held_by_clients(factors)
    population.check(held_by_clients=held, visit_seconds=visit_seconds)
    schedule = Synchronous() if schedule is None else schedule
    algorithm, initial_rounds = initialisation.initialised(algorithm, population.data, seed)
    server = training.open_federation(algorithm, schedule, population.names, seed, held_by_clients=held)
    return Fit(algorithm, server, [], "rounds", schedule, data, labels=labels, initial_rounds=initial_rounds)


def resume(
    directory: str | os.PathLike[str],
    clients: Mapping[str, PyTree] | ClientSource,
    *,
    algorithm: Algorithm | None = None,
    schedule: Schedule | None = None,
    rounds: int | None = None,
    tolerance: float = 1e-6,
    metrics: Metrics | None = None,
    observers: Sequence[Observer] = (),
    checkpoint_seconds: float = 5.0,
    rounds_per_block: int | None = None,
    chunk: int | None = None,
    progress: bool | Watcher = False,
) -> Fit:
    """Resume an interrupted run from its directory: bit for bit the run that was not interrupted.

    Args:
        directory: the directory that `run` was given.
        clients: the same data as before.
        algorithm: needed again where it has functions of yours or parts from outside Cavity.
        schedule: needed again where it comes from outside Cavity.
        rounds: maximum number of rounds in total, those before the interruption included; None as in `run`.
        tolerance: as in `run`.
        metrics: as in `run`.
        observers: as in `run`.
        checkpoint_seconds: as in `run`.
        rounds_per_block: as in `run`.
        chunk: as in `run`.
        progress: as in `run`.

    Returns:
        The fit.

    Raises:
        CavityError: where the checkpoint cannot be read, or the clients are not those of the checkpoint.
    """
    arguments.check_clients(clients)
    arguments.check_numbers(rounds=rounds, tolerance=tolerance)
    options = Options(
        metrics, observers, directory, checkpoint_seconds, rounds_per_block, chunk=chunk, progress=progress
    )
    fit = load(directory, algorithm=algorithm, schedule=schedule, clients=clients)
    if missing := set(fit.server.names) ^ set(fit.population("resume").names):
        raise CavityError(
            f"the checkpoint and the data differ in their clients: {', '.join(sorted(missing))}. Give the same "
            "clients, then use fit.join or fit.withdraw"
        )
    stopping = Stopping(method.rounds_or_default(fit.algorithm, rounds), tolerance)
    return continue_run(fit, stopping, options)


def load(
    path: str | os.PathLike[str],
    *,
    algorithm: Algorithm | None = None,
    schedule: Schedule | None = None,
    clients: Mapping[str, PyTree] | ClientSource | None = None,
) -> Fit:
    """Load a fit from a file that `Fit.save` wrote, or from the directory of a run.

    Args:
        path: the file or the directory.
        algorithm: needed where it has functions of yours or parts from outside Cavity.
        schedule: needed where it comes from outside Cavity.
        clients: the clients' data, which a file never holds; without them the fit cannot be refined.

    Returns:
        The fit.

    Raises:
        CheckpointError: where the file cannot be read, or holds no fit.
    """
    parts, history = files.read(Path(path), algorithm, schedule)
    data, labels = None, {}
    if clients is not None:
        arguments.check_clients(clients)
        data, labels = prepared(parts["algorithm"].model, clients)
    return Fit(
        parts["algorithm"],
        parts["server"],
        history,
        parts["stopped"],
        parts["schedule"],
        data,
        parts["clients"],
        labels,
        closing=parts.get("closing"),
    )
