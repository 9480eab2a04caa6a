"""What a client enforces: which posteriors it answers, how often, and with which rows; and attacks on it."""

import json
import os
import re
import stat
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cavity import ledger
from cavity.distributions import FullGaussian
from cavity.errors import CavityError, CheckpointError, DataError, ProtocolError
from cavity.network.client import site_of
from cavity.network.client_state import ClientStore, SentLog
from cavity.network.guard import MAX_SCALINGS, Guard
from cavity.network.limits import MAX_TOTAL_ROWS, bounds, max_messages, problem_with_scaling
from cavity.network.server import ServerConfig, StudyServer
from cavity.network.worker import Worker
from cavity.study import parse_study
from cavity.study.building import scaling_of, study_algorithm, study_scaling
from cavity.study.run import run_study
from cavity.study.scaling import ScaledColumn, Scaling
from cavity.study.table import as_table
from tests.hostile import STUDY, HostileServer, patients
from tests.marks import thorough
from tests.simulated_transport import SimulatedTransport
from tests.studies import FEDERATED, gap, hospitals

pytestmark = pytest.mark.usefixtures("quick_to_compile")
SHORT = STUDY.replace("rounds = 100", "rounds = 30")
OLD = (1.0, 1.6)  # the patients to be read are between these thresholds
WITHIN = (12.4, 2400.0)  # as steep and as tight as the limits allow


@pytest.fixture
def hostile(tmp_path):
    return HostileServer(tmp_path, text=SHORT)


class TestAttack:
    @pytest.mark.parametrize("by_entry", [False, True], ids=["posterior", "cavity"])
    @thorough
    def test_a_client_without_limits_reveals_patients(self, tmp_path, by_entry):
        server = HostileServer(tmp_path, limited=False, text=SHORT)
        assert len(server.read_patients(1e4, 1e10, 60, OLD, by_entry=by_entry)) >= 10

    @pytest.mark.parametrize("by_entry", [False, True], ids=["posterior", "cavity"])
    @pytest.mark.parametrize("how", [(1e4, 1e10), (1e4, 2400.0), WITHIN], ids=["tight and far", "far", "within limits"])
    def test_no_patient_is_read(self, hostile, how, by_entry):
        assert hostile.read_patients(*how, 200, OLD, by_entry=by_entry) == set()
        assert hostile.answered == (60 if how == WITHIN else 0)

    def test_scales_that_no_rows_can_have(self, hostile):
        """Slopes within the prior would be steep in the units of the data."""
        prior = ledger.to_host(hostile.algorithm.prior)
        assert hostile.ask(prior, scaling=hostile.tiny_scaling()) is None
        assert "its scaling of column 'age' is not that of the study" in hostile.refusals[-1]


class TestPosteriors:
    def test_the_prior_is_answered(self, hostile):
        assert hostile.ask(ledger.to_host(hostile.algorithm.prior)) is not None

    @pytest.mark.parametrize(
        ("mean", "precision", "why"),
        [
            (0.0, -np.eye(4), "its posterior is improper"),
            (np.nan, np.eye(4), "contains a NaN or an infinity"),
            (12.6, np.eye(4), "5.04 prior standard deviations from the prior's in coefficient 2"),
            (0.0, 2600 * np.eye(4), "the precision 2.6e\\+03 in coefficient 1.* at most 2.5e\\+03"),
        ],
        ids=["improper", "NaN", "far", "tight"],
    )
    def test_a_posterior_out_of_bounds_is_refused(self, hostile, mean, precision, why, caplog):
        posterior = FullGaussian(precision @ np.full(4, mean), precision)
        assert hostile.ask(posterior) is None
        assert hostile.worker.guard.answered == 0
        assert any(re.search(why, text) for text in (hostile.refusals[-1], caplog.text))

    def test_an_entry_that_makes_the_cavity_improper(self, hostile):
        prior = ledger.to_host(hostile.algorithm.prior)
        assert hostile.ask(prior, prior**2.0) is None
        assert hostile.refusals[-1] == "its cavity is improper"


