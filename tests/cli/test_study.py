"""The commands of a study as a user types them: a draft without values, a check that lists all problems, a run."""

import csv
import json
import sys
import tomllib

import jax
import numpy as np
import pytest

import cavity
from cavity.errors import StudyError
from cavity.study import read_study
from cavity.study import run as study_running
from tests.studies import FEDERATED, TRIAL, hospitals, patients, write_csv

pytestmark = pytest.mark.usefixtures("quick_to_compile")


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """A folder with the hospitals' files, and JAX started, so that the command does not change its devices."""
    jax.devices()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name, columns in hospitals().items():
        write_csv(tmp_path / "data" / f"{name}.csv", columns)
    (tmp_path / "study.toml").write_text(FEDERATED)


@pytest.mark.parametrize("words", [["study", "new", "--help"], ["study", "check", "--help"], ["run", "--help"]])
def test_help_has_an_example(command, words):
    code, out, err = command(*words)
    assert (code, err) == (0, "")
    assert "Example: cavity" in out


def secretive():
    """A file whose values are easy to recognise."""
    return {
        "patient": [f"ZQ{i:05d}" for i in range(40)],
        "centre": ["Xanadu", "Zembla"] * 20,
        "age": [77.125 + i for i in range(40)],
        "stage": [91, 92, 93, 94] * 10,
        "born at": [f"1931-07-0{i % 9 + 1}" for i in range(40)],
        "died": ["yes", "no"] * 20,
    }


def test_new_writes_no_values_of_the_data(command, tmp_path):
    columns = secretive()
    write_csv(tmp_path / "mine.csv", columns)
    code, out, _ = command("study", "new", "mine.csv", "--output", "new.toml")
    assert code == 0
    assert "the outcome is 'died'" in out
    assert "patient" in out
    text = (tmp_path / "new.toml").read_text()
    identified = tomllib.loads(text)["id"]  # random, so it may contain "93" by chance
    for name in ("patient", "centre", "age", "stage", "born at"):
        for value in columns[name]:
            assert str(value) not in text.replace(identified, "")
            assert str(value) not in out
    tomllib.loads(text)
    code, out, _ = command("study", "check", "new.toml")
    assert code == 2
    assert "clients (line 6): name at least one client" in out
    assert "columns.centre.levels" in out


def test_a_draft_with_levels_and_clients_can_be_run(command, tmp_path):
    code, _, _ = command(
        "study", "new", "data/leeds.csv", "--outcome", "died", "--output", "new.toml", "--with-levels",
        "--client", "leeds", "--client", "york", "--name", "A new trial",
    )  # fmt: skip
    assert code == 0
    study = read_study("new.toml")
    assert study.name == "A new trial"
    assert study.model.formula == "died ~ rx + age + sex"
    assert study.columns[1].levels == ("high", "low", "placebo")
    assert command("study", "check", "new.toml", "--data", "data/york.csv", "--name", "york")[0] == 0
    code, _, err = command("study", "new", "data/leeds.csv", "--output", "new.toml")
    assert code == 2
    assert "the file exists already" in err
    assert (
        "column 'dead' not found"
        in command("study", "new", "data/leeds.csv", "--outcome", "dead", "--output", "x.toml")[2]
    )


@pytest.mark.parametrize(
    ("outcome", "family"),
    [
        ("age", "gaussian"),
        ("died", "bernoulli"),
        ("centre", "bernoulli"),
        ("three", "categorical"),
    ],
)
def test_the_draft_suits_its_outcome(command, tmp_path, outcome, family):
    columns = secretive() | {"three": [*"abca"] * 10}
    write_csv(tmp_path / "mine.csv", columns)
    words = ["--outcome", outcome, "--with-levels", "--client", "mine", "--output", "new.toml"]
    assert command("study", "new", "mine.csv", *words)[0] == 0
    study = read_study("new.toml")
    assert study.model.family.name == family
    assert study.scales_design
    assert (study.outcome_rule == "federated") == (family == "gaussian")
    prior = study.prior
    assert (prior.scale, prior.intercept_scale) == ((2.5, 2.5) if family == "gaussian" else (2.5, 10.0))


@pytest.mark.parametrize(
    ("outcome", "family"),
    [
        ("stage", "poisson"),
        ("stage", "negative-binomial"),
        ("stage", "ordinal"),
        ("stage", "categorical"),
        ("stage", "gaussian"),
        ("age", "gamma"),
        ("age", "student-t"),
        ("pair", "bernoulli"),
    ],
)
def test_the_family_of_a_draft_may_be_chosen(command, tmp_path, outcome, family):
    write_csv(tmp_path / "mine.csv", secretive() | {"pair": [1, 2] * 20})
    words = ["--outcome", outcome, "--with-levels", "--client", "mine", "--output", "new.toml"]
    assert command("study", "new", "mine.csv", "--family", family, *words)[0] == 0
    study = read_study("new.toml")  # which checks that the outcome's column suits the family
    assert study.model.family.name == family
    assert command("study", "check", "new.toml", "--data", "mine.csv")[0] == 0


