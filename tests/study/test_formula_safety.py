"""No formula runs code or takes long: text from a file is parsed, and never evaluated."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cavity
from cavity.cli import main
from cavity.errors import CheckpointError, StudyError
from cavity.study.columns import Category, Number
from cavity.study.design import Design
from cavity.study.formula import parse_formula
from tests.formulas import EXPLOIT
from tests.studies import hospitals


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_no_formula_runs_code(count):
    program = [sys.executable, "-m", "tests.audited_formulas", str(count)]
    finished = subprocess.run(program, capture_output=True, text=True, timeout=280, cwd=Path(__file__).parents[2])
    assert finished.returncode == 0, finished.stderr[-2000:]
    found = json.loads(finished.stdout)
    assert found["events"] == []
    assert found["refused"] > 0.3 * count
    assert found["computed"] > 0.03 * count  # enough of them get through to be computed


STUDY = f"""
name = "Hostile"
id = "hostile"
clients = ["leeds"]
[model]
family = "logistic"
formula = '''{EXPLOIT}'''
[columns]
died = {{ type = "boolean" }}
age = {{ type = "number" }}
"patient's bmi" = {{ type = "number" }}
"c" = {{ type = "number" }}
"""


def test_a_study_file_cannot_run_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    with pytest.raises(SystemExit) as stopped:
        main(["study", "check", "study.toml"])
    assert stopped.value.code == 2
    assert "refused at character 31" in capsys.readouterr().out
    assert not (tmp_path / "pwned").exists()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The file of a fit whose columns are scaled, so that its summary computes the formula's matrix."""
    fit = cavity.regression("died ~ age", hospitals(), rounds=1, tolerance=1e9)
    path = tmp_path_factory.mktemp("fit") / "fit.npz"

    def save(**fields):
        encoding = fit.algorithm.model.encoding
        before = {name: getattr(encoding, name) for name in fields}
        for name, value in fields.items():
            object.__setattr__(encoding, name, value)
        fit.save(path)
        for name, value in before.items():
            object.__setattr__(encoding, name, value)
        return path

    return save


@pytest.mark.usefixtures("quick_to_compile")
def test_a_saved_fit_cannot_run_code(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns = tuple(Number(name=name) for name in ("died", "age", "patient's bmi"))
    path = saved(formula=EXPLOIT, columns=columns)
    with pytest.raises(CheckpointError, match="refused at character 31"):
        cavity.load(path).summary()
    assert not (tmp_path / "pwned").exists()


@pytest.mark.usefixtures("quick_to_compile")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"formula": 7}, "FormulaEncoding has"),
        ({"formula": "died ~ age + weight"}, "uses the columns died, age, weight, but it has died, age"),
        ({"columns": ()}, "but it has"),
        ({"columns": (Number(name="died"), 7)}, "FormulaEncoding has"),
        ({"columns": (Number(name="died"), Number(name="age"), Number(name="age"))}, "but it has died, age, age"),
        ({"columns": (Number(name="died"), Category(name="age", levels=("a",), reference="b"))}, "'age' is not"),
        (
            {
                "formula": "died ~ age:sex",
                "columns": (
                    Number(name="died"),
                    *(Category(name=n, levels=tuple(map(str, range(999))), reference="0") for n in ("age", "sex")),
                ),
            },
            "more than 2000 coefficients",
        ),
    ],
)
def test_the_formula_of_a_saved_fit_is_checked(saved, fields, message):
    with pytest.raises(CheckpointError, match=message):
        cavity.load(saved(**fields))


NAMES = [f"x{i}" for i in range(3000)]


@pytest.mark.parametrize(
    ("right", "message"),
    [
        ("a" * 60_000, "longer than 50000 characters"),
        ("+".join("a" * 20_000), "more than 10000 words"),
        ("+".join(NAMES), "more than 2000 terms"),
        ("*".join(NAMES), "more than 2000 terms"),
        (f"({'+'.join(NAMES[:400])}):({'+'.join(NAMES[400:800])})", "more than 2000 terms"),
        ("(a+b+c+d+e+f+g+h+i+j+k+l+m)**18", "more than 2000 terms"),
        ("-".join(["(a+b+c+d+e+f)**9"] * 300), "more than 20000 products"),
        (":".join(NAMES), "more than 20 factors"),
        ("a**1000000", "whole number from 1 to 1000"),
        ("(" * 5000, "nested more than 30 deep"),
        ("{" + "-" * 9000 + "a}", "nested more than 30 deep"),
        ("I(" * 4000, "nested more than 30 deep"),
        ("{" + "(" * 4000 + "a" + ")" * 4000 + "}", "nested more than 30 deep"),
        ("{a" + "**2" * 3000 + "}", "nested more than 30 deep"),
        ("1" * 40_000 + "x", "name is too long"),
        ("{" + "1" * 40_000 + "}", "number is too long"),
        ("`" + "\\a" * 20_000, "no end"),
        ("`" * 9001, "no end"),
        ("{1e999 * a}", "too large"),
        ("{" + "+".join("a" * 4000) + "}", "longer than 1000 characters"),
        ("a:" + "9" * 90 + ":" + "8" * 90 + ":" + "7" * 90 + ":" + "6" * 90, "positive finite"),
    ],
)
def test_formulas_that_are_too_large_are_refused_quickly(right, message):
    begun = time.process_time()
    with pytest.raises(StudyError, match=f"at character .*{message}"):
        parse_formula(f"y ~ {right}")
    assert time.process_time() - begun < 20.0  # most take milliseconds without the type checks of the tests


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\x9b", "\x7f", "\u202e", "\u2067", "\ud800"])
def test_control_characters_are_refused_everywhere(character):
    for text in (f"y ~ `a{character}b`", f"y ~ a{character}", f"`{character}` ~ a", f"y ~ I(a{character})"):
        with pytest.raises(StudyError, match="cannot be shown") as refused:
            parse_formula(text)
        assert character not in str(refused.value)


def test_a_category_of_very_many_levels_is_refused_quickly():
    levels = tuple(map(str, range(200_000)))
    columns = tuple(Category(name=f"c{i}", levels=levels, reference="0") for i in range(8))
    begun = time.process_time()
    with pytest.raises(StudyError, match="more than 2000 coefficients"):
        Design("y ~ c0:c1:c2:c3:c4:c5:c6:c7", columns).names
    assert time.process_time() - begun < 20.0


def test_a_high_power_of_few_terms_is_expanded():
    begun = time.process_time()
    terms = parse_formula("y ~ (a+b+c)**18").terms
    assert [":".join(factor.name for factor in term.factors) for term in terms] == [
        *("a", "b", "c", "a:b", "a:c", "b:c", "a:b:c")
    ]
    assert time.process_time() - begun < 20.0


@pytest.mark.parametrize(
    ("num_categories", "num_levels", "message"),
    [(3, 30, "more than 2000 coefficients"), (9, 2, "lower interactions"), (12, 2, "more than 10 categories")],
)
def test_a_matrix_that_would_be_too_wide_is_refused_before_it_is_built(num_categories, num_levels, message):
    levels = tuple(map(str, range(num_levels)))
    columns = tuple(Category(name=f"c{i}", levels=levels, reference="0") for i in range(num_categories))
    with pytest.raises(StudyError, match=f"at character 5 .*{message}"):
        Design(f"y ~ {':'.join(column.name for column in columns)}", columns).names