KINDS = {
    "logistic": ("died", 'type = "boolean"', ""),
    "softmax": ("died", 'type = "category"\nlevels = ["no", "ward", "home"]', ""),
    "poisson": ("died", 'type = "integer"\nrange = [0, 6]', ""),
    "linear": ("died", 'type = "number"\nscaling = { centre = 1.0, scale = 2.0 }', "noise_sd = 0.5\n"),
}


def study_of(kind, **changes):
    _, outcome, extra = KINDS[kind]
    text = STUDY.replace('family = "logistic"\n', f'family = "{kind}"\n{extra}').replace('type = "boolean"', outcome, 1)
    text = text.replace("max_total_rows = 10_000", "max_total_rows = 50")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return parse_study(text.replace("died ~ age + bmi + sex", "died ~ age * sex + bmi"))


class TestBounds:
    @pytest.mark.parametrize("kind", KINDS)
    def test_rows_within_the_ranges_never_have_more_curvature(self, kind):
        """The curvature of the log likelihood, by differentiation; for Poisson, expected counts are at most 2 x 6."""
        study = study_of(kind)
        scaling = study_scaling(study)
        model = study_algorithm(study, scaling).model
        rng = np.random.default_rng(0)
        ends = {"age": (18, 95), "bmi": (15, 50), "sex": (0, 1)}
        columns = {name: rng.choice(end, 50).astype(float) for name, end in ends.items()}
        columns["died"] = rng.integers(0, 3 if kind == "softmax" else 2, 50)
        if kind == "softmax":
            columns["died"] = np.array(["no", "ward", "home"])[columns["died"]]
        batch = jax.tree.map(jnp.asarray, model.prepare(model.encoding.rows(as_table(columns))))

        @jax.jit
        def curvature(theta):
            return -jax.hessian(lambda theta: model.row_log_prob(theta, batch).sum())(theta)

        added, largest = bounds(study, scaling).added, 0.0
        for scale in (0.0, 0.05, 0.3, 1.0):
            theta = jnp.asarray(scale * rng.normal(size=len(added)))
            if kind == "poisson" and np.exp(model.predictor(theta, batch)[0]).max() > 12:
                continue
            largest = np.maximum(largest, np.diagonal(curvature(theta)))
        assert (largest <= added * (1 + 1e-12)).all()
        assert (largest > added / (30 if kind == "poisson" else 5)).all()  # the bound is not much too large

    @pytest.mark.parametrize(
        ("study", "note"),
        [
            (study_of("logistic"), None),
            (study_of("logistic", **{"range = [18, 95]\n": ""}), "no range is declared for age"),
            (study_of("poisson", **{"[0, 6]": "[0, inf]"}), "'died' has no largest value"),
            (study_of("linear", **{"noise_sd = 0.5\n": ""}), "the noise is unknown"),
        ],
        ids=["all are on", "no range", "no largest count", "unknown noise"],
    )
    def test_which_checks_are_off(self, study, note):
        found = bounds(study, study_scaling(study))
        assert (found.added is None) == (note is not None)
        assert note is None or any(note in line for line in found.notes)

    def test_total_rows(self):
        declared, default = study_of("logistic"), replace(study_of("logistic"), max_total_rows=None)
        ratio = bounds(default, study_scaling(default)).added / bounds(declared, study_scaling(declared)).added
        np.testing.assert_allclose(ratio, MAX_TOTAL_ROWS / 50)
        assert declared.hash != default.hash

    @pytest.mark.parametrize("kind", ["logistic", "linear"])
    def test_bounds_for_a_scaled_matrix_and_outcome(self, kind):
        """By default a study scales the columns of the formula's matrix too, and the outcome of linear regression."""
        study = study_of(kind, **{'scaling = "none"\n': ""})
        rng = np.random.default_rng(1)
        columns = {"age": rng.integers(18, 96, 200), "bmi": rng.uniform(15, 50, 200), "sex": rng.integers(0, 2, 200)}
        columns["died"] = rng.integers(0, 2, 200)
        table = as_table(columns)
        scaling = scaling_of(study, [table])
        assert scaling.design
        model = study_algorithm(study, scaling).model
        batch = jax.tree.map(jnp.asarray, model.prepare(model.encoding.rows(table)))
        theta = jnp.zeros(model.prior.dimension)
        found = np.diagonal(-jax.hessian(lambda theta: model.row_log_prob(theta, batch).sum())(theta))
        added = bounds(study, scaling).added * 200 / study.max_total_rows
        assert (found <= added * (1 + 1e-12)).all()
        assert (found > added / 30).all()

    def test_a_scaling_of_the_matrix_must_be_possible_for_the_rows(self):
        study = replace(parse_study(FEDERATED), max_total_rows=1000)
        tables = [as_table(hospital) for hospital in hospitals().values()]
        scaling = scaling_of(study, tables)
        assert problem_with_scaling(study, tables[0], scaling) is None
        for i, column in enumerate(scaling.design):
            narrow = [*scaling.design]
            narrow[i] = replace(column, scale=column.scale / 1000)
            problem = problem_with_scaling(study, tables[0], replace(scaling, design=tuple(narrow)))
            assert f"column '{column.name}' cannot come from the sums" in problem

    def test_a_federated_scaling_must_be_possible_for_the_rows(self):
        """That of all clients is possible; one that is too narrow, or too far away, is not."""
        study = replace(parse_study(FEDERATED), max_total_rows=1000)
        table, ages = as_table(hospitals()["leeds"]), np.concatenate([h["age"] for h in hospitals().values()])

        def problem(centre, scale):
            return problem_with_scaling(study, table, Scaling((ScaledColumn("age", centre, scale),)))

        assert problem(ages.mean(), ages.std()) is None
        assert "cannot come from the sums of at most 1,000 rows" in problem(ages.mean(), ages.std() / 100)
        assert "cannot come from the sums" in problem(ages.mean() + 1000, ages.std())
        assert "cannot come from the sums" in problem(ages.mean(), float("nan"))


