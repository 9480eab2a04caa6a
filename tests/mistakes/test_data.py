"""Mistakes in a site's file, as `cavity study check` and `cavity run` report them."""

import jax
import numpy as np
import pytest

from tests.mistakes.messages import check_command
from tests.studies import FEDERATED, patients, write_csv

STUDY = (
    FEDERATED.replace("rx * age + sex", "rx + age + sex + stage")
    .replace("range = [18, 110]\nmissing", "range = [-99, 1e10]\nmissing")
    .replace("[columns.sex]", '[columns.stage]\ntype = "integer"\n\n[columns.sex]')
)
CHECK = ("study", "check", "study.toml", "--data", "leeds.csv")


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    jax.devices()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)


def rows(num_rows=80, seed=0):
    stage = np.random.default_rng(seed).integers(1, 5, num_rows)
    columns = patients(num_rows, seed) | {"stage": stage}
    return {name: cells.tolist() for name, cells in columns.items()}


def with_cell(column, cell):
    """Rows whose fourth cell of a column, in line 5 of the file, is this one."""
    columns = rows()
    columns[column][3] = cell
    return columns


def renamed(old, new):
    return {new if name == old else name: cells for name, cells in rows().items()}


CELLS = {
    "missing value": ("sex", "", ("column 'sex'", "line 5", 'impute at the site, or agree on `missing = "drop"`')),
    "NA in the outcome": ("died", "NA", ("column 'died'", "1 missing value: line 5", "impute")),
    "text among numbers": ("age", "old", ("column 'age': not a number", "'old' (line 5)")),
    "decimal comma": ("age", "61,5", ("column 'age'", "'61,5' (line 5)", "write a decimal point, not a comma")),
    "unit in a cell": ("age", "61 years", ("column 'age'", "'61 years' (line 5)", "write the number alone")),
    "percent sign": ("age", "61%", ("column 'age'", "'61%' (line 5)", "write the number alone")),
    "below a limit": ("age", "<18", ("column 'age'", "'<18' (line 5)", "write the number alone")),
    "date among numbers": ("age", "1960-05-01", ("column 'age'", "(line 5)", "the days since an agreed date")),
    "infinite number": ("age", "inf", ("column 'age': not a finite number", "(line 5)", "leave the cell empty")),
    "out of range": ("age", "1e11", ("column 'age': outside the agreed range -99 to 1e+10", "'1e11' (line 5)")),
    "fraction for a whole number": ("stage", "2.5", ("column 'stage': not a whole number", "line 5", '"number"')),
    "level that the study does not have": (
        "rx",
        "aspirin",
        ("column 'rx': not one of the agreed levels, which are placebo, low, high", "line 5"),
    ),
    "level in upper case": ("rx", "Placebo", ("column 'rx'", "did you mean 'placebo'?", "line 5")),
    "level with a space": ("sex", "m ", ("column 'sex'", "did you mean 'm'?", "line 5")),
    "level with a typo": ("rx", "plazebo", ("column 'rx'", "did you mean 'placebo'?", "line 5")),
    "outcome that is neither": ("died", "maybe", ("column 'died': not true or false", "'maybe' (line 5)", "yes or no")),
}


@pytest.mark.parametrize(("column", "cell", "expected"), CELLS.values(), ids=CELLS.keys())
def test_a_cell(command, column, cell, expected):
    write_csv("leeds.csv", with_cell(column, cell))
    check_command(command, CHECK, *expected, "leeds.csv: 1 error to fix before you join")


FILES = {
    "no such file": (None, ("leeds.csv: file not found", "check the path")),
    "empty file": (b"", ("leeds.csv: no header", "the first line must name the columns")),
    "header alone": (b"died,rx,age,sex,stage\n", ("0 rows can be used", "at least 10")),
    "column twice": (b"died,rx,age,age\n1,low,3,4\n", ("leeds.csv", "column 'age' twice", "its own name")),
    "Latin-1": ("died,größe\n1,2\n".encode("latin-1"), ("leeds.csv: the file is not text in UTF-8", "save it as CSV")),
    "spreadsheet named CSV": (b"PK\x03\x04\x14\x00\x06\x00\xff\xfe", ("leeds.csv", "a spreadsheet", "save it as CSV")),
    "quote without an end": (b'died,rx\n1,"low\n', ("leeds.csv", "cannot be read as CSV", "quote")),
    "no header": (b"1,low,61.0,f,2\n0,low,64.0,f,3\n", ("column 'died': column not found", "the table has 1, low")),
    "bars between columns": (
        b"died|rx|age\n1|low|61.0\n",
        ("leeds.csv: the header is 'died|rx|age'", "commas, semicolons or tabs"),
    ),
}


