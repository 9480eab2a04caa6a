"""Protocol, session and server without a network: encoding, refusals, client state, and studies with faults."""

import itertools
import json
import random
import shutil
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest

import cavity
from cavity import ledger, training
from cavity.algorithms.sfvi_avg import SFVIAvg
from cavity.core.messages import (
    Acknowledgement,
    ClientInput,
    ClientState,
    ClientUpdate,
    Message,
    Pending,
    Reply,
    Report,
)
from cavity.distributions import FullGaussian
from cavity.errors import CavityError, CheckpointError, ProtocolError, StudyError
from cavity.evaluation import evidence
from cavity.io.checkpoints import RunDirectory
from cavity.ledger import is_proper
from cavity.models.neural.hierarchical_bnn import hierarchical_bnn
from cavity.network import client, protocol, study_session
from cavity.network.client import preview, site_of
from cavity.network.client_state import ClientStore, SentLog
from cavity.network.protocol import Envelope, Identity, Kind, RunConfig, check_message, check_reply, decode, encode
from cavity.network.run_directory import STOP, WITHDRAW, Requests, only_one, read_status
from cavity.network.server import ServerConfig, StudyServer
from cavity.network.session import Session, SessionConfig
from cavity.network.worker import Worker
from cavity.simulation.local import LocalEngine
from cavity.study import parse_study
from cavity.study.building import client_data, scaling_of, study_algorithm
from cavity.study.run import run_study
from cavity.study.table import as_table
from tests import own_models, scenarios
from tests.contracts.faults import check_survives_faults, distance
from tests.marks import exhaustive, thorough
from tests.simulated_transport import Faults, SimulatedTransport
from tests.studies import gap

pytestmark = pytest.mark.usefixtures("quick_to_compile")

STUDY = """\
name = "A line"
id = "line-1"
scaling = "none"
clients = ["leeds", "york", "hull"]

[model]
family = "linear"
formula = "y ~ x"
noise_sd = 0.7

[columns.y]
type = "number"

[columns.x]
type = "number"

[prior]
scale = 10
intercept_scale = 10

[run]
tolerance = 1e-18
rounds = 60
"""
PRIOR = "[prior]\nscale = 10\nintercept_scale = 10\n"
FEDERATED = STUDY.replace('scaling = "none"', 'scaling = "federated"').replace(PRIOR, "")
DAMPED = "\n[algorithm]\ndamping = { fixed = 0.5 }\n"
SLOW = STUDY + DAMPED


def tables():
    rng = np.random.default_rng(0)
    x = {name: rng.normal(i, 1, 12 + i) for i, name in enumerate(("leeds", "york", "hull"))}
    return {name: as_table({"x": v, "y": 1.5 * v - 0.3 + 0.7 * rng.normal(size=len(v))}) for name, v in x.items()}


def exchange():
    """A method, one message of it, and a client's reply."""
    x, y = scenarios.linear(24, 1)
    clients = scenarios.clients(x, y, scenarios.homogeneous(24, 2))
    algorithm = cavity.PVI(cavity.models.linear_regression(1, noise_sd=0.7))
    data = cavity.core.client_data.prepare_clients(algorithm.model, clients)
    name = next(iter(data))
    _, (message,) = ledger.dispatch(algorithm, ledger.open_ledger(algorithm, list(data)), [name])
    engine = LocalEngine(algorithm, data)
    engine.submit(message)
    return algorithm, message, engine.collect(1)[0]


def averaging():
    """A method without entries."""
    return SFVIAvg(hierarchical_bnn(3, 2, 2), total=2, num_rounds=1, local_steps=1)


def envelope_with(body, kind=Kind.WORK):
    return Envelope(kind.value, "hash", "run", "leeds", body)


class TestEncoding:
    def test_bytes_and_back(self):
        algorithm, message, reply = exchange()
        run_config = RunConfig(cavity.study.Scaling())
        sent = envelope_with({"message": message, "run_config": run_config, "reply": reply})
        got = decode(encode(sent, protocol.unsigned), protocol.unverified)
        assert (got.kind, got.study, got.run, got.client) == ("work", "hash", "run", "leeds")
        assert distance(got.body["message"].inputs, message.inputs) == 0.0
        assert distance(got.body["reply"].update, reply.update) == 0.0
        assert got.body["run_config"].scaling == run_config.scaling
        check_message(algorithm, got.body["message"], message.client)
        check_reply(algorithm, got.body["reply"], message)

    def test_any_changed_byte_is_noticed(self):
        content = encode(envelope_with({}), protocol.unsigned)
        for place in range(len(content)):
            changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
            with pytest.raises(ProtocolError):
                decode(changed, protocol.unverified)
            with pytest.raises(ProtocolError):
                decode(content[:place], protocol.unverified)

    def test_the_signature_of_another_key_is_refused(self):
        signed = encode(envelope_with({}), lambda content: b"mine")
        assert decode(signed, lambda content, signature: signature == b"mine").client == "leeds"
        with pytest.raises(ProtocolError, match="signature"):
            decode(signed, lambda content, signature: signature == b"yours")

    def test_another_version_is_refused(self):
        content = bytearray(encode(envelope_with({}), protocol.unsigned))
        content[len(protocol.MAGIC) - 1] += 1
        with pytest.raises(ProtocolError, match="another version of Cavity"):
            decode(bytes(content), protocol.unverified)

    def test_a_function_cannot_be_sent(self):
        with pytest.raises(TypeError, match="cannot be written"):
            encode(envelope_with({"f": print}), protocol.unsigned)

    @pytest.mark.parametrize("key", ["message", "reply", "run_config", "notice", "reason", "settings", "files"])
    def test_a_part_of_another_type_is_refused(self, key):
        content = encode(envelope_with({key: (1.0, 2.0)}), protocol.unsigned)
        with pytest.raises(ProtocolError, match=f"its {key} is a tuple"):
            decode(content, protocol.unverified)

    def test_an_update_without_a_report_is_refused(self):
        _, _, reply = exchange()
        bad = replace(reply, update=without_report(reply.update))
        content = encode(envelope_with({"reply": bad}, Kind.REPLY), protocol.unsigned)
        with pytest.raises(ProtocolError, match="NoneType as report"):
            decode(content, protocol.unverified)