class TestCounting:
    def test_the_number_of_scalings_is_limited(self, tmp_path):
        guard = Guard(tmp_path, "hash")
        for i in range(MAX_SCALINGS):
            guard.count_scaling(Scaling((ScaledColumn("age", float(i), 1.0),)))
        guard.count_scaling(Scaling((ScaledColumn("age", 0.0, 1.0),)))  # the same one again is not counted
        with pytest.raises(ProtocolError, match="accepts no other"):
            Guard(tmp_path, "hash").count_scaling(None)

    def test_versions_and_sequence_numbers_only_grow(self, hostile):
        prior = ledger.to_host(hostile.algorithm.prior)
        assert hostile.ask(prior, version=3) is not None
        assert hostile.ask(prior, version=2) is None
        assert "do not come after 3 and 1" in hostile.refusals[-1]
        assert hostile.ask(prior, version=3, sequence=1) is not None  # the same message again
        assert hostile.worker.guard.answered == 1
        assert hostile.ask(prior * prior, version=3, sequence=1) is None  # another message with the same number
        assert hostile.ask(prior, version=4) is not None
        assert hostile.worker.guard.answered == 2

    def test_the_limit_holds_over_all_runs_and_restarts(self, tmp_path):
        """A new run, or a restarted client, does not count from zero."""
        text = SHORT.replace("rounds = 30", "rounds = 1")
        answered = 0
        for run in range(30):
            server = HostileServer(tmp_path, text=text)
            server.run = f"run{run}"
            answered += server.ask(ledger.to_host(server.algorithm.prior)) is not None
        assert answered == 21 == max_messages(server.study, server.algorithm)
        assert "21 messages in all runs of this study, and the limit is 21" in server.refusals[-1]

    @pytest.mark.parametrize(("schedule", "most"), [("sequential", 200), ("asynchronous", 400)])
    def test_the_limit_of_a_schedule(self, schedule, most):
        study = parse_study(STUDY + f'schedule = "{schedule}"\n')
        assert max_messages(study, study_algorithm(study, study_scaling(study))) == most

    def test_the_count_is_on_the_disk_before_the_reply_and_private(self, hostile, tmp_path):
        hostile.ask(ledger.to_host(hostile.algorithm.prior))
        (file,) = (tmp_path / "guard").glob("*.json")
        assert json.loads(file.read_text())["answered"] == 1
        for path in (tmp_path / "guard").iterdir():
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(tmp_path / "guard").st_mode) == 0o700
        file.write_text("{")
        with pytest.raises(CheckpointError, match="the number of answered messages is unknown"):
            HostileServer(tmp_path, text=SHORT)

    def test_a_crash_while_counting_sends_no_update(self, hostile, monkeypatch):
        prior = ledger.to_host(hostile.algorithm.prior)
        with monkeypatch.context() as patch:
            patch.setattr("os.replace", lambda *args: 1 / 0)
            assert hostile.ask(prior) is None
        assert hostile.refusals == ["an error at the client: ZeroDivisionError"]


