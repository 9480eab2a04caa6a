"""A study over a network, at the server: from the first client's greeting to the results at everybody's.

What must outlive the server is in the run's directory: the checkpoint of the ledger, written before every message and
after every reply; the clients' sums; the start, where the method has to find one; who has been withdrawn. A server that
is started again on the same directory goes on from there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cavity import ledger, training
from cavity.core import Algorithm, LatentModel
from cavity.core.messages import ClientState, ServerState
from cavity.errors import CavityError
from cavity.evaluation.evidence import closing_exchange, has_evidence
from cavity.fit import run
from cavity.fit.files import saved
from cavity.fit.fit import Fit
from cavity.io.checkpoints import HISTORY, RunDirectory, write_atomically
from cavity.network.engine import NetworkEngine
from cavity.network.limits import ServerBounds
from cavity.network.membership import Members
from cavity.network.protocol import Kind, RunConfig, Sign, Verify, unsigned
from cavity.network.run_directory import write_status
from cavity.network.session import Session, SessionConfig
from cavity.network.setup import START, Preparing
from cavity.network.study_session import check_for_network, foreign_types, identity_of, largest_messages
from cavity.network.transport import Transport
from cavity.simulation.local import LocalEngine
from cavity.study.building import study_algorithm, study_schedule
from cavity.study.run import POSTERIOR, STUDY, SUMMARY, VERSIONS, open_run, write_results
from cavity.study.schema import Study
from cavity.training import Record, Stopping

RUN = "run.txt"
FAREWELL = 60.0  # seconds that clients have to fetch the results


@dataclass(frozen=True)
class ServerConfig:
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


def run_id(directory: Path) -> str:
    """Which run of the study this directory holds."""
    file = directory / RUN
    return file.read_text() if file.exists() else new_run(directory)


def new_run(directory: Path) -> str:
    """A name for it, made up and written down."""
    name = uuid.uuid4().hex
    write_atomically(directory / RUN, name.encode())
    return name


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
        transport: Transport,
        manner: ServerConfig,
        *,
        reopen: Callable[[], None] = lambda: None,
    ):
        check_for_network(study)
        most = len(study.clients)
        if manner.min_clients is not None and not 1 <= manner.min_clients <= most:
            raise CavityError(f"--min-clients lies between 1 and {most}, not {manner.min_clients}")
        self._study, self._directory, self._manner = study, directory, manner
        open_run(directory, study, text, resume=self._resuming)
        terms = SessionConfig(
            identity_of(study),
            run_id(directory),
            study.clients,
            manner.sign,
            manner.verify,
            foreign_types(study),
            manner.seconds,
            largest_message=largest_messages(study)[0],
        )
        self._seen: dict[str, Any] = {"state": "waiting"}
        self._clientele = Session(
            transport, terms, reopen=reopen, asked=lambda: self._members.interrupted, say=self._say
        )
        self._members = Members(study, directory, self._clientele, self._say)

    def run(self) -> Fit | None:
        """The study until its end; None if it was stopped before it began."""
        while (fit := self._one_run()) is not None and fit.stopped == "asked" and not self._members.stopping:
            self._begin_anew()
        if self._members.stopping:
            self._members.stopped()
            self._say("stopped; start the server again to go on", state="stopped")
        elif fit is not None:
            write_results(fit, self._directory)
            missing = fit.server.clients.set_aside
            lacking = f"; not all of the data of {', '.join(missing)} are in it" if missing else ""
            self._say(f"done after {len(fit.history)} rounds: {fit.stopped}{lacking}", state="done")
            self._farewell()
        return fit

    def _one_run(self) -> Fit | None:
        """From the gathering to the last round, or until all has to begin anew: it has stopped as asked then."""
        preparing = Preparing(
            self._study,
            self._directory,
            self._clientele,
            self._members,
            gather=self._gather,
            engine=self._engine,
            say=self._say,
        )
        self._gather()
        setting = None if self._members.stopping else preparing.setting()
        if setting is None:
            return None
        algorithm = study_algorithm(self._study, setting.scaling)
        stage = algorithm.initialisation
        algorithm = algorithm if stage is None or setting.start is None else stage.start(setting.start)
        fit = self._resumed(algorithm) if self._resuming else self._opened(algorithm, preparing.names)
        engine = self._engine(algorithm, setting, fit.client_states)
        self._see(state="running")
        try:
            return self._closed(self._rounds(fit, engine), engine)
        finally:
            engine.close()

    def _closed(self, fit: Fit, engine: NetworkEngine) -> Fit:
        """The fit with its evidence, by one more exchange; as it is where there is none, or the run goes on."""
        if fit.stopped == "asked" or not has_evidence(fit.algorithm):
            return fit

        def written(server: ServerState) -> None:
            self._write(replace(fit, server=server, client_states=engine.client_states()))

        server, found = closing_exchange(fit.algorithm, engine, fit.server, written)
        fit = replace(fit, server=server, closing=(server.version, found), client_states=engine.client_states())
        self._write(fit)
        return fit

    def _begin_anew(self) -> None:
        """Letters that are under way belong to another run from now on, and no reply counts that came before."""
        self._clientele.terms = replace(self._clientele.terms, run=new_run(self._directory))
        RunDirectory(self._directory).clear()
        (self._directory / START).unlink(missing_ok=True)
        self._say("beginning anew")

    def _gather(self) -> int:
        """Wait for those who are to begin, and say how many they must be. Who leaves meanwhile is not waited for."""
        while True:
            least = self._members.least(self._manner.min_clients)
            found = self._clientele.wait_for(self._members.allowed, least)
            if len(found) >= least or self._members.stopping or (self._resuming and self._members.interrupted):
                return least
            self._members.withdraw_early()

    def _rounds(self, fit: Fit, engine: NetworkEngine) -> Fit:
        """Rounds until the end, or until all has to begin anew; whenever members come or go, as many again."""
        rounds = fit.algorithm.defaults.rounds if self._study.run.rounds is None else self._study.run.rounds
        stopping = Stopping(rounds, self._study.run.tolerance)
        while True:
            fit = self._until_members_change(fit, engine, stopping)
            if (
                fit.stopped != "asked"
                or self._members.stopping
                or self._members.need_new_run(fit.algorithm, fit.server)
            ):
                return fit
            server = self._members.changed(fit.algorithm, fit.server)
            if server is not fit.server:
                fit = replace(fit, server=replace(server, schedule=fit.schedule.init(server.names)))
                done = len(fit.history)
                stopping = replace(stopping, rounds=done + rounds, at_least=done + 1)
                self._write(fit)

    def _until_members_change(self, fit: Fit, engine: NetworkEngine, stopping: Stopping) -> Fit:
        def checkpoint(server: ServerState, history: list[Record]) -> None:
            self._write(replace(fit, server=server, history=history, client_states=engine.client_states()))

        server, history, stopped = training.run(
            fit.algorithm,
            engine,
            fit.schedule,
            fit.server,
            fit.history,
            replace(stopping, asked=lambda: self._members.have_changed(fit.server.names)),
            observers=[self._after_round],
            checkpoint=checkpoint,
            checkpoint_seconds=0.0,
            write_ahead=True,
        )
        return replace(fit, server=server, history=history, stopped=stopped, client_states=engine.client_states())

    def _write(self, fit: Fit) -> None:
        RunDirectory(self._directory).write(saved(fit), fit.history)

    def _after_round(self, record: Record, server: ServerState) -> None:
        moved = record["gap"]
        told = "" if moved != moved else f", residual {moved:.1e}"
        self._say(f"round {record['round']}{told}", round=record["round"], gap=told.removeprefix(", residual "))
        # who is missing may pull yet; rounds without it would not bring the end nearer
        if (missing := record.get("missing", [])) and missing != self._seen.get("missing"):
            self._say(f"refused again and again, and asked no more: {', '.join(missing)}", missing=missing)
        members = [name for name in server.active if name in self._study.clients]
        here = self._clientele.here() & set(members)
        settled = all(server.gaps[name] < self._study.run.tolerance for name in here)
        if settled and len(here) < len(members) and not moved < self._study.run.tolerance:
            self._clientele.wait_for(members, len(members))

    @property
    def _resuming(self) -> bool:
        return RunDirectory(self._directory).has_checkpoint

    def _resumed(self, algorithm: Algorithm) -> Fit:
        fit = run.load(self._directory, algorithm=algorithm, schedule=study_schedule(self._study))
        self._say(f"going on after round {len(fit.history)}")
        return replace(fit, server=ledger.readmit(fit.server))

    def _opened(self, algorithm: Algorithm, names: Sequence[str]) -> Fit:
        schedule, everybody = study_schedule(self._study), [*names, *self._own_rows(algorithm)]
        held = self._study.algorithm.held_by_clients
        server = training.open_federation(algorithm, schedule, everybody, self._study.run.seed, held_by_clients=held)
        return Fit(algorithm, server, [], "rounds", schedule)

    def _own_rows(self, algorithm: Any) -> dict[str, Any]:
        return {} if isinstance(algorithm.model, LatentModel) else algorithm.model.server_entries()

    def _engine(
        self, algorithm: Algorithm, setting: RunConfig, states: Mapping[str, ClientState] | None = None
    ) -> NetworkEngine:
        rows = self._own_rows(algorithm)
        held = self._study.algorithm.held_by_clients and not setting.initialising
        seed = self._study.run.seed
        own = LocalEngine(algorithm, rows, seed=seed, states=states, held_by_clients=held) if rows else None
        least = self._manner.min_clients or 1
        limits = None if setting.initialising else ServerBounds(self._study, setting.scaling, algorithm)
        return NetworkEngine(
            algorithm, self._clientele, setting, least=least, own=own, own_names=list(rows), bounds=limits
        )

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


def server_log(directory: str | os.PathLike[str]) -> Path:
    """Where a server writes what it does."""
    return Path(directory) / "server.log"