@pytest.mark.parametrize(("content", "expected"), FILES.values(), ids=FILES.keys())
def test_a_file(command, tmp_path, content, expected):
    if content is not None:
        (tmp_path / "leeds.csv").write_bytes(content)
    check_command(command, CHECK, *expected)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("leeds.xlsx", "a spreadsheet"),
        ("leeds.sav", "a file of a statistics program"),
        ("leeds.csv.gz", "a compressed file"),
        ("leeds.parquet", "this is not a CSV file"),
    ],
)
def test_a_file_of_another_program(command, tmp_path, name, kind):
    (tmp_path / name).write_bytes(b"PK\x03\x04\xff")
    check_command(command, (*CHECK[:-1], name), f"{name}: {kind}", "save it as CSV")


def test_a_folder_for_a_file(command, tmp_path):
    (tmp_path / "leeds.csv").mkdir()
    check_command(command, CHECK, "leeds.csv: this is a folder", "give a CSV file")


def test_lines_with_too_many_fields(command, tmp_path):
    write_csv("leeds.csv", rows())
    text = (tmp_path / "leeds.csv").read_text().splitlines()
    (tmp_path / "leeds.csv").write_text("\n".join([*text[:4], text[4] + ",7", *text[5:]]))
    check_command(command, CHECK, "1 line has more or fewer fields than the header: line 5", "between quotes")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("age", "AGE", ("column 'age': column not found (did you mean 'AGE'?)", "rename it there")),
        ("stage", "stge", ("column 'stage': column not found (did you mean 'stge'?)", "the table has died, rx")),
        ("sex", "gender", ("column 'sex': column not found; the table has died, rx, age, gender", "rename it there")),
    ],
)
def test_a_header(command, old, new, expected):
    write_csv("leeds.csv", renamed(old, new))
    check_command(command, CHECK, *expected)


def test_an_outcome_coded_1_and_2(command):
    write_csv("leeds.csv", rows() | {"died": [1, 2] * 40})
    check_command(command, CHECK, "column 'died'", "'2' (line 3)", "a category with levels = [1, 2]")


def test_too_few_rows(command):
    write_csv("leeds.csv", rows(6))
    check_command(command, CHECK, "6 rows can be used, and the study needs at least 10")


def test_a_name_that_is_not_in_the_study(command):
    write_csv("leeds.csv", rows())
    check_command(command, (*CHECK, "--name", "Leeds"), "unknown client 'Leeds' (did you mean 'leeds'?)", "leeds, york")


def months(columns):
    return columns | {"stage": [round(cell) for cell in columns["age"]], "age": [round(a) for a in columns["age"]]}


WARNINGS = {
    "code for a missing value": (with_cell("age", 999), ("column 'age': 999", "line 5", 'missing_codes = ["999"]')),
    "negative code": (with_cell("age", -9), ("column 'age': -9", "line 5", 'missing_codes = ["-9"]')),
    "value of 1e9": (with_cell("age", 1e9), ("column 'age': far from all other", "line 5", "agree on a `range`")),
    "collinear columns": (months(rows()), ("stage follows exactly from age", "leave one out of the formula")),
    "separation": (
        rows() | {"died": [a > 60 for a in rows()["age"]]},
        ("age alone separates", "Leave out a predictor"),
    ),
    "copies of rows": (
        {name: cells + cells[:30] for name, cells in rows().items()},
        ("copies of an earlier row in every column: lines", "remove them"),
    ),
    "constant predictor": (rows() | {"age": [61] * 80}, ("column 'age': it has the same value in every row",)),
}


@pytest.mark.parametrize(("columns", "expected"), WARNINGS.values(), ids=WARNINGS.keys())
def test_rows_that_can_be_read_but_are_probably_wrong(command, columns, expected):
    write_csv("leeds.csv", columns)
    check_command(command, CHECK, *expected, "ready to join, after you have considered 1 warning", code=0)


def test_the_same_file_at_two_clients(command, tmp_path):
    for name in ("leeds", "york"):
        write_csv(f"{name}.csv", rows())
    words = ("run", "study.toml", "--data", ".")
    check_command(command, words, "clients 'leeds' and 'york' have the same 80 rows", "its own data")


def test_a_client_without_a_file(command, tmp_path):
    (tmp_path / "data").mkdir()
    write_csv("data/leeds.csv", rows())
    words = ("run", "study.toml", "--data", "data")
    check_command(command, words, "data: york.csv not found", "every client of the study needs a file there")


def test_a_file_where_a_folder_is_needed(command):
    write_csv("leeds.csv", rows())
    words = ("run", "study.toml", "--data", "leeds.csv")
    check_command(command, words, "leeds.csv: this is a file", "the folder with NAME.csv for every client")


def test_all_clients_with_errors_are_named(command):
    write_csv("leeds.csv", with_cell("age", "old"))
    write_csv("york.csv", with_cell("sex", "w"))
    words = ("run", "study.toml", "--data", ".")
    check_command(command, words, "client 'leeds': column 'age'", "client 'york': column 'sex'", "line 5")