def worker_of(folder, columns, leaving=lambda: False):
    site = site_of(parse_study(STUDY), "leeds", as_table(columns), folder, lambda line: None)
    return Worker(site, ClientStore(folder), SentLog(folder / "sent.jsonl"), leaving=leaving)


class TestRows:
    def halved(self):
        return {name: column[:50] for name, column in patients().items()}

    def test_other_rows_are_refused_after_the_first_update(self, tmp_path):
        worker_of(tmp_path, self.halved()).guard.check_rows()  # nothing has been sent yet
        hostile = HostileServer(tmp_path)
        prior = ledger.to_host(hostile.algorithm.prior)
        assert hostile.ask(prior) is not None
        changed = worker_of(tmp_path, self.halved())
        with pytest.raises(DataError, match=r"the rows have changed.*cavity leave.*--rejoin"):
            changed.guard.check_rows()
        hostile.worker = changed
        assert hostile.ask(prior) is None
        assert hostile.refusals[-1] == "its data cannot be used; its own log says why"

    def test_the_order_of_rows_does_not_matter(self, tmp_path):
        hostile = HostileServer(tmp_path)
        hostile.ask(ledger.to_host(hostile.algorithm.prior))
        order = np.random.default_rng(1).permutation(100)
        worker_of(tmp_path, {name: column[order] for name, column in patients().items()}).guard.check_rows()

    def test_the_fingerprint_depends_on_a_secret_key(self, tmp_path):
        for folder in (tmp_path / "a", tmp_path / "b"):
            hostile = HostileServer(folder)
            hostile.ask(ledger.to_host(hostile.algorithm.prior))
        prints = [json.loads(next((tmp_path / x / "guard").glob("*.json")).read_text())["fingerprint"] for x in "ab"]
        assert prints[0] != prints[1]
        assert all(len(text) == 64 for text in prints)

    def test_a_client_may_return_with_other_rows_and_the_count_stays(self, tmp_path):
        hostile = HostileServer(tmp_path)
        prior = ledger.to_host(hostile.algorithm.prior)
        hostile.ask(prior)
        with pytest.raises(CavityError, match="has not left"):
            hostile.worker.guard.rejoin()
        hostile.worker = worker_of(tmp_path, self.halved(), leaving=lambda: True)
        assert hostile.ask(prior) is None  # it responds that it leaves
        hostile.worker = worker_of(tmp_path, self.halved())
        hostile.worker.guard.rejoin()
        assert hostile.ask(prior) is not None
        assert hostile.worker.guard.answered == 2


@pytest.mark.parametrize("extra", ["", '\n[run]\nschedule = "asynchronous"\n'], ids=["synchronous", "asynchronous"])
@thorough
def test_an_honest_study_runs_to_its_end(tmp_path, extra):
    study = parse_study(FEDERATED + extra)
    tables = {name: as_table(columns) for name, columns in hospitals().items()}
    workers = {}
    for name in study.clients:
        site = site_of(study, name, tables[name], tmp_path / name, lambda line: None)
        workers[name] = Worker(site, ClientStore(tmp_path / name), SentLog(tmp_path / name / "sent.jsonl"))
    transport = SimulatedTransport({name: worker.handle for name, worker in workers.items()})
    fit = StudyServer(
        study,
        FEDERATED + extra,
        tmp_path / "run",
        transport,
        ServerConfig(round_timeout=20.0, report=False),
        clock=transport.clock,
        sleep=transport.sleep,
    ).run()
    assert fit.converged
    assert gap(fit.posterior, run_study(study, tables).posterior) < 1e-5
    noted = (tmp_path / "leeds" / "sent.jsonl").read_text()
    assert '"refusal"' not in noted
    assert workers["leeds"].guard.answered == noted.count('"reply"')
