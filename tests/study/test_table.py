"""A table parses each cell once, whatever the number of steps that need it."""

from collections import Counter

import numpy as np
import pytest

import cavity
from cavity.network.limits import fingerprint, problem_with_scaling
from cavity.study import as_table, client_data, parse_study, read_csv
from cavity.study.building import design_sums, scaling_of, sums
from cavity.study.checks import check
from cavity.study.columns import Boolean, Category, Column, Number
from cavity.study.run import run_study
from tests.studies import FEDERATED, hospitals, patients, write_csv

TYPES = (Boolean, Category, Number)
USED = ("died", "rx", "age", "sex")


@pytest.fixture
def parses(monkeypatch):
    """How often each column's cells are parsed, as (column, step) -> count."""
    counts = Counter()

    def counted(cls, step):
        original = getattr(cls, step)

        def count(column, cell):
            counts[column.name, step] += 1
            return original(column, cell)

        monkeypatch.setattr(cls, step, count)

    for cls in TYPES:
        counted(cls, "value")
    counted(Column, "is_missing")
    return counts


def parsed_once(num_rows):
    """A category calls the base `is_missing` only for cells that are not a level, and there are none."""
    values = {(name, "value"): num_rows for name in USED}
    return values | {(name, "is_missing"): num_rows for name in ("died", "age")}


def test_a_clients_file_is_parsed_once(parses, tmp_path):
    study = parse_study(FEDERATED)
    table = read_csv(write_csv(tmp_path / "leeds.csv", patients(120, 1)))
    check(study, table, "leeds")
    sums(study, table)
    scaling = scaling_of(study, [table])
    design_sums(study, table, scaling)
    client_data(study, table, scaling)
    fingerprint(study, table)(b"key")
    assert problem_with_scaling(study, table, scaling) is None
    assert parses == parsed_once(120)


@pytest.mark.usefixtures("quick_to_compile")
def test_a_run_parses_each_file_once(parses, tmp_path):
    study = parse_study(FEDERATED + "[run]\nrounds = 2\n")
    tables = {name: read_csv(write_csv(tmp_path / f"{name}.csv", rows)) for name, rows in hospitals().items()}
    run_study(study, tables)
    assert parses == parsed_once(200)


@pytest.mark.usefixtures("quick_to_compile")
def test_a_regression_in_python_reads_each_value_once(parses):
    cavity.regression("died ~ rx * age + sex", hospitals(), rounds=2)
    assert all(parses[name, "value"] == 200 for name in USED if name != "died")  # its type is Integer here


def test_parsed_values_cannot_be_changed():
    table = as_table({"age": [1.0, 2.0]})
    parsed = table.parsed(Number(name="age"))
    assert table.parsed(Number(name="age")) is parsed
    np.testing.assert_array_equal(table.parsed(Number(name="age", missing_codes=("2",))).missing, [False, True])
    with pytest.raises(ValueError, match="read-only"):
        parsed.values[0] = 3.0
