"""The training loop: which clients work, on which version of the posterior, and what is accepted.

It depends on no concrete algorithm, engine or schedule. One turn is

    plan     = schedule.next(...)                     # who
    messages = ledger.dispatch(server, plan.start)    # on what version
    replies  = engine.collect(plan.wait)
    server   = ledger.receive(server, replies)        # what is accepted

and a *round* is as many accepted replies as the schedule says. History, stopping, observers and checkpoints happen
between rounds, so a run that is resumed from a checkpoint is, bit for bit, the one that was not interrupted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from cavity import ledger
from cavity.core import Algorithm, BlockRound, BlockRounds, Engine, Schedule
from cavity.core.messages import MAX_REFUSALS, ServerState, Stacked, is_server_owned
from cavity.core.progress import Stopwatch, Watcher
from cavity.errors import StalledError
from cavity.io import serialization

logger = logging.getLogger("cavity")

Record = dict[str, Any]
Observer = Callable[[Record, ServerState], None]
TOTALS = {"communications", "bytes", "seconds", "virtual_seconds", "compute_seconds"}  # of a whole history
MAX_IDLE_TURNS = 100  # plus one for each client: turns without an accepted reply before the run stops with an error


def _noop(*arguments: object) -> None:
    """Does nothing."""


@dataclass(frozen=True)
class Hooks:
    """What is called within a round.

    Attributes:
        on_replies: with the visits so far, and how many replies have just come.
        written: with each change of the server's state, before anything that depends on it is sent.
    """

    on_replies: Callable[[int, int], None] = _noop
    written: Callable[[ServerState], None] = _noop


@dataclass(frozen=True)
class Stopping:
    """When a run ends.

    Attributes:
        rounds: the maximum number of rounds in all.
        tolerance: the run stops when the largest gap KL(tilted : posterior) over all clients is below this, in nats.
            SFVI and SFVI-Avg have no gap: they stop when the bound and the posterior have settled. 0 never stops early.
        at_least: the minimum number of rounds in all.
        asked: whether a pause between two rounds was requested.
    """

    rounds: int = 100
    tolerance: float = 1e-6
    at_least: int = 0
    asked: Callable[[], bool] = lambda: False

    def reason(self, history: Sequence[Record], settled: bool | None = None) -> str | None:
        """Why to stop now: "asked", "tolerance", "rounds", or None; `settled` is what the method itself says."""
        if self.asked():
            return "asked"
        if len(history) >= self.at_least and history:
            small = history[-1]["gap"] < self.tolerance  # not so where it is NaN
            if small or (settled and self.tolerance > 0):
                return "tolerance"
        return "rounds" if len(history) >= self.rounds else None


def open_federation(
    algorithm: Algorithm, schedule: Schedule, names: Sequence[str], seed: int, *, held_by_clients: bool = False
) -> ServerState:
    """The server's state before the first round."""
    server = ledger.open_ledger(algorithm, names, seed, held_by_clients=held_by_clients)
    return replace(server, schedule=schedule.init(names))


def run(
    algorithm: Algorithm,
    engine: Engine,
    schedule: Schedule,
    server: ServerState,
    history: Sequence[Record],
    stopping: Stopping,
    *,
    metrics: Mapping[str, Callable[[Any], float]] | None = None,
    observers: Sequence[Observer] = (),
    checkpoint: Callable[[ServerState, list[Record]], None] | None = None,
    checkpoint_seconds: float = 5.0,
    write_ahead: bool = False,
    rounds_per_block: int = 1,
    progress: Watcher | None = None,
) -> tuple[ServerState, list[Record], str]:
    """Run rounds until `stopping` ends them.

    Metrics, observers, the stopping rule and checkpoints come after every `rounds_per_block` rounds; `progress` is
    called after every batch of replies. With `write_ahead` there is a checkpoint within rounds too, before every
    message and after every reply: where clients outlive the server, it must not send two different messages with the
    same number.

    Returns:
        The server's state, the whole history, and why the run stopped.
    """
    history, last_checkpoint = list(history), time.monotonic()
    stopwatch = Stopwatch(progress, stopping.rounds)
    server = ledger.abandon(server, server.clients.waiting)  # nothing is outstanding in an engine that has just started

    def written(server: ServerState) -> None:
        if checkpoint is not None and write_ahead:
            checkpoint(server, history)

    hooks = Hooks(stopwatch.on_replies, written)
    while (reason := stopping.reason(history, algorithm.convergence.settled(server.method))) is None:
        size = min(rounds_per_block, stopping.rounds - len(history)) if schedule.is_synchronous else 1
        stopwatch.begin(len(history), schedule.visits_per_round(len(server.clients)), history[-1:])
        server, records = run_rounds(algorithm, engine, schedule, server, size, hooks)
        if not records:  # interrupted before the first reply
            continue
        for name, metric in (metrics or {}).items():
            records[-1][name] = float(metric(server.posterior))
        for record in records:
            before = history[-1] if history else {}
            for total in TOTALS & record.keys():
                record[total] += before.get(total, 0)
            history.append({"round": len(history) + 1} | record)
            for observer in observers:
                observer(history[-1], server)
        if checkpoint is not None and time.monotonic() - last_checkpoint >= checkpoint_seconds:
            checkpoint(server, history)
            last_checkpoint = time.monotonic()
    if checkpoint is not None:
        checkpoint(server, history)
    return server, history, reason


