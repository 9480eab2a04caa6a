"""The targets of the fuzzer: a server, a client, and the readers of files."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cavity
from cavity import ledger
from cavity.core import Engine
from cavity.core.messages import ClientState, ClientUpdate, Pending, Reply, Report, ServerState
from cavity.errors import CheckpointError
from cavity.io import serialization
from cavity.io.checkpoints import CHECKPOINT, read_tree
from cavity.network import worker as worker_module
from cavity.network.client import site_of
from cavity.network.client_state import ClientStore, SentLog
from cavity.network.engine import Awaited, NetworkEngine
from cavity.network.guard import Guard
from cavity.network.protocol import Envelope, Kind, RunConfig, encode
from cavity.network.session import Session, SessionConfig
from cavity.network.study_session import identity_of, largest_messages
from cavity.network.transport import Delivery
from cavity.network.worker import Worker
from cavity.study import parse_study
from cavity.study.building import scaling_of, study_algorithm, sums
from cavity.study.run import run_study
from cavity.study.scaling import out_of_proportion, reason_to_refuse, scaling_from
from cavity.study.table import as_table
from tests import fuzzing
from tests.fuzzing import Parts
from tests.simulated_transport import SimulatedTransport

STUDY = """\
name = "A line"
id = "line-1"
clients = ["leeds", "york"]
scaling = "federated"
[model]
family = "linear"
formula = "y ~ x + z"
noise_sd = 0.7
[columns.y]
type = "number"
[columns.x]
type = "number"
[columns.z]
type = "number"
[run]
rounds = 3
"""
RECEIVED_EVERY = 20  # one in so many accepted replies is passed to the ledger, which takes longer


class Escaped(Exception):
    """An exception that is not a refusal."""


def tables():
    rng = np.random.default_rng(0)
    return {name: as_table(dict(zip("xyz", rng.normal(size=(3, 12)), strict=True))) for name in ("leeds", "york")}


class Receivers:
    """A server and a client of one study, with a valid message of every kind.

    Args:
        folder: for the state of the client.
    """

    def __init__(self, folder: Path):
        self.folder, self.study, self.tables = folder, parse_study(STUDY), tables()
        self.scaling = scaling_of(self.study, list(self.tables.values()))
        self.totals = sums(self.study, self.tables["york"])
        self.algorithm = study_algorithm(self.study, self.scaling)
        names = list(self.study.clients)
        self.state, messages = ledger.dispatch(self.algorithm, ledger.open_ledger(self.algorithm, names), names)
        self.message = messages[0]
        delta = ledger.to_host(self.algorithm.server.entries.initial())
        delta = replace(delta, precision_mean=delta.precision_mean + 0.25, precision=delta.precision + np.eye(3))
        report = Report(np.asarray(0.5), np.asarray(-3.0), np.asarray(4), np.asarray(True))
        self.reply = Reply("leeds", self.message.version, self.message.sequence, ClientUpdate(delta, report))
        self.session_config = SessionConfig(
            identity_of(self.study),
            "run",
            self.study.clients,
            fuzzing.sign,
            dict.fromkeys(names, fuzzing.verify),
            largest_message=largest_messages(self.study)[0],
        )
        self.session = Session(SimulatedTransport({}), self.session_config)
        self.engine = NetworkEngine(self.algorithm, self.session, RunConfig(self.scaling))
        self.worker = self._worker(folder)
        self.num_accepted = 0
        settings = {"settings": self.session_config.identity.settings}
        work = {"message": self.message, "run_config": RunConfig(self.scaling), "notice": ""}
        files = {"summary.csv": np.frombuffer(b"parameter,mean\n", np.uint8)}
        self.to_server = {
            "greeting": self._envelope(Kind.HERE, settings),
            "reply": self._envelope(Kind.REPLY, {"reply": self.reply}),
            "totals": self._envelope(Kind.TOTALS, {"sums": sums(self.study, self.tables["leeds"])}),
            "refusal": self._envelope(Kind.REFUSAL, {"reason": "no time"}),
            "leaving": self._envelope(Kind.LEAVING, {}),
        }
        self.to_client = {
            "hello": self._envelope(Kind.HELLO, {**settings, "notice": ""}),
            "work": self._envelope(Kind.WORK, work),
            "sums": self._envelope(Kind.SUMS, {"scaling": None}),
            "sums of the matrix": self._envelope(Kind.SUMS, {"scaling": replace(self.scaling, design=())}),
            "no": self._envelope(Kind.NO, {"reason": "no room"}),
            "end": self._envelope(Kind.END, {"files": files}),
        }

    def _envelope(self, kind, body):
        envelope = Envelope(kind.value, self.session_config.identity.hash, "run", "leeds", body)
        content = encode(envelope, lambda content: b"")
        return Parts.of(content[content.index(b"PK\x03\x04") :])

    def _worker(self, folder):
        site = site_of(self.study, "leeds", self.tables["leeds"], folder, lambda line: None)
        site = replace(site, finish=lambda files, posterior, run_config: None)
        worker = Worker(
            site, ClientStore(folder), NotWritten(folder / "sent.jsonl"), sign=fuzzing.sign, verify=fuzzing.verify
        )
        worker.guard = forgetful(folder, site.identity.hash)
        return worker

    def served(self, kind: str, content: bytes, name: str = "leeds") -> bool:
        """Pass a message to the server; returns whether it was accepted."""
        data, self.session.addresses, self.session.leaving = fuzzing.signed(name, content), {}, set()
        delivery = Delivery("1", data)
        if kind == "greeting":
            self.session.greeted("address", "leeds", delivery)
            return bool(self.session.addresses)
        if kind == "totals":
            envelope = self.session.response_of("leeds", delivery)
            found = None if envelope is None else envelope.body.get("sums")
            if reason_to_refuse(found, self.study.federated_columns) is not None:
                return False
            if out_of_proportion({"leeds": found, "york": self.totals}):
                return False
            scaling_from([found, self.totals])
            return True
        reply = self.engine.reply_of(Awaited("leeds", 0.0, self.message), delivery)
        if reply is not None:
            report = reply.update.report
            float(report.gap), float(report.free_energy), int(report.steps), bool(report.converged)
            self.num_accepted += 1
            if self.num_accepted % RECEIVED_EVERY == 1:
                ledger.receive(self.algorithm, self.state, [reply])
        return reply is not None

    def answered(self, content: bytes, name: str = "leeds") -> bool:
        """Pass a message to the client; returns whether the reply is not a refusal."""
        self.worker.over, self.worker.guard = "", forgetful(self.folder, self.session_config.identity.hash)
        return b'"refusal"' not in self.worker.handle(fuzzing.signed(name, content))


def forgetful(folder, study):
    """A guard that stores nothing, so that it treats every message as the first."""
    return Guard(folder, study, write=lambda file, content: None)


class NotWritten(SentLog):
    """In place of the log of sent messages."""

    def note(self, kind, content, **details):
        pass


class Solved(Engine):
    """In place of the engine of a client, whose solves take a thousand times as long as the checks tested here."""

    def __init__(self, algorithm, clients, **options):
        (self._name,), self._algorithm = clients, algorithm

    def submit(self, message):
        self._message = message

    def collect(self, num_replies):
        message, delta = self._message, ledger.to_host(self._algorithm.server.entries.initial())
        return [Reply(self._name, message.version, message.sequence, ClientUpdate(delta, Report(0.0, 0.0, 1, True)))]

    def client_states(self):
        return {self._name: ClientState()}


def without_solves(patch: pytest.MonkeyPatch) -> None:
    """Replace the solves of the client, and raise its unexpected exceptions, which it would only log."""

    def escaped(*args):
        raise Escaped

    patch.setattr(worker_module, "LocalEngine", Solved)
    patch.setattr(worker_module.logger, "exception", escaped)


class Files:
    """Readers of files, with a valid file of every kind.

    Args:
        folder: for the file that is read.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        study = parse_study(STUDY)
        fit = run_study(study, tables())
        fit.save(folder / "fit.npz")
        model = cavity.models.logistic_regression(["age"], prior_scale=1.0)
        rows = np.array([[0.1], [1.0], [-1.0], [0.3]]), np.array([0.0, 1.0, 0.0, 1.0])
        clients = {"leeds": rows, "york": rows}
        run = {"directory": folder / "run", "factors": "clients", "rounds": 2}
        cavity.run(cavity.PVI(model), clients, schedule=cavity.schedules.Sequential(), **run)
        state = ClientState(
            np.arange(4.0), None, 1, Pending(2, 2, ClientUpdate(np.ones(3), Report(0.0, 0.0, 1, True)), None)
        )
        totals = {name: sums(study, table) for name, table in tables().items()}
        self.columns = study.federated_columns
        self.kinds = {
            "fit": Parts.of((folder / "fit.npz").read_bytes()),
            "checkpoint": Parts.of((folder / "run" / CHECKPOINT).read_bytes()),
            "client": Parts.of(serialization.to_bytes(state)),
            "sums": Parts.of(serialization.to_bytes(totals)),
        }
        self._store = ClientStore(folder)
        (folder / "runs" / "run").mkdir(parents=True, exist_ok=True)

    def read(self, kind: str, content: bytes) -> bool:
        """Whether a file with this content is accepted; any exception other than CheckpointError is raised."""
        try:
            if kind == "client":
                (self.folder / "runs" / "run" / "00000001.npz").write_bytes(content)
                return self._store.read("run") is not None
            path = self.folder / "changed.npz"
            path.write_bytes(content)
            if kind == "sums":
                known = read_tree(path)
                return isinstance(known, dict) and not any(reason_to_refuse(s, self.columns) for s in known.values())
            fit = cavity.load(path)
            assert isinstance(fit.server, ServerState)
            return True
        except CheckpointError:
            return False


def play_messages(receivers: Receivers, rng: random.Random, seen: Counter) -> None:
    """Send one changed message to its receiver."""
    if rng.random() < 0.7:
        kind = rng.choices(list(receivers.to_server), (3, 6, 3, 1, 1))[0]
        accepted = receivers.served(kind, fuzzing.changed(receivers.to_server[kind], rng))
    else:
        kind = rng.choices(list(receivers.to_client), (2, 6, 1, 2, 1, 1))[0]
        accepted = receivers.answered(fuzzing.changed(receivers.to_client[kind], rng))
    seen[f"{kind} {'accepted' if accepted else 'refused'}"] += 1


def play_files(files: Files, rng: random.Random, seen: Counter) -> None:
    """Give one changed file to its reader."""
    kind = rng.choices(list(files.kinds), (4, 4, 1, 1))[0]
    accepted = files.read(kind, fuzzing.changed(files.kinds[kind], rng))
    seen[f"{kind} {'accepted' if accepted else 'refused'}"] += 1