def test_a_draft_asks_where_it_cannot_know_the_family(command, tmp_path):
    write_csv(tmp_path / "mine.csv", secretive() | {"site": ["Leeds"] * 40})
    for outcome, message in [
        ("stage", "counts, ordered levels, codes or measurements; choose with --family: poisson or negative-binomial"),
        ("patient", "has many different texts, like an identifier; choose another outcome"),
        ("site", "has one value only; choose another outcome"),
    ]:
        code, _, err = command("study", "new", "mine.csv", "--outcome", outcome, "--output", "new.toml")
        assert code == 2
        assert message in " ".join(err.split())
        assert not (tmp_path / "new.toml").exists()
    code, _, err = command("study", "new", "mine.csv", "--family", "poison", "--output", "new.toml")
    assert code == 2
    assert "unknown family 'poison' (did you mean 'poisson'?)" in " ".join(err.split())
    code, out, _ = command(
        "study", "new", "mine.csv", "--outcome", "stage", "--family", "binomial", "--output", "b.toml"
    )
    assert code == 0
    assert "FILL_IN in the formula, the other column of the outcome" in out
    assert "stage | trials(FILL_IN) ~" in (tmp_path / "b.toml").read_text()


def test_a_draft_leaves_out_identifiers_and_constants_and_says_so(command, tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "recordNumber": rng.permutation(40) + 5000,  # a sequence
        "patient_id": rng.integers(0, 30, 40),  # by its name, with several rows per patient
        "subject": rng.choice(10**6, 40, replace=False),  # all different, and a name
        "site": ["Leeds"] * 40,
        "pressure": rng.integers(90, 180, 40),
        "died": ["yes", "no"] * 20,
    }
    write_csv(tmp_path / "mine.csv", columns)
    words = ["--outcome", "died", "--client", "mine", "--output", "new.toml"]
    code, out, _ = command("study", "new", "mine.csv", *words)
    assert code == 0
    assert "Identifiers, left out of the formula: recordNumber, patient_id, subject." in " ".join(out.split())
    assert "The same value in every row, left out of the formula: site." in " ".join(out.split())
    assert "To be filled in" not in out
    assert read_study("new.toml").model.formula == "died ~ pressure"
    text = (tmp_path / "new.toml").read_text()
    assert 'type = "integer"  # identifiers; not in the formula, and ignored' in text
    assert "Leeds" not in text


def test_dates_have_a_remedy_other_than_categories(command, tmp_path):
    remedy = "the days since an agreed date"
    dated = patients(60, 0) | {"day": [f"2024-03-{1 + i % 12:02d}" for i in range(60)]}
    write_csv(tmp_path / "dated.csv", dated)
    words = ["--client", "dated", "--with-levels", "--output", "new.toml"]
    code, out, _ = command("study", "new", "dated.csv", "--outcome", "died", *words)
    assert code == 0
    assert f"Dates, left out of the formula: day. To use one, give it as a number, {remedy}." in out
    assert read_study("new.toml").model.formula == "died ~ rx + age + sex"
    draft = (tmp_path / "new.toml").read_text()
    assert f'type = "text"  # dates: to use them, give it as a number, {remedy}' in draft
    (tmp_path / "used.toml").write_text(draft.replace("rx + age", "day + rx + age"))
    code, out, _ = command("study", "check", "used.toml")
    assert code == 2
    assert remedy in out
    for kind in ('"number"', '"category"\nlevels = ["a", "b"]'):
        before, after = draft.replace("rx + age", "day + rx + age").split("[columns.day]\ntype = ")
        (tmp_path / "typed.toml").write_text(f"{before}[columns.day]\ntype = {kind}  #{after}")
        code, out, _ = command("study", "check", "typed.toml", "--data", "dated.csv")
        assert code == 2
        assert remedy in out
    code, _, err = command("study", "new", "dated.csv", "--outcome", "day", "--output", "other.toml")
    assert code == 2
    assert remedy in err


