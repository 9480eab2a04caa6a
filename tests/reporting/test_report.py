"""The report: what it says, what it does not show, and that it is one page that loads nothing."""

import json
import re

import numpy as np
import pytest

import cavity
from cavity.errors import CavityError, ProtocolError
from cavity.reporting import parts_file
from cavity.reporting.facts import ClientRows, Facts, readable, shown_count, shown_total
from cavity.reporting.page import Figure, Paragraph, Section
from cavity.reporting.report import Report
from cavity.reporting.sections.estimates import ratio_cells
from cavity.reporting.tables import Table
from tests.marks import thorough

pytest.importorskip("matplotlib")
STRANGE = "hull <b>&$x$"


def frame(seed, count, slope=0.05):
    rng = np.random.default_rng(seed)
    age, rx = rng.normal(60, 10, count), rng.choice(["placebo", "drug"], count)
    logit = slope * (age - 60) - 0.9 * (rx == "drug")
    return {"age": age, "rx": rx, "died": rng.random(count) < 1 / (1 + np.exp(-logit))}


@pytest.fixture(scope="module")
def fit():
    return cavity.regression("died ~ age + rx", {"leeds": frame(0, 150), "york": frame(1, 90), STRANGE: frame(2, 200)})


@pytest.fixture(scope="module")
def report(fit):
    rows = {"leeds": ClientRows(150, 3), "york": ClientRows(90, 0), STRANGE: ClientRows(200, 41)}
    return Report(Facts(fit, title="A trial", model="logistic regression", study_hash="ab12", rows=rows))


def words(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_it_is_one_page_without_scripts_that_loads_nothing(report):
    page = report.to_html()
    assert len(page.encode()) < 3_000_000
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!data:image/svg)', page)
    assert "default-src 'none'" in page
    assert "<b>" not in page  # of a client's name
    assert report.to_html() == page


def test_the_ratios_are_exponentials_of_the_summary(report, fit):
    ratios = next(
        part for section in report.sections for part in section.parts if getattr(part, "name", "") == "ratios"
    )
    assert [row[0] for row in ratios.rows] == ["age", "rx: placebo (vs drug)"]
    age = fit.summary()["age"]
    assert float(ratios.rows[0][1]) == pytest.approx(np.exp(age.mean), rel=5e-3)
    assert [float(cell) for cell in ratios.rows[0][2:4]] == pytest.approx(np.exp([age.lower, age.upper]), abs=0.006)
    assert ratios.rows[0][4] == "> 0.999 (above 1)"


@pytest.mark.parametrize(
    ("values", "cells"),
    [
        ((2.2, 1.56, 3.1), ("2.20", "1.56", "3.10")),
        ((1.01, 1.0025, 1.0167), ("1.010", "1.002", "1.017")),
        ((0.5, 0.002, 1.4), ("0.500", "0.002", "1.400")),
        ((5e4, 1e3, 2e6), ("5e+04", "1000", "2e+06")),
    ],
)
def test_no_end_of_an_interval_is_rounded_to_one(values, cells):
    assert ratio_cells(*values) == cells


def test_a_run_in_one_process_claims_no_network(report, fit):
    assert "in one process" in words(report.to_html())
    assert "confirmed" not in report.to_html()
    page = Report(Facts(fit, study_hash="ab12", over_network=True)).to_html()
    assert "all clients confirmed the same one" in page
    assert "in one process" not in page


def test_names_are_readable(fit):
    assert readable(fit, "rx[T.placebo]:age") == "rx: placebo (vs drug):age"
    assert readable(fit, "another[T.a]") == "another: a"
    assert readable(fit, "intercept") == "intercept"


def test_small_counts_and_what_reveals_them_are_not_shown(report):
    text = words(report.to_html())
    assert "leeds 150 fewer than 5" in text
    assert "all clients 440 not shown" in text
    clients = report.files()["tables/clients.csv"].decode()
    assert "leeds,150,fewer than 5" in clients
    assert not re.search(r"\b(3|44)\b", clients)


@pytest.mark.parametrize(("count", "shown"), [(0, "0"), (1, "fewer than 5"), (4, "fewer than 5"), (5, "5")])
def test_which_counts_are_shown(count, shown):
    assert shown_count(count) == shown
    assert shown_total([count, 1000]) == ("not shown" if "fewer" in shown else f"{1000 + count:,}")


def test_it_says_who_what_and_how(report):
    text = words(report.to_html())
    for expected in (
        "SHA-256 ab12",
        "Contributions of the clients",
        "The run converged in",
        "exact for practical purposes",
        "partitioned variational inference [1]",
        "Ashman M",
        "Vehtari A",
        "Cavity 0.1.0",
    ):
        assert expected in text


def test_a_client_that_differs_is_named():
    frames = {"leeds": frame(0, 300), "york": frame(1, 300, slope=-0.1), "hull": frame(2, 300)}
    fit = cavity.regression("died ~ age + rx", frames)
    assert "Differs from the others by more than chance" in words(Report(Facts(fit)).to_html())


@thorough
def test_a_fit_that_has_not_converged_says_so(tmp_path):
    fit = cavity.regression("died ~ age + rx", {"leeds": frame(0, 50), "york": frame(1, 30)}, rounds=1)
    fit.report(tmp_path / "report.html")
    assert "has not converged after 1 round" in words((tmp_path / "report.html").read_text())


def test_where_it_cannot_be_written(fit, tmp_path):
    with pytest.raises(CavityError, match=r"is a folder; give the name of a file in it"):
        fit.report(tmp_path)


SECTIONS = (
    Section("One", (Paragraph("text", important=True), Figure(b"<svg/>", "caption"))),
    Section("Two", (Table("t", ("a", "b"), (("1", "2"),), ("n",), "name"),)),
)


def test_sections_are_read_back():
    assert parts_file.read(parts_file.write("Title", SECTIONS)) == ("Title", SECTIONS)


def changed(change):
    found = json.loads(parts_file.write("Title", SECTIONS))
    change(found)
    return json.dumps(found).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        changed(lambda found: found.pop("title")),
        changed(lambda found: found.update(title=1)),
        changed(lambda found: found["sections"][0]["parts"][0].update(kind="script")),
        changed(lambda found: found["sections"][0]["parts"][1].update(svg="&&&")),
        changed(lambda found: found["sections"][1]["parts"][0].update(name="../../etc/passwd")),
        changed(lambda found: found["sections"][1]["parts"][0].update(rows=[["one cell"]])),
        changed(lambda found: found["sections"][1]["parts"][0].update(rows=[[1, 2]])),
    ],
)
def test_what_is_no_report_is_refused(content):
    with pytest.raises(ProtocolError, match="its report cannot be read"):
        parts_file.read(content)


def test_a_report_that_is_too_large_is_refused():
    with pytest.raises(ProtocolError, match="at most 3,000,000"):
        parts_file.read(b" " * 3_000_001)
