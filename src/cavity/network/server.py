"""A study over a network, at the server: from the first connection of a client to sending the results.

The run's directory has everything that must survive a restart: the checkpoint of the ledger, written before every
message and after every reply; the scaling of columns; the start of the method, if it has an initialisation; the list of
withdrawn clients. A server that is restarted with the same directory resumes the run.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cavity import ledger, training
from cavity.core import Algorithm
from cavity.core.client_data import owned_rows
from cavity.core.intervals import DEFAULT_LEVEL
from cavity.core.messages import ClientState, ServerState
from cavity.errors import CavityError
from cavity.evaluation.evidence import closing_exchange, has_evidence
from cavity.fit import run
from cavity.fit.files import saved
from cavity.fit.fit import Fit
from cavity.fit.method import marginal_or_none
from cavity.io.checkpoints import RunDirectory, write_atomically
from cavity.network.client_results import FILES as RESULT_FILES
from cavity.network.engine import NetworkEngine
from cavity.network.limits import ServerBounds
from cavity.network.membership import Members
from cavity.network.protocol import Kind, RunConfig, Sign, Verify, unsigned
from cavity.network.run_directory import Value, write_status
from cavity.network.session import Session, SessionConfig
from cavity.network.setup import START, Setup
from cavity.network.study_session import check_for_network, foreign_types, identity_of, largest_messages
from cavity.network.transport import Transport
from cavity.simulation.local import LocalEngine
from cavity.study.building import study_algorithm, study_schedule
from cavity.study.report_facts import study_facts
from cavity.study.run import REPORT_PARTS, open_run, write_results
from cavity.study.schema import Study
from cavity.training import Observer, Record, Stopping

RUN = "run.txt"
RESULTS_SECONDS = 60.0  # that clients have to receive the results


@dataclass(frozen=True)
class ServerConfig:
    """How a server runs a study.

    Attributes:
        min_clients: start with so many clients, and pause while there are fewer; None waits for all to start, and for
            one to continue.
        round_timeout: seconds that a client has to reply.
        level: the probability of the intervals in the results.
        report: whether to write the report.
        sign: signs what the server sends.
        verify: client -> the check of its signature; None if nothing is signed.
        notify: called with lines about the progress.
        watch: called after every round with the algorithm and the server's state.
    """

    min_clients: int | None = None
    round_timeout: float = 300.0
    level: float = DEFAULT_LEVEL
    report: bool = True
    sign: Sign = unsigned
    verify: dict[str, Verify] | None = None
    notify: Callable[[str], None] = lambda line: None
    watch: Callable[[Algorithm, ServerState], None] | None = None


def run_id(directory: Path) -> str:
    """The identifier of the run in this directory; created if missing."""
    file = directory / RUN
    return file.read_text() if file.exists() else new_run(directory)


def new_run(directory: Path) -> str:
    """Write a new random identifier."""
    name = uuid.uuid4().hex
    write_atomically(directory / RUN, name.encode())
    return name


class StudyServer:
    """Runs one study over a transport.

    Args:
        study: the agreed study.
        text: its file.
        directory: of the run; an interrupted run is resumed.
        transport: carries the messages.
        config: how the server runs.
        reopen: called when the transport is lost.
        observers: called after every round with its record and the server's state.
        clock: the time in seconds.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        study: Study,
        text: str,
        directory: Path,
        transport: Transport,
        config: ServerConfig,
        *,
        reopen: Callable[[], None] = lambda: None,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        check_for_network(study)
        most = len(study.clients)
        if config.min_clients is not None and not 1 <= config.min_clients <= most:
            raise CavityError(f"--min-clients must be between 1 and {most}, not {config.min_clients}")
        self._study, self._directory, self._config, self._observers = study, directory, config, observers
        open_run(directory, study, text, resume=self._resuming)
        session_config = SessionConfig(
            identity_of(study),
            run_id(directory),
            study.clients,
            config.sign,
            config.verify,
            foreign_types(study),
            config.round_timeout,
            largest_message=largest_messages(study)[0],
        )
        self._status: dict[str, Value] = {"state": "waiting"}
        self._run_config: RunConfig | None = None
        self._rows: dict[str, int] = {}
        self._session = Session(
            transport,
            session_config,
            reopen=reopen,
            interrupted=lambda: self._members.interrupted,
            notify=self._notify,
            clock=clock,
            sleep=sleep,
        )
        self._members = Members(study, directory, self._session, self._notify)

    def run(self) -> Fit | None:
        """Run the study to its end; None if it was stopped before the first round."""
        while (fit := self._one_run()) is not None and fit.stopped == "asked" and not self._members.stopping:
            self._restart()
        if self._members.stopping:
            self._members.stopped()
            self._notify("stopped; restart the server to resume", state="stopped")
        elif fit is not None:
            facts = study_facts(self._study, fit, self._config.level, rows=self._rows)
            write_results(fit, self._directory, self._config.level, facts, report=self._config.report)
            missing = fit.server.clients.set_aside
            lacking = f"; the data of {', '.join(missing)} are missing or incomplete" if missing else ""
            self._notify(f"done after {len(fit.history)} rounds: {fit.stopped}{lacking}", state="done")
            self._send_results(fit)
        return fit

    def _one_run(self) -> Fit | None:
        """One run, from waiting for clients to the last round. `stopped` is "asked" if the run has to be restarted."""
        setup = Setup(
            self._study,
            self._directory,
            self._session,
            self._members,
            gather=self._gather,
            engine=self._engine,
            notify=self._notify,
        )
        self._gather()
        run_config = None if self._members.stopping else setup.run_config()
        if run_config is None:
            return None
        self._run_config, self._rows = run_config, setup.rows
        algorithm = study_algorithm(self._study, run_config.scaling)
        stage = algorithm.initialisation
        algorithm = algorithm if stage is None or run_config.start is None else stage.start(run_config.start)
        fit = self._resumed(algorithm) if self._resuming else self._opened(algorithm, setup.names)
        engine = self._engine(algorithm, run_config, fit.client_states)
        self._write_status(state="running")
        try:
            return self._closed(self._rounds(fit, engine), engine)
        finally:
            engine.close()

    def _closed(self, fit: Fit, engine: NetworkEngine) -> Fit:
        """The fit with its evidence, from one more exchange; unchanged if it has none, or if the run continues."""
        if fit.stopped == "asked" or not has_evidence(fit.algorithm):
            return fit

        def written(server: ServerState) -> None:
            self._write(replace(fit, server=server, client_states=engine.client_states()))

        server, found = closing_exchange(fit.algorithm, engine, fit.server, written)
        fit = replace(fit, server=server, closing=(server.version, found), client_states=engine.client_states())
        self._write(fit)
        return fit

    def _restart(self) -> None:
        """Start a new run: messages under way belong to the old one, and earlier replies do not count."""
        self._session.config = replace(self._session.config, run=new_run(self._directory))
        RunDirectory(self._directory).clear()
        (self._directory / START).unlink(missing_ok=True)
        self._notify("restarting the run")

    def _gather(self) -> int:
        """Wait for the clients that are needed to start; how many these are. A client that leaves is not waited for."""
        while True:
            least = self._members.least(self._config.min_clients)
            found = self._session.wait_for(self._members.allowed, least)
            if len(found) >= least or self._members.stopping or (self._resuming and self._members.interrupted):
                return least
            self._members.withdraw_early()

    def _rounds(self, fit: Fit, engine: NetworkEngine) -> Fit:
        """Rounds until the end, or until a restart is needed; each change of members allows as many rounds again."""
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
            observers=[self._after_round, *self._observers, *self._watchers(fit.algorithm)],
            checkpoint=checkpoint,
            checkpoint_seconds=0.0,
            write_ahead=True,
        )
        return replace(fit, server=server, history=history, stopped=stopped, client_states=engine.client_states())

    def _watchers(self, algorithm: Algorithm) -> list[Observer]:
        watch = self._config.watch
        return [] if watch is None else [lambda record, server: watch(algorithm, server)]

    def _write(self, fit: Fit) -> None:
        RunDirectory(self._directory).write(saved(fit), fit.history)

    def _after_round(self, record: Record, server: ServerState) -> None:
        number, gap, tolerance = record["round"], record["gap"], self._study.run.tolerance
        shown = "" if gap != gap else f"{gap:.1e}"
        self._notify(f"round {number}" + (f": change {shown} nats" if shown else ""), round=number, gap=shown)
        if (missing := record.get("missing", [])) and missing != self._status.get("missing"):
            self._notify(f"set aside after repeated refusals: {', '.join(missing)}", missing=missing)
        members = [name for name in server.active if name in self._study.clients]
        connected = self._session.connected() & set(members)
        settled = all(server.gaps[name] < tolerance for name in connected)
        if settled and len(connected) < len(members) and not gap < tolerance:
            # only the missing clients may still change the posterior; rounds without them would be wasted
            self._session.wait_for(members, len(members))

    @property
    def _resuming(self) -> bool:
        return RunDirectory(self._directory).has_checkpoint

    def _resumed(self, algorithm: Algorithm) -> Fit:
        fit = run.load(self._directory, algorithm=algorithm, schedule=study_schedule(self._study))
        self._notify(f"resuming after round {len(fit.history)}")
        return replace(fit, server=ledger.readmit(fit.server))

    def _opened(self, algorithm: Algorithm, names: Sequence[str]) -> Fit:
        schedule, everyone = study_schedule(self._study), [*names, *owned_rows(algorithm.model)]
        held = self._study.algorithm.held_by_clients
        server = training.open_federation(algorithm, schedule, everyone, self._study.run.seed, held_by_clients=held)
        return Fit(algorithm, server, [], "rounds", schedule)

    def _engine(
        self, algorithm: Algorithm, run_config: RunConfig, states: Mapping[str, ClientState] | None = None
    ) -> NetworkEngine:
        rows = owned_rows(algorithm.model)
        held = self._study.algorithm.held_by_clients and not run_config.initialising
        seed = self._study.run.seed
        own = LocalEngine(algorithm, rows, seed=seed, states=states, held_by_clients=held) if rows else None
        least = self._config.min_clients or 1
        limits = None if run_config.initialising else ServerBounds(self._study, run_config.scaling, algorithm)
        return NetworkEngine(
            algorithm, self._session, run_config, least=least, own=own, own_names=list(rows), bounds=limits
        )

    def _send_results(self, fit: Fit) -> None:
        """Send the results to all connected clients, with what they need for results of their own."""
        files = {
            name: np.frombuffer((self._directory / name).read_bytes(), np.uint8)
            for name in (*RESULT_FILES, REPORT_PARTS)
            if (self._directory / name).exists()
        }
        body = {"files": files}
        if marginal_or_none(fit.algorithm) is not None:
            body |= {"posterior": fit.posterior, "run_config": self._run_config}
        connected = sorted(self._session.connected())
        received = self._session.ask_all(Kind.END, connected, body, RESULTS_SECONDS)
        if lacking := [name for name in connected if name not in received]:
            self._notify(f"the results did not reach {', '.join(lacking)}; send them the files of the run's folder")

    def _notify(self, line: str, **values: Value) -> None:
        self._config.notify(line)
        self._write_status(line=line, **values)

    def _write_status(self, **values: Value) -> None:
        self._status |= values
        connected = sorted(self._session.addresses)
        write_status(self._directory, **self._status, connected=connected, study=self._study.id)


def server_log(directory: str | os.PathLike[str]) -> Path:
    """The log file of a server."""
    return Path(directory) / "server.log"