OWN = """
name = "own"
id = "own"
clients = ["leeds", "york"]
[model]
function = "hostile_models.inner:linear"
formula = "age ~ sex"
[columns]
age = { type = "number" }
sex = { type = "category", levels = ["f", "m"] }
"""


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A package that leaves a file behind when it is imported."""
    package = tmp_path / "site" / "hostile_models"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("open('imported', 'w').close()\n")
    (package / "inner.py").write_text(
        "import cavity\ndef linear() -> cavity.models.Regression:\n"
        "    return cavity.models.linear_regression(1, noise_sd=10.0)\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delenv("CAVITY_ALLOW_MODELS", raising=False)
    (tmp_path / "own.toml").write_text(OWN)
    yield tmp_path / "imported"
    for name in ("hostile_models", "hostile_models.inner"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "words",
    [
        ("study", "check", "own.toml"),
        ("study", "check", "own.toml", "--data", "data/leeds.csv"),
        ("study", "check", "own.toml", "--allow-model", "hostile_models"),
        ("run", "own.toml", "--data", "data", "--allow-model", "hostile_models.inner.linear"),
        ("server", "own.toml", "--insecure", "--host", "127.0.0.1"),
        ("client", "own.toml", "--name", "leeds", "--data", "data/leeds.csv", "--insecure"),
        ("client", "own.toml", "--name", "leeds", "--data", "data/leeds.csv", "--dry-run"),
    ],
)
def test_a_module_that_the_site_has_not_allowed_is_not_imported(command, hostile, words):
    code, out, err = command(*words)
    assert code == 2
    assert "the study 'own' wants to import the module 'hostile_models.inner'" in out + err
    assert "--allow-model hostile_models.inner" in out + err
    assert not hostile.exists()


@pytest.mark.parametrize("by_option", [True, False])
def test_a_module_that_the_site_has_allowed_is_imported(command, hostile, monkeypatch, by_option):
    words = ["--allow-model", "other", "--allow-model", "hostile_models.inner"] if by_option else []
    if not by_option:
        monkeypatch.setenv("CAVITY_ALLOW_MODELS", "other, hostile_models.inner")
    code, out, _ = command("study", "check", "own.toml", *words)
    assert code == 0
    assert "the model of hostile_models.inner:linear" in out
    assert hostile.exists()


def test_allowed_modules_are_not_part_of_the_study(command, hostile):
    assert read_study("own.toml").hash == read_study("own.toml", allow_models=["hostile_models.inner"]).hash
    with pytest.raises(StudyError, match="a list of names"):
        read_study("own.toml", allow_models="hostile_models.inner")


def test_check_shows_what_is_sent_and_that_there_are_no_problems(command):
    code, out, _ = command("study", "check", "study.toml", "--data", "data/leeds.csv", "--name", "leeds")
    assert code == 0
    assert "once: n, sum and sum of squares of age (3 numbers, 24 bytes)" in out
    matrix = "rx[T.low], rx[T.high], age, sex[T.m], rx[T.low]:age, rx[T.high]:age"
    assert f"once: n, sum and sum of squares of the columns of the formula's matrix: {matrix} (13 numbers" in out
    assert "each round: the change of its factor, 2 arrays (7 + 49 numbers)" in out
    assert read_study("study.toml").hash in out
    assert "model: logistic regression, died ~ rx * age + sex; exp(coefficient): odds ratio\n" in out
    assert out.endswith("data/leeds.csv: ready to join\n")
    assert command("study", "check", "study.toml")[0] == 0
    code, out, _ = command("study", "check", "study.toml", "--name", "leed")
    assert code == 2
    assert "did you mean 'leeds'?" in out


def test_check_lists_all_problems(command, tmp_path):
    columns = patients(60, 0) | {"rx": ["Placebo"] * 60}
    columns["age"][4] = 17
    write_csv(tmp_path / "bad.csv", columns)
    code, out, err = command("study", "check", "study.toml", "--data", "bad.csv")
    assert (code, err) == (2, "")
    assert (
        "error: column 'rx': not one of the agreed levels (did you mean 'placebo'?) (60 values): 'Placebo' (line 2)"
        in out
    )
    assert "and 50 more" in out
    assert "'17.0' (line 6)" in out
    assert out.endswith("bad.csv: 2 errors to fix before you join\n")
    (tmp_path / "wrong.toml").write_text(TRIAL.replace("unit", "untis").replace('"m"]', '"f"]'))
    code, out, _ = command("study", "check", "wrong.toml")
    assert code == 2
    assert out.count("error: wrong.toml: ") == 2
    assert command("study", "check", "nothing.toml")[0] == 2


def test_run_writes_its_results(command, tmp_path):
    code, out, err = command("run", "study.toml", "--data", "data")
    assert code == 0
    assert "round 1: change" in err
    assert "rx[T.high]:age" in out
    directory = tmp_path / "runs" / "trial-1"
    expected = {"checkpoint.npz", "history.jsonl", "posterior.npz", "study.toml", "summary.csv", "versions.json"}
    expected |= {"report.html", "report.json", "tables", "covariance.csv", "draws.csv"}
    assert {path.name for path in directory.iterdir()} == expected
    report = (directory / "report.html").read_text()
    assert "rows dropped" in report
    assert read_study("study.toml").hash in report
    levels = {"rx": ["placebo", "low", "high"]}
    fit = cavity.regression("died ~ rx * age + sex", hospitals(), levels=levels)
    covariance = np.genfromtxt(directory / "covariance.csv", delimiter=",", skip_header=1)
    np.testing.assert_allclose(covariance, fit.coefficients.covariance, rtol=1e-11, atol=1e-14)
    with np.load(directory / "posterior.npz", allow_pickle=False) as posterior:
        assert posterior["names"].tolist() == [estimate.name for estimate in fit.summary()]
        np.testing.assert_allclose(posterior["mean"], fit.coefficients.mean, rtol=1e-11)
        np.testing.assert_allclose(posterior["covariance"], fit.coefficients.covariance, rtol=1e-11, atol=1e-14)
    with open(directory / "summary.csv", newline="") as file:
        rows = {row["parameter"]: row for row in csv.DictReader(file)}
    for estimate in fit.summary():
        assert float(rows[estimate.name]["mean"]) == pytest.approx(estimate.mean, rel=1e-11)
        assert float(rows[estimate.name]["upper"]) == pytest.approx(estimate.upper, rel=1e-11)
    assert {row["level"] for row in rows.values()} == {"0.95"}
    history = [json.loads(line) for line in (directory / "history.jsonl").read_text().splitlines()]
    assert [record["round"] for record in history] == list(range(1, len(history) + 1))
    assert json.loads((directory / "versions.json").read_text())["study"] == read_study("study.toml").hash
    assert (directory / "study.toml").read_text() == FEDERATED


def test_run_has_intervals_of_the_level_asked_for(command, tmp_path):
    code, out, _ = command("run", "study.toml", "--data", "data", "--level", "0.5")
    assert code == 0
    assert out.splitlines()[0].split() == ["parameter", "mean", "sd", "25%", "75%"]
    with open(tmp_path / "runs" / "trial-1" / "summary.csv", newline="") as file:
        for row in csv.DictReader(file):
            assert row["level"] == "0.5"
            half = float(row["upper"]) - float(row["mean"])
            assert half == pytest.approx(0.6744898 * float(row["sd"]), rel=1e-6)


def test_an_interrupted_run_resumes_to_the_same_posterior(command, tmp_path, monkeypatch):
    assert command("run", "study.toml", "--data", "data", "--output", "whole")[0] == 0
    original = study_running.fitting.run

    def killed(*arguments, observers=(), **options):
        def kill(record, server):
            if record["round"] == 3:
                raise KeyboardInterrupt

        options["checkpoint_seconds"] = 0.0
        return original(*arguments, observers=[kill], **options)

    monkeypatch.setattr(study_running.fitting, "run", killed)
    assert command("run", "study.toml", "--data", "data", "--output", "part")[0] == 130
    assert not (tmp_path / "part" / "posterior.npz").exists()
    code, _, err = command("run", "study.toml", "--data", "data", "--output", "part")
    assert code == 2
    assert "resume it with --resume" in err
    changed = FEDERATED.replace("[18, 110]", "[0, 110]")
    (tmp_path / "changed.toml").write_text(changed)
    code, _, err = command("run", "changed.toml", "--data", "data", "--output", "part", "--resume")
    assert code == 2
    assert "different keys: columns.age.range" in err
    assert command("run", "study.toml", "--data", "data", "--output", "part", "--resume")[0] == 0
    for name in ("posterior.npz", "summary.csv"):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_errors_of_a_run_are_one_line(command, tmp_path):
    (tmp_path / "data" / "york.csv").unlink()
    code, out, err = command("run", "study.toml", "--data", "data")
    assert (code, out) == (2, "")
    assert "york.csv not found" in err
    write_csv(tmp_path / "data" / "york.csv", patients(9, 0))
    code, _, err = command("run", "study.toml", "--data", "data", "--output", "few")
    assert code == 2
    assert "client 'york': 9 rows can be used, and the study needs at least 10" in err
    code, _, err = command("run", "study.toml", "--data", "data", "--output", "new", "--resume")
    assert code == 2
    assert "no checkpoint to resume from" in err
    assert not (tmp_path / "few" / "posterior.npz").exists()


def test_dropped_rows_are_reported(command, tmp_path):
    columns = {name: [str(cell) for cell in cells] for name, cells in patients(80, 2).items()}
    columns["age"][3] = ""
    write_csv(tmp_path / "data" / "york.csv", columns)
    code, _, err = command("run", "study.toml", "--data", "data")
    assert code == 0
    assert "york: 1 of 80 rows dropped" in err
