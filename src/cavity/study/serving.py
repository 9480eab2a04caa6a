"""A study over a network, at the server: from the first client's greeting to the results at everybody's.

What must outlive the server is in the run's directory: the checkpoint of the ledger, written before every message and
after every reply; the clients' sums; the start, where the method has to find one; who has been withdrawn. A server that
is started again on the same directory goes on from there.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cavity import federation, ledger, results, running, wire
from cavity.engines.clientele import Clientele, Terms
from cavity.engines.letters import Identity, Kind, Setting, Sign, Verify, unsigned
from cavity.engines.local import LocalEngine
from cavity.engines.network import NetworkEngine
from cavity.engines.post import Post
from cavity.errors import CavityError, StudyError
from cavity.federation import Record, Stopping
from cavity.fit import Fit
from cavity.interfaces import Algorithm, LatentModel, RowAlgorithm
from cavity.schedules import Synchronous
from cavity.state import ServerState
from cavity.store.directory import HISTORY, RunDirectory, write_atomically
from cavity.study.building import study_algorithm, study_scaling, study_schedule
from cavity.study.folders import STOP, WITHDRAW, Requests, write_status
from cavity.study.identity import settings
from cavity.study.running import POSTERIOR, STUDY, SUMMARY, VERSIONS, open_run, write_results
from cavity.study.scaling import Scaling, Sums
from cavity.study.schema import Study

RUN, SUMS, START, WITHDRAWN = "run.txt", "sums.npz", "start.npz", "withdrawn.json"
FAREWELL = 60.0  # seconds that clients have to fetch the results


@dataclass(frozen=True)
class Manner:
    """How a server runs a study.

    Attributes:
        min_clients: begin with so many, and pause while there are fewer; None is all to begin, and one to go on.
        seconds: that a client has for an answer.
        sign: for what the server sends.
        verify: client -> the check of its signature; None where nothing is signed.
        say: life signs.
    """

    min_clients: int | None = None
    seconds: float = 300.0
    sign: Sign = unsigned
    verify: dict[str, Verify] | None = None
    say: Callable[[str], None] = lambda line: None


def identity_of(study: Study) -> Identity:
    """A study as letters know it."""
    return Identity(study.hash, json.dumps(settings(study)))


def check_for_network(study: Study) -> None:
    """Raise StudyError where a study's method is not for a network."""
    if study.algorithm.method == "sfvi":
        raise StudyError(
            "algorithm.method: SFVI takes thousands of exchanges, which is for one machine (`cavity run`); on a "
            "network use SFVI-Avg, method = 'sfvi-avg'"
        )


def foreign_types(study: Study) -> frozenset[type]:
    """Classes from outside Cavity that messages of a study's own model may hold."""
    algorithm = study_algorithm(study, _any_scaling(study))
    parts = (algorithm, algorithm.scout) if algorithm.scout is not None else (algorithm,)
    return frozenset(wire.types_beside(parts))


def _any_scaling(study: Study) -> Scaling:
    return Scaling() if study.federated_columns else study_scaling(study)


def run_id(directory: Path) -> str:
    """Which run of the study this directory holds; made up once."""
    file = directory / RUN
    if not file.exists():
        write_atomically(file, uuid.uuid4().hex.encode())
    return file.read_text()


