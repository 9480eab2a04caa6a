"""What is probably wrong with rows that can be read: each mistake gives one warning, and clean rows give none."""

import numpy as np
import pytest

import cavity
from cavity.errors import DataError
from cavity.study.checks import check
from cavity.study.data_quality import refuse_same_rows
from cavity.study.run import run_study
from cavity.study.table import as_table
from tests.studies import hospitals, patients, trial

PLAIN = [("range = [18, 110]\n", ""), ("rx * age + sex", "rx + age + sex")]
WITH_MONTHS = [
    ("range = [18, 110]\n", ""),
    ("rx * age + sex", "rx + age + months + sex"),
    ("[columns.sex]", '[columns.months]\ntype = "number"\n\n[columns.sex]'),
]


def warnings_about(columns, changes=PLAIN):
    return [str(finding) for finding in check(trial(changes), columns) if finding.severity == "warning"]


def with_values(column, value, *rows):
    columns = patients(120, 0)
    columns[column] = [value if i in rows else cell for i, cell in enumerate(columns[column].tolist())]
    return columns


@pytest.mark.parametrize("seed", range(5))
def test_clean_rows_give_no_warning(seed):
    assert warnings_about(patients(120, seed)) == []


@pytest.mark.parametrize("code", [999, -9, 9999, -99, 888])
def test_a_code_for_a_missing_value_among_numbers(code):
    (message,) = warnings_about(with_values("age", code, 3, 9))
    assert message.startswith(f"column 'age': {code} looks like a code for a missing value (2 values: rows 3, 9)")
    assert f'missing_codes = ["{code}"]' in message


def test_a_plausible_value_is_no_code():
    assert warnings_about(with_values("age", 99, 3)) == []


def test_a_value_out_of_all_proportion():
    (message,) = warnings_about(with_values("age", 1e9, 5))
    assert message.startswith("column 'age': far from all other values")
    assert "'1e+09' (row 5)" in message
    assert "agree on a `range`" in message


def test_numbers_that_differ_in_their_last_digits_only():
    columns = patients(120, 0)
    (message,) = warnings_about(columns | {"age": columns["age"] * 1e-3 + 1e9})
    assert "column 'age': its values are 1e+09 and differ by" in message
    assert "subtract an agreed number" in message


def test_copies_of_rows_are_counted():
    columns = {name: np.concatenate([cells, cells[:20]]) for name, cells in patients(120, 3).items()}
    columns["patient"] = np.concatenate([np.arange(120), np.arange(20)])
    (message,) = warnings_about(columns)
    assert message.startswith("20 rows are copies of an earlier row in every column: rows 120, 121,")
    assert "remove them" in message


def test_rows_that_are_alike_by_chance_are_no_copies():
    few_columns = {name: cells for name, cells in patients(120, 0).items() if name != "age"}
    assert warnings_about(few_columns, [("rx * age + sex", "rx + sex")]) == []


def test_columns_that_follow_from_others():
    columns = patients(120, 0)
    messages = warnings_about(columns | {"months": 12 * columns["age"] + 3, "patient": np.arange(120)}, WITH_MONTHS)
    (message,) = messages
    assert message.startswith("months follows exactly from age in these rows")
    assert "leave one out" in message
    noisy = 12 * columns["age"] + np.random.default_rng(0).normal(size=120)
    assert warnings_about(columns | {"months": noisy}, WITH_MONTHS) == []


def test_a_separated_outcome():
    columns = patients(120, 0)
    (message,) = warnings_about(columns | {"died": columns["age"] > 60})
    assert message.startswith("age alone separates the outcome in these rows")
    both = columns["age"] / 12 + 3 * (columns["sex"] == "m")
    (message,) = warnings_about(columns | {"died": both > np.median(both)})
    assert message.startswith("the columns of the formula together separate the outcome")


def test_the_same_rows_at_two_clients_are_refused():
    frames = hospitals()
    order = np.random.default_rng(0).permutation(120)
    shuffled = {name: cells[order] for name, cells in reversed(frames["leeds"].items())}
    for copy in (frames["leeds"], shuffled):
        with pytest.raises(DataError, match="clients 'leeds' and 'york' have the same 120 rows.*its own data"):
            cavity.regression("died ~ age", {"leeds": frames["leeds"], "york": copy})
        with pytest.raises(DataError, match="clients 'leeds' and 'york' have the same 120 rows"):
            run_study(trial(), {"leeds": as_table(frames["leeds"]), "york": as_table(copy)})
    other = frames["leeds"] | {"age": np.roll(frames["leeds"]["age"], 1)}  # the same columns, other rows
    refuse_same_rows({"leeds": as_table(frames["leeds"]), "york": as_table(other)})


def test_a_few_rows_that_are_the_same_by_chance_are_not_refused():
    few = {"died": [True, False, True, False], "rx": ["low", "low", "high", "high"]}
    refuse_same_rows({name: as_table(few) for name in ("leeds", "york", "hull")})
    one = {"died": [True], "age": [61.5]}
    refuse_same_rows({name: as_table(one) for name in ("leeds", "york")})
