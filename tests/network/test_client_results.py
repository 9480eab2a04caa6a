"""What a client has at the end of a study: the results of all, the effects of its own groups, and its report."""

import csv
import re

import numpy as np
import pytest

from cavity.core.client_data import prepare_client
from cavity.errors import ProtocolError
from cavity.network.client_results import local_summary, write_results
from cavity.reporting import parts_file
from cavity.reporting.facts import ClientRows
from cavity.study import as_table
from cavity.study.building import client_data, scaling_of, study_algorithm
from cavity.study.run import run_study
from tests.network.test_mixed_studies import BERNOULLI
from tests.network.test_protocol import SimulatedStudy
from tests.study.test_mixed_models import hospitals

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    own = {name: as_table(columns) for name, columns in hospitals().items()}
    simulated = SimulatedStudy(tmp_path_factory.mktemp("study"), BERNOULLI, own_tables=own, report=True)
    simulated.run()
    return simulated


def rows(path):
    with open(path) as file:
        return {row["effect"]: row for row in csv.DictReader(file)}


def test_effects_of_groups_are_those_of_one_process(ended):
    whole = run_study(ended.study, ended.tables)
    for name in ended.study.clients:
        found = rows(ended.folder / name / "results" / "local.csv")
        expected = whole.local(name).summary()
        assert list(found) == [estimate.name for estimate in expected]
        for estimate in expected:
            assert float(found[estimate.name]["mean"]) == pytest.approx(estimate.mean, abs=1e-4)
            assert float(found[estimate.name]["sd"]) == pytest.approx(estimate.sd, rel=1e-4)


def test_the_server_has_no_effects(ended):
    leeds = list(rows(ended.folder / "leeds" / "results" / "local.csv"))
    for file in (ended.folder / "run").rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not [name for name in leeds if name.encode() in content], file.name


def test_a_client_has_its_own_report(ended):
    page = (ended.folder / "leeds" / "results" / "report.html").read_text()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "the copy of leeds" in text
    assert "Effects at leeds" in text
    assert f"Rows used: {len(ended.tables['leeds'])}; dropped: 0." in text
    assert "Contributions of the clients" in text
    server = (ended.folder / "run" / "report.html").read_text()
    shown = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", server))
    assert f"leeds {len(ended.tables['leeds'])} " in shown
    assert f"all clients {sum(map(len, ended.tables.values()))} " in shown
    assert "Effects at" not in server
    title, sections = parts_file.read((ended.folder / "run" / "report.json").read_bytes())
    assert title
    assert len(sections) >= 5


def test_a_posterior_of_another_model_is_refused(ended):
    scaling = scaling_of(ended.study, list(ended.tables.values()))
    algorithm = study_algorithm(ended.study, scaling)
    raw = client_data(ended.study, ended.tables["leeds"], scaling)
    data = prepare_client(algorithm.model, "leeds", raw)
    wrong = algorithm.prior.__class__(np.zeros(2), np.eye(2))
    with pytest.raises(ProtocolError, match="the posterior"):
        local_summary(algorithm, "leeds", data, raw, wrong)
    improper = algorithm.prior / algorithm.prior
    with pytest.raises(ProtocolError, match="improper"):
        local_summary(algorithm, "leeds", data, raw, improper)


def test_a_report_that_cannot_be_read_does_not_lose_the_results(tmp_path):
    lines, files = (
        [],
        {"summary.csv": b"parameter\n", "report.json": b"[", "../outside": b"x", "report.html": b"<script>"},
    )
    write_results(tmp_path / "results", "leeds", files, ClientRows(60, 0), lambda: None, lines.append)
    written = {file.name for file in (tmp_path / "results").iterdir()}
    assert written == {"summary.csv", "report.html", "tables"}
    assert "<script" not in (tmp_path / "results" / "report.html").read_text()
    assert not (tmp_path / "outside").exists()
    assert "cannot be read" in lines[0]