class StudyServer:
    """Runs one study over a post.

    Args:
        study: what was agreed.
        text: its file.
        directory: of the run; one that was interrupted is gone on with.
        post: carries the letters.
        manner: how.
        reopen: called when the post is lost.
    """

    def __init__(
        self,
        study: Study,
        text: str,
        directory: Path,
        post: Post,
        manner: Manner,
        *,
        reopen: Callable[[], None] = lambda: None,
    ):
        check_for_network(study)
        most = len(study.clients)
        if manner.min_clients is not None and not 1 <= manner.min_clients <= most:
            raise CavityError(f"--min-clients lies between 1 and {most}, not {manner.min_clients}")
        self._study, self._directory, self._manner = study, directory, manner
        self._resuming = RunDirectory(directory).has_checkpoint
        open_run(directory, study, text, resume=self._resuming)
        self._requests = Requests(directory)
        terms = Terms(
            identity_of(study),
            run_id(directory),
            study.clients,
            manner.sign,
            manner.verify,
            foreign_types(study),
            manner.seconds,
        )
        self._clientele = Clientele(post, terms, reopen=reopen, asked=self._interrupted, say=self._say)
        self._seen: dict[str, Any] = {"state": "waiting"}
        self._withdrawn: list[str] = self._read_json(WITHDRAWN, [])

    def run(self) -> Fit | None:
        """The study until its end; None if it was stopped before it began."""
        self._gather()
        setting = None if self._stopping() else self._setting()
        if setting is None:
            self._stopped()
            return None
        algorithm = self._algorithm(setting)
        fit = self._opened(algorithm)
        engine = self._engine(algorithm, setting, fit)
        self._see(state="running")
        try:
            fit = self._rounds(fit, engine)
        finally:
            engine.close()
        if self._stopping():
            self._stopped()
            return fit
        write_results(fit, self._directory)
        self._say(f"done after {len(fit.history)} rounds: {fit.stopped}", state="done")
        self._farewell()
        return fit

    def _stopped(self) -> None:
        self._requests.done(STOP)
        self._say("stopped; start the server again to go on", state="stopped")

    def _gather(self) -> None:
        """Wait for those who are to begin. Who leaves meanwhile is not waited for."""
        while not self._stopping():
            allowed = self._allowed()
            least = self._least()
            if len(self._clientele.wait_for(allowed, least)) >= least or (self._resuming and self._interrupted()):
                return
            self._withdraw_early()

    def _withdraw_early(self) -> None:
        """Before the first round there is nothing to forget."""
        asked = [request.removeprefix(WITHDRAW) for request in self._requests.pending() if request != STOP]
        for name in [*asked, *self._clientele.leaving]:
            self._note_withdrawn(name)
            self._say(f"{name} takes no part")

    def _note_withdrawn(self, name: str) -> None:
        if name not in self._withdrawn:
            self._withdrawn.append(name)
            write_atomically(self._directory / WITHDRAWN, json.dumps(self._withdrawn).encode())
        self._requests.done(WITHDRAW + name)
        self._clientele.leaving.discard(name)

    def _least(self) -> int:
        """How many are needed to begin."""
        allowed = len(self._allowed())
        if allowed == 0:
            raise CavityError("all clients have been withdrawn")
        return min(self._manner.min_clients or allowed, allowed)

    def _rounds(self, fit: Fit, engine: NetworkEngine) -> Fit:
        rounds = fit.algorithm.planned_rounds if self._study.run.rounds is None else self._study.run.rounds
        stopping = Stopping(rounds, self._study.run.tolerance, asked=self._has_to_pause)
        while True:
            self._members = fit.server.names

            def checkpoint(server: ServerState, history: list[Record], fit: Fit = fit) -> None:
                states = engine.client_states()
                now = replace(fit, server=server, history=history, client_states=states)
                RunDirectory(self._directory).write(running.saved(now), history)

            server, history, stopped = federation.run(
                fit.algorithm,
                engine,
                fit.schedule,
                fit.server,
                fit.history,
                stopping,
                observers=[lambda record, server: self._after_round(record, server, engine)],
                checkpoint=checkpoint,
                checkpoint_seconds=0.0,
                write_ahead=True,
            )
            fit = replace(fit, server=server, history=history, stopped=stopped, client_states=engine.client_states())
            if stopped != "asked" or self._stopping():
                return fit
            server = self._changed_members(fit.algorithm, fit.server)
            if not set(server.names) & set(self._study.clients):
                raise CavityError("all clients have left or been withdrawn; there is nothing to go on with")
            if server is not fit.server:
                fit = replace(fit, server=replace(server, schedule=fit.schedule.init(server.names)))
                done = len(history)
                stopping = replace(stopping, rounds=done + rounds, at_least=done + 1)
                checkpoint(fit.server, history, fit)

    def _after_round(self, record: Record, server: ServerState, engine: NetworkEngine) -> None:
        moved = record["residual"]
        told = "" if moved != moved else f", residual {moved:.1e}"
        self._say(f"round {record['round']}{told}", round=record["round"], residual=told.removeprefix(", residual "))
        # who is missing may pull yet; rounds without it would not bring the end nearer
        members = [name for name in server.names if name in self._study.clients]
        here = self._clientele.here() & set(members)
        settled = all(record["residuals"][name] < self._study.run.tolerance for name in here)
        if settled and len(here) < len(members) and not moved < self._study.run.tolerance:
            self._clientele.wait_for(members, len(members))

    def _changed_members(self, algorithm: Algorithm, server: ServerState) -> ServerState:
        """Withdraw who is to go, and take in who has come."""
        asked = [request.removeprefix(WITHDRAW) for request in self._requests.pending() if request != STOP]
        # the list comes first: one that is on it and still a member was cut short by a crash
        for name in dict.fromkeys([*asked, *sorted(self._clientele.leaving), *self._withdrawn]):
            self._note_withdrawn(name)
            if name in server.clients and name in self._study.clients:
                server = withdrawn(algorithm, server, name)
                self._say(f"{name} is withdrawn; the others go on without it")
        for name in self._newcomers(server.names):
            server = ledger.join(algorithm, server, name)
            server = replace(server, method=algorithm.initial_method(len(server.clients)))
            self._say(f"{name} has joined")
        return server

    def _newcomers(self, members: tuple[str, ...]) -> list[str]:
        here = self._clientele.here()
        return [name for name in self._allowed() if name in here and name not in members]

    def _allowed(self) -> list[str]:
        return [name for name in self._study.clients if name not in self._withdrawn]

    def _interrupted(self) -> bool:
        return bool(self._requests.pending() or self._clientele.leaving)

    def _has_to_pause(self) -> bool:
        leftover = any(name in self._members for name in self._withdrawn)
        return self._interrupted() or leftover or bool(self._newcomers(self._members))

    def _setting(self) -> Setting | None:
        """Scaling and start, each found once and kept; None if the server is to stop meanwhile."""
        scaling = self._scaling()
        if scaling is None:
            return None
        setting = Setting(scaling)
        scout = study_algorithm(self._study, scaling).scout
        if scout is None:
            return setting
        file = self._directory / START
        if not file.exists():
            found = self._scouted(scout, setting)
            if found is None:
                return None
            write_atomically(file, wire.to_bytes(found))
        return replace(setting, start=wire.from_bytes(file.read_bytes(), self._clientele.terms.types))

    def _scaling(self) -> Scaling | None:
        """From the sums of those that are here at the beginning; who comes later computes with the same."""
        study, file = self._study, self._directory / SUMS
        if not study.federated_columns:
            return study_scaling(study)
        while not file.exists():
            if self._stopping():
                return None
            found = self._sums()
            if found is not None:
                write_atomically(file, wire.to_bytes(found))
        return study_scaling(study, list(wire.from_bytes(file.read_bytes()).values()))

    def _sums(self) -> dict[str, Sums] | None:
        self._gather()
        here = [name for name in self._allowed() if name in self._clientele.here()]
        letters = self._clientele.ask_all(Kind.SUMS, here, {}, self._manner.seconds)
        found: dict[str, Any] = {name: letters[name].body.get("sums") for name in here if name in letters}
        usable = {name: sums for name, sums in found.items() if self._usable(name, sums)}
        if len(usable) < self._least():
            self._clientele.sleep(1.0)
            return None
        self._say(f"the sums of {len(usable)} clients give the scaling of {', '.join(self._study.federated_columns)}")
        return usable

    def _usable(self, name: str, sums: Any) -> bool:
        width = (len(self._study.federated_columns),)
        fits = isinstance(sums, Sums) and sums.columns == self._study.federated_columns
        fits = fits and np.shape(sums.sum) == width and np.shape(sums.sum_of_squares) == width
        if not fits:
            self._say(f"the sums of {name} are refused: they are not those that the study asks for")
        return fits

    def _scouted(self, scout: Any, setting: Setting) -> Any:
        """The start that the scout finds, over the same network."""
        here, schedule = self._clientele.here(), Synchronous()
        names = [name for name in self._allowed() if name in here]
        engine = self._engine(scout, replace(setting, scouting=True), None)
        server = federation.open_federation(scout, schedule, [*names, *scout.model.server_rows()], self._study.run.seed)
        self._say("searching for a start")
        stopping = Stopping(running.SCOUT_ROUNDS, running.SCOUT_TOLERANCE, asked=self._stopping)
        server, history, stopped = federation.run(scout, engine, schedule, server, [], stopping)
        self._say(f"a start was found in {len(history)} rounds")
        return None if stopped == "asked" else server.posterior

    def _stopping(self) -> bool:
        return STOP in self._requests.pending()

    def _algorithm(self, setting: Setting) -> Algorithm:
        algorithm = study_algorithm(self._study, setting.scaling)
        return algorithm if setting.start is None else algorithm.starting_at(setting.start)

    def _opened(self, algorithm: Algorithm) -> Fit:
        schedule = study_schedule(self._study)
        if self._resuming:
            fit = results.load(self._directory, algorithm=algorithm, schedule=schedule)
            self._say(f"going on after round {len(fit.history)}")
            return fit
        here = self._clientele.here()
        names = [name for name in self._allowed() if name in here]
        everybody = [*names, *self._own_rows(algorithm)]
        server = federation.open_federation(algorithm, schedule, everybody, self._study.run.seed)
        return Fit(algorithm, server, [], "rounds", schedule)

    def _own_rows(self, algorithm: Any) -> dict[str, Any]:
        return {} if isinstance(algorithm.model, LatentModel) else algorithm.model.server_rows()

    def _engine(self, algorithm: Algorithm, setting: Setting, fit: Fit | None) -> NetworkEngine:
        rows = self._own_rows(algorithm)
        states = None if fit is None else fit.client_states
        own = LocalEngine(algorithm, rows, seed=self._study.run.seed, states=states) if rows else None
        least = self._manner.min_clients or 1
        return NetworkEngine(algorithm, self._clientele, setting, least=least, own=own, own_names=list(rows))

    def _farewell(self) -> None:
        """The results to everybody who is here."""
        files = {
            name: np.frombuffer((self._directory / name).read_bytes(), np.uint8)
            for name in (POSTERIOR, SUMMARY, HISTORY, STUDY, VERSIONS)
        }
        here = sorted(self._clientele.here())
        received = self._clientele.ask_all(Kind.END, here, {"files": files}, FAREWELL)
        if lacking := [name for name in here if name not in received]:
            self._say(f"the results did not reach {', '.join(lacking)}; send them the run's folder")

    def _say(self, line: str, **values: Any) -> None:
        self._manner.say(line)
        self._see(line=line, **values)

    def _see(self, **values: Any) -> None:
        self._seen |= values
        connected = sorted(self._clientele.homes)
        write_status(self._directory, **self._seen, connected=connected, study=self._study.id)

    def _read_json(self, name: str, otherwise: Any) -> Any:
        file = self._directory / name
        return json.loads(file.read_text()) if file.exists() else otherwise


def withdrawn(algorithm: Algorithm, server: ServerState, name: str) -> ServerState:
    """Without this client: forgotten, where the method has rows; else it only takes no further part."""
    server = ledger.abandon(server, server.names)
    if isinstance(algorithm, RowAlgorithm):
        return ledger.withdraw(algorithm, server, name)
    clients = {key: record for key, record in server.clients.items() if key != name}
    return replace(server, clients=clients, rows={key: row for key, row in server.rows.items() if key != name})


def server_log(directory: str | os.PathLike[str]) -> Path:
    """Where a server writes what it does."""
    return Path(directory) / "server.log"