def run_rounds(
    algorithm: Algorithm,
    engine: Engine,
    schedule: Schedule,
    server: ServerState,
    num_rounds: int,
    hooks: Hooks,
) -> tuple[ServerState, list[Record]]:
    """Some rounds with nothing due in between: as one block where the engine can, else one after the other.

    There are fewer records than rounds if the engine was interrupted.
    """
    began, records = time.perf_counter(), []
    together = num_rounds > 1 and not server.clients.set_aside
    advanced = engine.advance(server, num_rounds) if together else None
    if advanced is not None:
        server, rounds = advanced
        seconds = (time.perf_counter() - began) / max(len(rounds), 1)
        records = _records_of(algorithm, server, rounds, seconds) if len(rounds) else []
        hooks.on_replies(len(rounds) * len(server.clients), len(rounds) * len(server.clients))
    while len(records) < num_rounds and not engine.interrupted:
        before = len(records) * schedule.visits_per_round(len(server.clients))
        counted = replace(hooks, on_replies=lambda visits, new, before=before: hooks.on_replies(before + visits, new))
        server, record = run_round(algorithm, engine, schedule, server, counted)
        if record is not None:
            records.append(record)
    return server, records


def _bytes_per_visit(algorithm: Algorithm, server: ServerState) -> int:
    """What a visit to a client would have sent: posterior, entry and what else is sent; an update and a report back."""
    first = server.names[0]
    there = (server.posterior, server.entries.get(first), algorithm.server.shared(server))
    return serialization.num_bytes((there, server.posterior, server.clients[first].report))


def _records_of(algorithm: Algorithm, server: ServerState, rounds: BlockRounds, seconds: float) -> list[Record]:
    """The records of a block's rounds. Nothing is sent within a block; bytes are what would have been sent.

    There may be thousands of rounds, so each column is computed at once.
    """
    block: BlockRound = rounds.tree if isinstance(rounds, Stacked) else jax.tree.map(lambda *x: np.stack(x), *rounds)
    gaps = np.asarray(block.gaps)
    columns = {
        "version": server.version - len(rounds) + 1 + np.arange(len(rounds)),
        "gap": gaps.max(axis=1),
        "free_energy": np.asarray(block.bound, float),
        "exponent": np.asarray(block.exponents, float).min(axis=1),
        "solver_steps": np.asarray(block.report.steps).max(axis=1),
        "unconverged": (~np.asarray(block.report.converged, bool)).sum(axis=1),
    }
    names, num_clients = server.names, sum(not is_server_owned(name) for name in server.names)
    fixed = {
        "refused": 0,
        "refusals": {},
        "communications": num_clients,
        "bytes": _bytes_per_visit(algorithm, server) * num_clients,
        "seconds": seconds,
    }
    rows = zip(gaps.tolist(), *(column.tolist() for column in columns.values()), strict=True)
    return [
        dict(zip(columns, numbers, strict=True)) | {"gaps": dict(zip(names, each, strict=True))} | fixed
        for each, *numbers in rows
    ]


def _of_those(server: ServerState, available: Sequence[str]) -> tuple[Mapping[str, float], Sequence[str]]:
    """The gaps of the clients that can be asked, and which of them are idle."""
    if len(available) == len(server.names):  # no search among very many clients
        return server.gaps, server.idle
    there = set(available)
    gaps = {name: gap for name, gap in server.gaps.items() if name in there}
    return gaps, [name for name in server.idle if name in there]