def changed(reply, **parts):
    return replace(reply, update=replace(reply.update, **parts))


def reported(reply, **numbers):
    return changed(reply, report=replace(reply.update.report, **numbers))


def without_report(update):
    """An update of a client that does not check its types."""
    other = object.__new__(ClientUpdate)
    object.__setattr__(other, "delta", update.delta)
    object.__setattr__(other, "report", None)
    return other


BAD_REPLIES = {
    "NaN": lambda r: changed(r, delta=jax.tree.map(lambda x: np.full_like(x, np.nan), r.update.delta)),
    "bound": lambda r: changed(r, delta=jax.tree.map(lambda x: np.full_like(x, 1e16), r.update.delta)),
    "shape": lambda r: changed(r, delta=jax.tree.map(lambda x: np.zeros((3, *x.shape)), r.update.delta)),
    "an array of int": lambda r: changed(r, delta=jax.tree.map(lambda x: x.astype(int), r.update.delta)),
    "structure": lambda r: changed(r, delta=(1.0,)),
    "another message": lambda r: replace(r, sequence=r.sequence + 1),
    "replies to another": lambda r: replace(r, client="york"),
    "counts": lambda r: replace(r, version=-1),
    "gap is nan": lambda r: reported(r, gap=np.nan),
    "gap is inf": lambda r: reported(r, gap=np.inf),
    "gap is -1": lambda r: reported(r, gap=-1.0),
    "free energy is inf": lambda r: reported(r, free_energy=np.inf),
    "free energy is -inf": lambda r: reported(r, free_energy=np.float32(-np.inf)),
    "free energy is 1e\\+300": lambda r: reported(r, free_energy=1e300),
    "steps is nan": lambda r: reported(r, steps=np.nan),
    "steps is inf": lambda r: reported(r, steps=np.asarray(np.inf)),
    "steps is -1": lambda r: reported(r, steps=-1),
    "steps is 1.5": lambda r: reported(r, steps=1.5),
    "steps is 1e\\+18": lambda r: reported(r, steps=10**18),
    "convergence is 2": lambda r: reported(r, converged=2),
    "convergence is nan": lambda r: reported(r, converged=np.nan),
    "four numbers": lambda r: reported(r, steps=np.zeros(2)),
    "not four numbers": lambda r: reported(r, free_energy=10**400),
    "is not four numbers": lambda r: reported(r, gap="0.5"),
    "no reply": lambda r: None,
}


class TestRefusals:
    @pytest.mark.parametrize("reason", BAD_REPLIES)
    def test_bad_replies(self, reason):
        algorithm, message, reply = exchange()
        check_reply(algorithm, reply, message)
        with pytest.raises(ProtocolError, match=reason):
            check_reply(algorithm, BAD_REPLIES[reason](reply), message)

    def test_a_free_energy_that_is_not_defined(self):
        """A method with entries may leave it out (a divergence other than KL)."""
        algorithm, message, reply = exchange()
        check_reply(algorithm, reported(reply, free_energy=np.nan), message)

    def test_a_gap_below_zero_by_rounding(self):
        algorithm, message, reply = exchange()
        check_reply(algorithm, reported(reply, gap=-1e-12), message)

    def test_a_gap_before_the_posterior_is_proper(self):
        """With a flat prior it is infinite until enough clients have replied."""
        algorithm, message, reply = exchange()
        flat = jax.tree.map(np.zeros_like, message.inputs.posterior)
        check_reply(
            algorithm, reported(reply, gap=np.inf), replace(message, inputs=replace(message.inputs, posterior=flat))
        )

    def test_a_method_without_entries_needs_finite_free_energies(self):
        """It averages them; one that is not finite would spoil the replies of all clients."""
        algorithm = averaging()
        report = Report(np.asarray(np.nan), np.asarray(-2.0), np.asarray(5), np.asarray(True))
        prior = ledger.to_host(algorithm.prior)
        message = Message("leeds", 1, 1, Acknowledgement(), ClientInput(prior, None))
        reply = Reply("leeds", 1, 1, ClientUpdate(prior, report))
        check_reply(algorithm, reply, message)
        for value in (np.nan, np.inf, -np.inf):
            with pytest.raises(ProtocolError, match="free energy"):
                check_reply(algorithm, reported(reply, free_energy=value), message)
        with pytest.raises(ProtocolError, match="gap is -3"):
            check_reply(algorithm, reported(reply, gap=-3.0), message)

    def test_bad_messages(self):
        algorithm, message, _ = exchange()
        with pytest.raises(ProtocolError, match="no message for this client"):
            check_message(algorithm, message, "another client")
        wide = cavity.PVI(cavity.models.linear_regression(2, noise_sd=0.7))
        with pytest.raises(ProtocolError, match="the posterior has an array"):
            check_message(wide, message, message.client)

    def test_sfvi_does_not_suit_a_network(self):
        study = parse_study(STUDY)
        study = replace(study, algorithm=replace(study.algorithm, method="sfvi"))
        with pytest.raises(StudyError, match="sfvi-avg"):
            study_session.check_for_network(study)


def state_with(number):
    update = ClientUpdate(np.full(3, float(number)), Report(0.0, 0.0, 1, True))
    return ClientState(local=np.arange(4.0), pending=Pending(number, number, update, np.full(4, float(number))))