def run_round(
    algorithm: Algorithm,
    engine: Engine,
    schedule: Schedule,
    server: ServerState,
    hooks: Hooks | None = None,
) -> tuple[ServerState, Record | None]:
    """One round, and its record; communications, bytes and seconds are of this round alone.

    Clients that the engine cannot reach are left out, and a client that is lost on the way costs its own reply only.
    A client whose replies are refused again and again is set aside; the record then lists it under `missing`. There is
    no record of a round that was interrupted before its first reply.
    """
    hooks = Hooks() if hooks is None else hooks
    began, virtual_began, compute_began = time.perf_counter(), engine.virtual_seconds, engine.compute_seconds
    visits, communications, num_bytes, idle_turns, accepted, refused = 0, 0, 0, 0, {}, []
    num_owned, aside = sum(map(is_server_owned, server.names)), server.clients.set_aside
    sent, num_available = server.posterior, len(server.clients)
    while visits < schedule.visits_per_round(num_available) and not engine.interrupted:
        if aside and len(aside) + num_owned >= len(server.clients):
            raise StalledError(
                f"no client's reply could be used: each had {MAX_REFUSALS} in a row refused; the last: {refused[-1:]}"
            )
        available = engine.available(server.active)
        if not available:
            continue
        num_available = len(available)
        rng = np.random.default_rng([server.seed, server.version, visits])
        gaps, idle = _of_those(server, available)
        plan, state = schedule.next(rng, server.schedule, gaps, idle)
        sent = server.posterior
        server, messages = ledger.dispatch(algorithm, replace(server, schedule=state), plan.start)
        hooks.written(server)
        for message in messages:
            engine.submit(message)
        num_bytes += sum(serialization.num_bytes(m.inputs) for m in messages if not is_server_owned(m.client))
        places = {message.client: place for place, message in enumerate(messages)}
        del messages  # the engine has them; there may be very many
        received, before, waiting, there_is_more = 0, visits, [], True
        while received < plan.wait and there_is_more:
            replies = engine.collect(plan.wait - received)
            there_is_more = bool(replies)
            received += len(replies)
            waiting += replies
            if received < plan.wait and there_is_more:  # replies are absorbed together
                hooks.on_replies(visits + received, len(replies))
                continue
            if waiting:
                # in the order of the plan, whatever the order in which an engine works
                waiting.sort(key=lambda reply: places.get(reply.client, len(places)))
                server, outcome = ledger.receive(algorithm, server, waiting, engine.problem_with)
                visits += len(outcome.accepted)
                communications += sum(not is_server_owned(name) for name in outcome.accepted)
                accepted |= outcome.accepted
                refused += outcome.refused
                num_bytes += sum(serialization.num_bytes(r.update) for r in waiting if not is_server_owned(r.client))
                waiting = []
                hooks.written(server)
                hooks.on_replies(visits, len(replies))
                for name, why in outcome.refused:
                    logger.warning("client %r: its reply to version %d was refused: %s", name, server.version - 1, why)
                    engine.tell(name, why)
        if not there_is_more:  # the others will not reply
            server = ledger.abandon(server, server.clients.waiting)
        server = ledger.count_refusals(algorithm, server, engine.refused())
        for name in set(server.clients.set_aside).difference(aside):
            logger.warning("client %r is set aside: %d of its replies in a row were refused", name, MAX_REFUSALS)
        aside = server.clients.set_aside
        idle_turns = 0 if visits > before or server.clients.waiting else idle_turns + 1
        if idle_turns > MAX_IDLE_TURNS + len(server.clients):
            raise StalledError(f"no client's reply could be used in {idle_turns} turns; the last: {refused[-1:]}")
    if not accepted:
        return server, None
    # only the clients that replied in this round: the others have not changed, and there may be very many
    reports = {name: server.clients[name].report for name in accepted}
    reports = {name: report for name, report in reports.items() if report is not None}
    virtual = {} if virtual_began is None else {"virtual_seconds": (engine.virtual_seconds or 0.0) - virtual_began}
    compute = {} if compute_began is None else {"compute_seconds": (engine.compute_seconds or 0.0) - compute_began}
    missing = {"missing": sorted(aside)} if aside else {}
    return server, virtual | compute | missing | {
        "version": server.version,
        "gap": server.gaps.largest,
        "gaps": {name: float(report.gap) for name, report in reports.items()},
        "free_energy": algorithm.convergence.bound(server, sent),
        "exponent": min(accepted.values()),
        "solver_steps": max(int(report.steps) for report in reports.values()),
        "unconverged": sum(not bool(report.converged) for report in reports.values()),
        "refused": len(refused),
        "refusals": dict(refused),
        "communications": communications,
        "bytes": num_bytes,
        "seconds": time.perf_counter() - began,
    }