class TestClientStore:
    def test_the_last_two_are_kept(self, tmp_path):
        store = ClientStore(tmp_path)
        assert store.read("run") is None
        for number in range(1, 6):
            store.write("run", state_with(number))
            assert store.read("run").pending.sequence == number
            assert len(list((tmp_path / "runs" / "run").iterdir())) == min(number, 2)
        assert store.read("another-run") is None

    def test_a_damaged_one_falls_back_to_the_one_before(self, tmp_path, caplog):
        store = ClientStore(tmp_path)
        for number in (1, 2):
            store.write("run", state_with(number))
        newest = max((tmp_path / "runs" / "run").iterdir())
        newest.write_bytes(newest.read_bytes()[:-20])
        assert store.read("run").pending.sequence == 1
        assert "using the state before it" in caplog.text
        store.write("run", state_with(3))
        assert store.read("run").pending.sequence == 3

    @pytest.mark.parametrize("moment", ["fsync", "replace"])
    def test_a_crash_while_writing_leaves_the_old_one(self, tmp_path, monkeypatch, moment):
        store = ClientStore(tmp_path)
        store.write("run", state_with(1))
        with monkeypatch.context() as patch:
            patch.setattr(f"os.{moment}", lambda *args: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                store.write("run", state_with(2))
        assert store.read("run").pending.sequence == 1

    @pytest.mark.parametrize("run", ["..", "a/b", "", "x" * 65])
    def test_the_identifier_of_a_run_is_not_a_path(self, tmp_path, run):
        with pytest.raises(CheckpointError):
            ClientStore(tmp_path).write(run, state_with(1))

    def test_the_log_of_what_was_sent(self, tmp_path):
        SentLog(tmp_path / "sent.jsonl").note("reply", b"four", version=3)
        (line,) = [json.loads(line) for line in (tmp_path / "sent.jsonl").read_text().splitlines()]
        assert (line["kind"], line["version"], line["bytes"], len(line["sha256"])) == ("reply", 3, 4, 64)


class SimulatedStudy:
    """A study with its server's folder, its clients' folders, and a simulated transport between them."""

    def __init__(self, folder, text=STUDY, faults=None, seed=0, own_tables=None, **config):
        self.folder, self.text, self.tables = folder, text, own_tables or tables()
        self.study = parse_study(text, allow_models=[own_models.__name__])
        self.lines, self.config = [], config
        workers = {name: self.worker(name).handle for name in self.study.clients}
        self.transport = SimulatedTransport(workers, lambda name: self.worker(name).handle, faults or Faults(), seed)

    def worker(self, name, study=None, *, faulty=False, **options):
        """The worker of a client; a faulty one raises ZeroDivisionError when it has to work."""
        own = self.folder / name
        site = site_of(study or self.study, name, self.tables[name], own, self.lines.append)
        if faulty:
            site = replace(site, client_config=lambda run_config: 1 / 0)
        return Worker(site, ClientStore(own), SentLog(own / "sent.jsonl"), notify=self.lines.append, **options)

    def run(self, observer=lambda record, server: None, sleep=None):
        """Run the server to its end, with an observer of the rounds."""
        server = StudyServer(
            self.study,
            self.text,
            self.folder / "run",
            self.transport,
            ServerConfig(notify=self.lines.append, round_timeout=20.0, **{"report": False, **self.config}),
            observers=[observer],
            clock=self.transport.clock,
            sleep=sleep or self.transport.sleep,
        )
        return server.run()

    def alone(self, without=(), scaled_by=None):
        """The posterior of a run in one process, scaled by the rows of `scaled_by` (None: all)."""
        kept = tuple(name for name in self.study.clients if name not in without)
        scaling = scaling_of(self.study, [self.tables[name] for name in scaled_by or kept])
        algorithm = study_algorithm(self.study, scaling)
        clients = {name: client_data(self.study, self.tables[name], scaling) for name in kept}
        return cavity.run(algorithm, clients, rounds=60, tolerance=1e-18).posterior

    def whole(self):
        return run_study(self.study, self.tables)


class TestStudies:
    @pytest.mark.parametrize("text", [STUDY, FEDERATED], ids=["unscaled", "federated scaling"])
    def test_the_same_as_in_one_process(self, tmp_path, text):
        simulated = SimulatedStudy(tmp_path, text, level=0.8)
        fit = simulated.run()
        assert fit.converged
        assert gap(fit.posterior, simulated.alone()) < 1e-9
        results = (tmp_path / simulated.study.clients[0] / "results" / "summary.csv").read_text().splitlines()
        assert {line.rpartition(",")[2] for line in results[1:]} == {"0.8"}
        assert fit.history[-1]["round"] == len(run_study(simulated.study, simulated.tables).history)
        for name in simulated.study.clients:
            assert (tmp_path / name / "results" / "posterior.npz").read_bytes() == (
                tmp_path / "run" / "posterior.npz"
            ).read_bytes()
        status = read_status(tmp_path / "run")
        assert (status["state"], status["connected"]) == ("done", sorted(simulated.study.clients))

    @thorough
    def test_default_priors_with_a_client_whose_outcomes_are_all_alike(self, tmp_path, monkeypatch):
        """The scale is that of all rows (costs near 12,000 here); for it each client sends sums only."""
        costs = {
            name: {"x": t.columns["x"], "y": [12_000 + 3_000 * y for y in t.columns["y"]]}
            for name, t in tables().items()
        }
        costs["york"]["y"] = [12_000.0] * len(costs["york"]["y"])
        monkeypatch.setitem(globals(), "tables", lambda: {name: as_table(own) for name, own in costs.items()})
        text = FEDERATED.replace("noise_sd = 0.7\n", "").replace("1e-18", "1e-12")
        simulated = SimulatedStudy(tmp_path, text)
        fit = simulated.run()
        assert fit.converged
        assert gap(fit.posterior, simulated.whole().posterior) < 1e-6
        x, y = (np.concatenate([own[name] for own in costs.values()]) for name in "xy")
        estimate = fit.summary()["x"]
        assert abs(estimate.mean - np.polyfit(x, y, 1)[0]) < 0.1 * estimate.sd

    @thorough
    @pytest.mark.parametrize("how", ["far", "negative"])
    def test_a_reply_that_would_stop_the_others_is_refused(self, tmp_path, monkeypatch, how):
        """A posterior that clients would refuse, or a factor that cancels those of other clients."""
        text = FEDERATED.replace('family = "linear"', 'family = "logistic"').replace("noise_sd = 0.7\n", "")
        text = text.replace('[columns.y]\ntype = "number"', '[columns.y]\ntype = "boolean"').replace("1e-18", "1e-12")
        binary = {
            name: as_table({"x": table.columns["x"], "y": [float(y > 0) for y in table.columns["y"]]})
            for name, table in tables().items()
        }
        monkeypatch.setitem(globals(), "tables", lambda: binary)
        simulated = SimulatedStudy(tmp_path, text)
        workers = {name: simulated.worker(name).handle for name in simulated.study.clients}

        def hostile(content):
            envelope = decode(workers["york"](content), protocol.unverified)
            if envelope.kind != Kind.REPLY:
                return encode(envelope, protocol.unsigned)
            posterior = decode(content, protocol.unverified).body["message"].inputs.posterior
            reply, width = envelope.body["reply"], len(posterior.precision_mean)
            far = FullGaussian(np.full(width, 5e5), 1e4 * np.eye(width))
            delta = far if how == "far" else jax.tree.map(lambda leaf: -0.999 * np.asarray(leaf), posterior)
            changed = replace(reply, update=replace(reply.update, delta=delta))
            return encode(replace(envelope, body={"reply": changed}), protocol.unsigned)

        simulated.transport = SimulatedTransport(workers | {"york": hostile}, None, Faults(), 0)
        fit = simulated.run()
        assert fit.stopped == "tolerance"
        assert fit.server.clients.set_aside == ("york",)
        scaled_by = tuple(simulated.study.clients)
        assert gap(fit.posterior, simulated.alone(without=["york"], scaled_by=scaled_by)) < 1e-5

    @thorough
    def test_a_narrow_range_does_not_apply_to_scaled_columns(self, tmp_path, monkeypatch):
        """The columns of the matrix have the names of the predictors here, but sums in other units."""
        shares = {
            name: as_table(
                {"x": [1 / (1 + np.exp(-x)) for x in t.columns["x"]], "y": [float(y > 0) for y in t.columns["y"]]}
            )
            for name, t in tables().items()
        }
        monkeypatch.setitem(globals(), "tables", lambda: shares)
        text = FEDERATED.replace('family = "linear"', 'family = "logistic"').replace("noise_sd = 0.7\n", "")
        text = text.replace('[columns.y]\ntype = "number"', '[columns.y]\ntype = "boolean"').replace("1e-18", "1e-12")
        text = text.replace('[columns.x]\ntype = "number"', '[columns.x]\ntype = "number"\nrange = [0, 1]')
        simulated = SimulatedStudy(tmp_path, text)
        assert simulated.run().converged
        assert not any("are refused" in line for line in simulated.lines)

    @staticmethod
    def with_false_sums(tmp_path, monkeypatch, changed):
        """A study in which York first sends changed sums, twice, and then its own."""
        simulated, asked = SimulatedStudy(tmp_path, FEDERATED), []
        honest = client.sums

        def hostile(study, table):
            found = honest(study, table)
            if table is not simulated.tables["york"] or len(asked) >= 2:
                return found
            asked.append(found)
            return changed(found)

        monkeypatch.setattr(client, "sums", hostile)
        return simulated

    def test_more_rows_than_the_study_has_are_refused(self, tmp_path, monkeypatch):
        """With them no client would accept the scaling; the client is asked until it sends plausible sums."""

        def changed(found):
            times = 10**12 // int(found.num_rows)
            many = (times * found.num_rows, times * found.sum, times * found.sum_of_squares)
            return replace(found, num_rows=np.asarray(many[0]), sum=many[1], sum_of_squares=many[2])

        simulated = self.with_false_sums(tmp_path, monkeypatch, changed)
        fit = simulated.run()
        assert sum("york are refused: the number of rows must be a count" in line for line in simulated.lines) == 2
        assert gap(fit.posterior, simulated.alone()) < 1e-9

    def test_absurd_sums_of_one_client_do_not_end_the_server(self, tmp_path, monkeypatch):
        """Sums of numbers near 1e70, without a declared range. They are refused until it sends others."""

        def changed(found):
            n = float(found.num_rows)
            return replace(found, sum=np.full(2, 1e70 * n), sum_of_squares=np.full(2, 1e140 * n))

        simulated = self.with_false_sums(tmp_path, monkeypatch, changed)
        fit = simulated.run()
        assert sum("the sums of york are refused: its values of column 'x'" in line for line in simulated.lines) == 2
        assert gap(fit.posterior, simulated.alone()) < 1e-9

    @pytest.mark.parametrize("schedule", ['"sequential"', '"asynchronous"', "{ sampled-count = 2 }"])
    def test_schedules(self, tmp_path, schedule):
        simulated = SimulatedStudy(tmp_path, STUDY + f"schedule = {schedule}\n")
        assert gap(simulated.run().posterior, simulated.alone()) < 1e-8

    @pytest.mark.parametrize(
        "parts", ['schedule = "sequential"', 'schedule = "asynchronous"', '[algorithm]\nfactors = "clients"']
    )
    def test_the_evidence_at_the_end_is_that_of_the_final_posterior(self, tmp_path, parts):
        """From a closing exchange, of which nothing is applied; a restarted server repeats it."""
        simulated = SimulatedStudy(tmp_path, STUDY.replace("rounds = 60", "rounds = 2") + f"{parts}\n")
        fit = simulated.run()
        pooled = run_study(replace(simulated.study, run=replace(simulated.study.run, rounds=1)), simulated.tables)
        expected = evidence.bound(pooled.algorithm, fit.server.prior, fit.posterior, [pooled.clients])
        assert fit.log_evidence == pytest.approx(expected, abs=1e-9)
        assert (
            distance(
                fit.posterior, fit.algorithm.server.entries.rebuild(fit.server.prior, list(fit.server.entries.values()))
            )
            == 0.0
        )
        again = simulated.run()
        assert distance(again.posterior, fit.posterior) == 0.0
        assert again.log_evidence == fit.log_evidence
        assert len(again.history) == 2

    def test_no_evidence_without_a_client_at_the_end(self, tmp_path):
        simulated = SimulatedStudy(tmp_path, STUDY.replace("rounds = 60", "rounds = 2"))

        def without_york(record, state):
            if record["round"] == 2:  # the last one
                simulated.transport.workers["york"] = lambda content: b"?"

        fit = simulated.run(without_york)
        assert (tmp_path / "run" / "posterior.npz").exists()
        with pytest.raises(CavityError, match="not every client answered the closing exchange"):
            fit.log_evidence

    @pytest.mark.parametrize("seed", range(3))
    def test_clients_that_keep_their_own_factors(self, tmp_path, seed):
        """On their disks. They may crash, messages may be lost, and the server has only the product."""
        faults = Faults(drop=0.1, repeat=0.1, delay=0.05, client_crash=0.1)
        simulated = SimulatedStudy(tmp_path, STUDY + '[algorithm]\nfactors = "clients"\n', faults, seed)
        fit = simulated.run()
        assert set(fit.server.entries) == {ledger.JOINT}
        assert gap(fit.posterior, simulated.alone()) < 1e-8
        assert list((tmp_path / "leeds" / "runs").glob("*/*.npz"))
        assert simulated.transport.seen["client_crash"] > 0

    @thorough
    def test_a_factor_lost_with_a_clients_disk_is_not_counted_twice(self, tmp_path):
        """The client refuses with this reason; after its withdrawal the others restart."""
        simulated = SimulatedStudy(tmp_path, STUDY + '[algorithm]\nfactors = "clients"\ndamping = { fixed = 0.5 }\n')

        def after_round(record, state):
            if record["round"] == 3 and "york" in state.names:
                shutil.rmtree(tmp_path / "york" / "runs")
                simulated.transport.workers["york"] = simulated.worker("york").handle
            if record["round"] == 6:
                Requests(tmp_path / "run").put(WITHDRAW + "york")

        fit = simulated.run(after_round)
        assert any("the factor kept here is of reply" in line for line in simulated.lines)
        assert fit.server.names == ("leeds", "hull")
        assert gap(fit.posterior, simulated.alone(["york"])) < 1e-8

    def test_every_message_that_was_sent_is_logged(self, tmp_path):
        simulated = SimulatedStudy(tmp_path, FEDERATED)
        simulated.run()
        noted = [json.loads(line)["kind"] for line in (tmp_path / "leeds" / "sent.jsonl").read_text().splitlines()]
        assert noted[:3] == ["here", "totals", "totals"]  # of columns, then of the formula's matrix
        assert noted[-1] == "received"
        assert set(noted[3:-1]) == {"reply"}

    def test_another_version_of_the_study_is_refused_with_the_key_that_differs(self, tmp_path):
        simulated = SimulatedStudy(tmp_path, min_clients=2)
        other = parse_study(STUDY.replace("0.7", "0.8"))
        simulated.transport.workers["hull"] = simulated.worker("hull", other).handle
        fit = simulated.run()
        assert fit.server.names == ("leeds", "york")
        for who in ("'hull'", "the server"):
            text = f"{who} has another version of the study: it differs in model.noise_sd"
            assert any(text in line for line in simulated.lines)
        assert gap(fit.posterior, simulated.alone(["hull"])) < 1e-9

    def test_a_second_client_of_one_name_is_refused(self, tmp_path):
        simulated = SimulatedStudy(tmp_path)
        simulated.transport.knows = False
        two = [simulated.worker("leeds"), simulated.worker("leeds")]
        simulated.transport.workers |= {"leeds": two[0].handle, "elsewhere": two[1].handle}
        fit = simulated.run()
        assert {worker.over for worker in two} > {"done"}
        assert any("is already connected; a second one is refused" in worker.over for worker in two)
        assert gap(fit.posterior, simulated.alone()) < 1e-9

    def test_a_folder_is_for_one_client(self, tmp_path):
        refused = pytest.raises(CavityError, match="already running")
        with only_one(tmp_path, "a client"), refused, only_one(tmp_path, "a client"):
            raise AssertionError

    def test_a_refused_reply_is_reported_to_its_client_and_does_not_affect_others(self, tmp_path, monkeypatch):
        simulated = SimulatedStudy(tmp_path)
        poison, counter = simulated.transport.workers["york"], itertools.count()

        def poisoned(content):
            response = poison(content)
            envelope = decode(response, protocol.unverified)
            if envelope.kind == Kind.REPLY and next(counter) == 1:
                bad = BAD_REPLIES["NaN"](envelope.body["reply"])
                response = encode(replace(envelope, body={"reply": bad}), protocol.unsigned)
            return response

        simulated.transport.workers["york"] = poisoned
        fit = simulated.run()
        assert any("a reply of york is refused: its update contains a NaN" in line for line in simulated.lines)
        assert any("refused this client's last update: its update contains a NaN" in line for line in simulated.lines)
        assert gap(fit.posterior, simulated.alone()) < 1e-9

    @pytest.mark.parametrize(
        ("extra", "why"),
        [
            ("", "its factor has the negative precision"),
            ('[algorithm]\nfactors = "clients"\n', "its update alone makes the posterior improper"),
        ],
        ids=["server-held", "client-held"],
    )
    def test_an_improper_update_does_not_affect_others(self, tmp_path, extra, why):
        """Its client gets the reason with the next message; the result states that its data are missing."""
        simulated = SimulatedStudy(tmp_path, STUDY + extra)
        honest = simulated.transport.workers["york"]

        def hostile(content):
            response = honest(content)
            envelope = decode(response, protocol.unverified)
            if envelope.kind == Kind.REPLY:
                reply = envelope.body["reply"]
                bad = changed(reply, delta=replace(reply.update.delta, precision=-1e6 * np.eye(2)))
                response = encode(replace(envelope, body={"reply": bad}), protocol.unsigned)
            return response

        simulated.transport.workers["york"] = hostile
        fit = simulated.run()
        assert fit.converged
        assert gap(fit.posterior, simulated.alone(["york"])) < 1e-9
        assert any(f"refused this client's last update: {why}" in line for line in simulated.lines)
        assert "set aside after repeated refusals: york" in simulated.lines
        assert any("the data of york are missing or incomplete" in line for line in simulated.lines)
        assert read_status(tmp_path / "run")["missing"] == ["york"]

    def test_a_client_that_always_fails_is_not_waited_for_for_ever(self, tmp_path):
        simulated = SimulatedStudy(tmp_path)
        simulated.transport.workers["hull"] = simulated.worker("hull", faulty=True).handle
        fit = simulated.run()
        assert fit.converged
        assert gap(fit.posterior, simulated.alone(["hull"])) < 1e-9

    @pytest.mark.parametrize("text", [SLOW, FEDERATED + DAMPED], ids=["unscaled", "federated scaling"])
    @pytest.mark.parametrize("how", ["withdrawn", "leaving"])
    @thorough
    def test_a_client_is_withdrawn(self, tmp_path, how, text):
        """Its factor is removed; the scaling, and the prior with it, were fixed at the start and stay."""
        simulated, leaving = SimulatedStudy(tmp_path, text), []
        simulated.transport.workers["york"] = simulated.worker("york", leaving=lambda: bool(leaving)).handle

        def after_round(record, state):
            if record["round"] == 2:
                if how == "withdrawn":
                    Requests(tmp_path / "run").put(WITHDRAW + "york")
                else:
                    leaving.append(True)

        fit = simulated.run(after_round)
        assert fit.server.names == ("leeds", "hull")
        assert gap(fit.posterior, simulated.alone(["york"], scaled_by=simulated.study.clients)) < 1e-8
        np.testing.assert_array_equal(fit.server.prior.precision, simulated.whole().server.prior.precision)
        assert not any("restarting the run" in line for line in simulated.lines)
        again = simulated.run()  # a restarted server does not add it again
        assert again.server.names == ("leeds", "hull")

    @thorough
    def test_a_withdrawal_that_a_crash_interrupts(self, tmp_path, monkeypatch):
        simulated = SimulatedStudy(tmp_path, SLOW)

        def after_round(record, state):
            if record["round"] == 4:
                Requests(tmp_path / "run").put(WITHDRAW + "york")

        with monkeypatch.context() as patch:
            patch.setattr(ledger, "withdraw", lambda *args: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                simulated.run(after_round)
        assert Requests(tmp_path / "run").pending() == []
        fit = simulated.run()
        assert fit.server.names == ("leeds", "hull")
        assert gap(fit.posterior, simulated.alone(["york"])) < 1e-8

    def test_a_client_withdrawn_before_the_start_is_not_waited_for(self, tmp_path):
        simulated = SimulatedStudy(tmp_path, FEDERATED)
        del simulated.transport.workers["hull"]
        Requests(tmp_path / "run").put(WITHDRAW + "hull")
        fit = simulated.run()
        assert fit.server.names == ("leeds", "york")
        assert gap(fit.posterior, simulated.alone(["hull"])) < 1e-9

    def test_an_error_at_a_client_does_not_affect_others(self, tmp_path):
        simulated = SimulatedStudy(tmp_path, min_clients=2)
        simulated.transport.workers["hull"] = simulated.worker("hull", faulty=True).handle

        def after_round(record, state):
            if record["round"] == 3:
                Requests(tmp_path / "run").put(WITHDRAW + "hull")

        fit = simulated.run(after_round)
        assert any("an error at the client: ZeroDivisionError" in line for line in simulated.lines)
        assert gap(fit.posterior, simulated.alone(["hull"])) < 1e-9

    @pytest.mark.parametrize("text", [SLOW, FEDERATED + DAMPED], ids=["unscaled", "federated scaling"])
    @thorough
    def test_a_late_client_joins(self, tmp_path, text):
        simulated = SimulatedStudy(tmp_path, text, min_clients=2)
        late = simulated.transport.workers.pop("hull")

        def after_round(record, state):
            if record["round"] == 2:
                simulated.transport.workers["hull"] = late
                simulated.transport.sleep(5.0)

        fit = simulated.run(after_round)
        assert fit.server.names == ("leeds", "york", "hull")
        assert gap(fit.posterior, simulated.alone(scaled_by=("leeds", "york"))) < 1e-8

    def test_a_stopped_server_resumes(self, tmp_path):
        simulated = SimulatedStudy(tmp_path)
        stopped = simulated.run(lambda record, state: Requests(tmp_path / "run").put(STOP))
        assert len(stopped.history) == 1
        assert read_status(tmp_path / "run")["state"] == "stopped"
        assert gap(simulated.run().posterior, simulated.alone()) < 1e-9

    def test_preview_of_what_is_sent_first(self, tmp_path):
        simulated = SimulatedStudy(tmp_path, FEDERATED)
        site = site_of(simulated.study, "leeds", simulated.tables["leeds"], tmp_path, print)
        lines = preview(simulated.study, simulated.tables["leeds"], site)
        assert "  n = 12" in lines
        assert any(line.startswith("  delta precision,") for line in lines)


class Crash(BaseException):
    """A crash of the server's machine."""


def crash_around_writes(monkeypatch, rate, seed):
    """The server crashes before or after one of its writes."""
    rng, write = random.Random(seed), RunDirectory.write
    crashes = []

    def writes(self, *args):
        for moment in ("before", "after"):
            if rng.random() < rate:
                crashes.append(moment)
                raise Crash
            if moment == "before":
                write(self, *args)

    monkeypatch.setattr(RunDirectory, "write", writes)
    return crashes


def check_invariant(directory, study):
    """The posterior of the checkpoint is prior times entries, to 1e-9."""
    state, _ = RunDirectory(directory).read()
    server, algorithm = state["server"], state["algorithm"]
    assert is_proper(server.posterior)
    assert (
        distance(server.posterior, algorithm.server.entries.rebuild(server.prior, list(server.entries.values()))) < 1e-9
    )


UNRELIABLE = Faults(drop=0.1, repeat=0.15, delay=0.1, damage=0.05, lost=0.005, client_crash=0.05, absent=0.05)


def play(folder, seed, monkeypatch):
    """A study over an unreliable transport, with a server that crashes; how often each fault happened."""
    simulated = SimulatedStudy(folder, faults=UNRELIABLE, seed=seed)
    with monkeypatch.context() as patch:
        crashes = crash_around_writes(patch, 0.03, seed)
        for _ in range(200):
            try:
                fit = simulated.run()
                break
            except Crash:
                if RunDirectory(folder / "run").has_checkpoint:
                    check_invariant(folder / "run", simulated.study)
        else:
            raise AssertionError("it did not end")
    check_invariant(folder / "run", simulated.study)
    assert fit.converged
    assert gap(fit.posterior, simulated.alone()) < 1e-8
    return {**simulated.transport.seen, "server crash": len(crashes)}


def play_many(tmp_path, seeds, monkeypatch):
    seen = {}
    for seed in seeds:
        try:
            found = play(tmp_path / str(seed), seed, monkeypatch)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        seen = {what: seen.get(what, 0) + count for what, count in found.items()}
    return seen


@thorough
def test_studies_over_an_unreliable_transport(tmp_path, monkeypatch):
    seen = play_many(tmp_path, range(6), monkeypatch)
    assert all(count >= 3 for count in seen.values()), seen


@exhaustive
@pytest.mark.slow
def test_many_studies_over_an_unreliable_transport(tmp_path, monkeypatch):
    seen = play_many(tmp_path, range(100, 140), monkeypatch)
    assert all(count >= 15 for count in seen.values()), seen


def play_schedules(first, count):
    """Schedules of faults over the ledger, through the real encoding; how often each fault happened."""
    x, y = scenarios.linear(24, 1)
    clients = scenarios.clients(x, y, scenarios.homogeneous(24, 3))
    algorithm = cavity.PVI(cavity.models.linear_regression(1, noise_sd=0.7))
    return check_survives_faults(algorithm, clients, count, first_seed=first)


@pytest.mark.parametrize(
    ("first", "count"), [(50_000, 120), pytest.param(60_000, 1000, marks=[pytest.mark.slow, pytest.mark.exhaustive])]
)
def test_schedules_of_faults(first, count):
    """Drop, repeat, reorder, delay, and crashes before and after every write; `tools/faults.py` plays ten thousand."""
    seen = play_schedules(first, count)
    crashes = [f"crash: {who} {when} its write" for who in ("server", "client") for when in ("before", "after")]
    assert all(seen[event] >= 10 for event in ["drop", "repeat", "abandon", "client wiped", *crashes]), seen


def test_clients_are_greeted_again_after_the_transport_was_lost(tmp_path):
    simulated, reopened = SimulatedStudy(tmp_path), []
    config = SessionConfig(Identity(simulated.study.hash, "{}"), "run", simulated.study.clients)
    session = Session(
        simulated.transport,
        config,
        reopen=lambda: reopened.append(1),
        clock=simulated.transport.clock,
        sleep=simulated.transport.sleep,
    )
    assert session.wait_for(simulated.study.clients, 3) == set(simulated.study.clients)
    simulated.transport.faults = Faults(lost=1.0)
    simulated.transport.sleep(5.0)
    assert session.connected() == set()
    assert reopened == [1]
    simulated.transport.faults = Faults()
    assert session.wait_for(simulated.study.clients, 3) == set(simulated.study.clients)


AVERAGED = own_models.WARDS + "[run]\nrounds = 3\n"
PRIOR_AT_THE_SERVER = own_models.SPREAD + "[run]\ntolerance = 1e-12\n"


@pytest.mark.parametrize("text", [AVERAGED, PRIOR_AT_THE_SERVER], ids=["local latents", "a prior at the server"])
@pytest.mark.slow
def test_user_written_models(tmp_path, monkeypatch, text):
    """Initialisation, latents on the clients' disks, and the server's own entry, as in one process.

    The clients restart for every message; in `test_flower.py` they stay.
    """
    monkeypatch.setattr(sys.modules[__name__], "tables", own_models.ward_tables)
    simulated = SimulatedStudy(tmp_path, text)
    for name in simulated.study.clients:
        simulated.transport.workers[name] = lambda content, name=name: simulated.worker(name).handle(content)
    fit = simulated.run()
    reference = run_study(simulated.study, simulated.tables)
    assert len(fit.history) == len(reference.history)
    assert distance(fit.posterior, reference.posterior) < 1e-6
    kept = list((tmp_path / "leeds" / "runs").glob("*/*.npz")) if (tmp_path / "leeds" / "runs").exists() else []
    assert len(kept) == (2 if text is AVERAGED else 0)  # only what the server does not have


@pytest.mark.slow
def test_a_method_without_entries_restarts_after_a_withdrawal(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "tables", own_models.ward_tables)
    simulated = SimulatedStudy(tmp_path, AVERAGED)

    def after_round(record, state):
        if record["round"] == 1 and "york" in state.names:
            Requests(tmp_path / "run").put(WITHDRAW + "york")

    fit = simulated.run(after_round)
    assert "restarting the run" in simulated.lines
    study = replace(simulated.study, clients=("leeds",))
    reference = run_study(study, {"leeds": simulated.tables["leeds"]})
    assert len(fit.history) == len(reference.history)
    assert distance(fit.posterior, reference.posterior) < 1e-6


def test_a_message_is_written_before_it_is_sent():
    """A server that crashes after it has sent must not give the same number to another message."""
    x, y = scenarios.linear(24, 1)
    algorithm = cavity.PVI(cavity.models.linear_regression(1, noise_sd=0.7))
    clients = scenarios.clients(x, y, scenarios.homogeneous(24, 3))
    data = cavity.core.client_data.prepare_clients(algorithm.model, clients)
    engine, schedule, written, sent = LocalEngine(algorithm, data), cavity.schedules.Sequential(), [], []
    submit, collect = engine.submit, engine.collect

    def submitted(message):
        on_disk = written[-1].clients[message.client]
        assert (on_disk.sequence, on_disk.waiting) == (message.sequence, message.version)
        assert on_disk.sequence not in [m.sequence for m in sent if m.client == message.client]
        sent.append(message)
        submit(message)

    def collected(num_replies):
        assert written[-1].version == len(sent) - 1  # the reply before this one is on the disk too
        return collect(num_replies)

    engine.submit, engine.collect = submitted, collected
    server = training.open_federation(algorithm, schedule, list(data), 0)
    training.run(
        algorithm,
        engine,
        schedule,
        server,
        [],
        training.Stopping(2, 0.0),
        checkpoint=lambda server, history: written.append(server),
        write_ahead=True,
    )
    assert len(sent) == 6


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"study": "other"}, "another version of the study"),
        ({"run": "other"}, "another run of the study"),
        ({"client": "york"}, "names the client 'york'"),
        ({"kind": Kind.REFUSAL.value, "body": {"reason": "no time"}}, "the client refuses: no time"),
    ],
)
def test_responses_of_another_study_run_or_client_are_refused(parts, reason):
    config = SessionConfig(Identity("hash", "{}"), "run", ("leeds", "york"))
    session = Session(SimulatedTransport({}), config)
    envelope = envelope_with({}, Kind.REPLY)
    assert session.opened("leeds", encode(envelope, protocol.unsigned)).kind == Kind.REPLY
    with pytest.raises(ProtocolError, match=reason):
        session.opened("leeds", encode(replace(envelope, **parts), protocol.unsigned))


def test_a_message_signed_by_another_client_is_refused(tmp_path):
    config = SessionConfig(
        Identity("hash", "{}"), "run", ("leeds",), verify={"leeds": lambda content, signature: signature == b"leeds"}
    )
    session, envelope = Session(SimulatedTransport({}), config), envelope_with({}, Kind.REPLY)
    assert session.opened("leeds", encode(envelope, lambda content: b"leeds")).client == "leeds"
    with pytest.raises(ProtocolError, match="signature"):
        session.opened("leeds", encode(envelope, lambda content: b"york"))


def test_a_client_shows_why_its_greeting_was_refused(tmp_path):
    """Results that are not files are refused too."""
    simulated = SimulatedStudy(tmp_path)
    worker, lines = simulated.worker("leeds"), simulated.lines
    for kind, body in (
        (Kind.HELLO, {"notice": "a \x1b[31mreason"}),
        (Kind.END, {"files": {"a": "text"}}),
        (Kind.END, {}),
    ):
        envelope = Envelope(kind.value, simulated.study.hash, "run", "leeds", body)
        response = decode(worker.handle(encode(envelope, protocol.unsigned)), protocol.unverified)
        if kind == Kind.END and body:
            assert (response.kind, response.body["reason"]) == (Kind.REFUSAL, "its files are not bytes")
    assert any("could not use this client's last response: a \\x1b[31mreason" in line for line in lines)


def test_stopped_before_the_first_round_and_restarted(tmp_path):
    simulated = SimulatedStudy(tmp_path)
    late = simulated.transport.workers.pop("hull")

    def sleep(seconds):
        simulated.transport.sleep(seconds)
        Requests(tmp_path / "run").put(STOP)

    assert simulated.run(sleep=sleep) is None
    assert read_status(tmp_path / "run")["state"] == "stopped"
    simulated.transport.workers["hull"] = late
    assert gap(simulated.run().posterior, simulated.alone()) < 1e-9


def test_all_clients_are_withdrawn(tmp_path):
    simulated = SimulatedStudy(tmp_path, SLOW)

    def after_round(record, state):
        for name in simulated.study.clients:
            Requests(tmp_path / "run").put(WITHDRAW + name)

    with pytest.raises(CavityError, match="no data are left"):
        simulated.run(after_round)
