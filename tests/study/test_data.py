"""A site's data: cells are read as the study declares, all problems are reported, and no bad value becomes zero."""

import math

import numpy as np
import pandas as pd
import pytest

from cavity.errors import DataError
from cavity.study import Scaling, as_table, client_data, parse_study, read_csv, study_algorithm
from cavity.study.checks import check
from cavity.study.columns import DATE_REMEDY, Boolean, Category, Integer, Missing, Number, Text
from cavity.study.disclosure import disclosures
from cavity.study.findings import Severity
from tests.studies import FEDERATED, TRIAL, patients, trial, write_csv

CODED = "a column that is coded 1 and 2 is a category with levels = [1, 2]"


def read(column, *cells):
    reading = column.parse(cells)
    return reading.values.tolist(), reading.missing.tolist(), reading.bad


def messages(findings, severity=Severity.ERROR):
    return [str(finding) for finding in findings if finding.severity == severity]


def test_numbers():
    values, missing, bad = read(Number(name="x"), "1.5", " -2e3 ", "7", 3, np.float64(2.5), True)
    assert values == [1.5, -2000.0, 7.0, 3.0, 2.5, 1.0]
    assert not any(missing)
    assert bad == {}


@pytest.mark.parametrize(
    "cell", ["", "  ", "NA", "NaN", "n/a", "null", ".", None, math.nan, pd.NA, pd.NaT, "-9", -9, -9.0]
)
def test_missing_values_of_all_kinds(cell):
    assert read(Number(name="x", missing_codes=("-9",)), cell)[1] == [True]


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        (Number(name="x"), "abc", "not a number"),
        (Number(name="x"), "1,5", "not a number (write a decimal point, not a comma)"),
        (Number(name="x"), "1_000", "not a number (write the number alone)"),
        (Number(name="x"), "inf", "not a finite number; leave the cell empty if it is missing"),
        (Number(name="x"), math.inf, "not a finite number; leave the cell empty if it is missing"),
        (Number(name="x", range=(0.0, 1.0)), "1.01", "outside the agreed range 0 to 1"),
        (
            Number(name="x"),
            "2020-01-01",
            f"a date, not a number; {DATE_REMEDY}",
        ),
        (Integer(name="x"), "1.5", 'not a whole number; a column that may have fractions has the type "number"'),
        (Integer(name="x", range=(0.0, math.inf)), "-1", "outside the agreed range 0 to inf"),
        (Boolean(name="x"), "2", f"not true or false (nor yes or no, nor 1 or 0); {CODED}"),
        (Boolean(name="x"), "maybe", "not true or false (nor yes or no, nor 1 or 0)"),
        (Category(name="x", levels=("a", "b"), reference="a"), "c", "not one of the agreed levels, which are a, b"),
        (
            Category(name="x", levels=("male", "female"), reference="male"),
            "Male ",
            "not one of the agreed levels (did you mean 'male'?)",
        ),
    ],
)
def test_bad_values_of_all_kinds(column, cell, message):
    assert read(column, cell)[2] == {message: [0]}


def test_categories_booleans_and_text():
    stage = Category(name="stage", levels=("1", "2", "10"), reference="2")
    assert read(stage, "1", 2, 10.0, np.int64(1))[0] == [1, 0, 2, 1]
    assert read(Boolean(name="x"), "TRUE", "f", "Yes", 0, 1.0, np.True_)[0] == [1, 0, 1, 0, 1, 1]
    assert read(Text(name="x"), "ward 7", 3)[0] == ["ward 7", "3"]


def test_a_level_that_looks_like_a_missing_value_is_a_level():
    column = Category(name="x", levels=("NA", "EU"), reference="EU")
    assert read(column, "NA", "EU", "")[:2] == ([1, 0, 0], [False, False, True])


def test_missing_as_a_level_of_its_own():
    column = Category(name="x", levels=("a", "b"), reference="b", missing=Missing.LEVEL)
    assert column.level_names == ("b", "a", "missing")
    assert read(column, "a", "", "b")[:2] == ([1, 2, 0], [False, False, False])


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_files_and_their_lines(tmp_path, separator):
    text = "\ufeffa,b\n1,x\n\n2,'y'\n3\n4,\"two\nlines\"\n5,z\n".replace(",", separator)
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    table = read_csv(tmp_path / "t.csv")
    assert dict(table.columns) == {"a": ["1", "2", "4", "5"], "b": ["x", "'y'", "two\nlines", "z"]}
    assert list(table.rows) == [2, 4, 6, 8]
    assert table.broken == (5,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no header"),
        (b"a,a\n1,2\n", "'a' twice"),
        ("a,b\n1,é\n".encode("latin-1"), "UTF-8"),
        (b'a,b\n"1,2\n', "cannot be read as CSV"),
    ],
)
def test_files_that_are_not_csv(tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_csv(tmp_path / "t.csv")


def test_tables_from_frames_and_dicts():
    frame = pd.DataFrame(
        {"x": [1.0, None], "s": pd.Series(["a", None], dtype="string"), "c": pd.Categorical(["u", "v"])}
    )
    table = as_table(frame)
    assert table.columns["c"] == ["u", "v"]
    assert [Text(name="").is_missing(cell) for cell in table.columns["s"]] == [False, True]
    with pytest.raises(DataError, match="different numbers of rows"):
        as_table({"a": [1], "b": [1, 2]})
    with pytest.raises(DataError, match="one value per row"):
        as_table({"a": np.zeros((2, 2))})
    with pytest.raises(DataError, match="dict of columns"):
        as_table([1, 2])


def test_all_problems_are_reported_at_once_with_lines(tmp_path):
    columns = {name: [str(cell) for cell in cells] for name, cells in patients(40, 0).items()}
    columns["age"][0], columns["age"][5], columns["age"][7] = "abc", "130", ""
    columns["rx"][1], columns["rx"][2] = "Placebo", "other"
    columns["sex"][3] = ""
    del columns["died"]
    columns["dead"] = ["1"] * 40
    table = read_csv(write_csv(tmp_path / "leeds.csv", columns))
    found = check(trial(), table, "leds")
    assert messages(found) == [
        "unknown client 'leds' (did you mean 'leeds'?); choose one of: leeds, york",
        "column 'died': column not found (did you mean 'dead'?); the table has rx, age, sex, dead; rename it there",
        "column 'rx': not one of the agreed levels (did you mean 'placebo'?) (1 value): 'Placebo' (line 3)",
        "column 'rx': not one of the agreed levels, which are placebo, low, high (1 value): 'other' (line 4)",
        "column 'age': not a number (1 value): 'abc' (line 2)",
        "column 'age': outside the agreed range 18 to 110 (1 value): '130' (line 7)",
        "column 'sex': 1 missing value: line 5; impute at the site, or agree on `missing = \"drop\"`",
    ]
    assert any("line 9" in note and "dropped" in note for note in messages(found, Severity.NOTE))
    assert found[4].rows == (2,)


def test_at_most_ten_rows_are_listed_per_problem():
    columns = patients(40, 0) | {"age": [200] * 40}
    (finding,) = [f for f in check(trial(), columns) if f.severity == Severity.ERROR]
    assert finding.message.count("(row ") == 10
    assert finding.message.endswith("and 30 more")
    assert (len(finding.rows), finding.num_rows) == (10, 40)


def test_a_valid_table_has_no_errors_and_missing_levels_are_noted():
    columns = patients(200, 0) | {"sex": ["f"] * 200, "patient": range(200)}
    found = check(trial(), columns, "leeds")
    assert messages(found) == []
    notes = messages(found, Severity.NOTE)
    assert "column 'sex': no row with 'm'; other sites may have some" in notes
    assert any("patient" in note for note in notes)


def test_few_rows_are_refused_or_give_a_warning():
    assert "9 rows can be used" in messages(check(trial(), patients(9, 0)))[0]
    small = trial([('id = "trial-1"', 'id = "trial-1"\nmin_rows = 5')])
    assert messages(check(small, patients(7, 0))) == []
    assert any("up to a rotation" in text for text in messages(check(small, patients(7, 0)), Severity.WARNING))
    assert any("single rows" in text for text in messages(check(trial(), patients(30, 0)), Severity.WARNING))
    assert not any("few for" in text for text in messages(check(trial(), patients(36, 0)), Severity.WARNING))


def test_small_groups_give_a_warning():
    columns = patients(200, 0) | {"sex": ["m"] * 2 + ["f"] * 198}
    assert any(
        "sex[T.m]: only 2 rows: they could be identified" in text
        for text in messages(check(trial(), columns), Severity.WARNING)
    )


def test_a_logarithm_of_zero_is_an_error_with_its_rows():
    study = trial([("* age", "* log(age)"), ("range = [18, 110]\n", "")])
    columns = patients(100, 0)
    columns["age"][3] = 0.0
    assert any("log(age) is not a finite number in row 3" in text for text in messages(check(study, columns)))
    with pytest.raises(DataError, match="log\\(age\\).*row 3"):
        client_data(study, columns, Scaling())


def test_dropped_rows_are_removed_and_not_set_to_zero():
    columns = patients(50, 0)
    columns["age"][[3, 10]] = np.nan
    x, y = client_data(trial(), columns, Scaling())
    kept = np.delete(np.arange(50), [3, 10])
    np.testing.assert_array_equal(y, columns["died"][kept])
    np.testing.assert_array_equal(x[:, 2], columns["age"][kept])
    columns["age"][:42] = np.nan
    with pytest.raises(DataError, match="8 rows can be used, and the study needs at least 10"):
        client_data(trial(), columns, Scaling())


def test_client_data_are_the_same_from_a_file_and_a_frame(tmp_path):
    columns = patients(50, 0)
    from_file = client_data(trial(), read_csv(write_csv(tmp_path / "a.csv", columns)), Scaling())
    for other in (columns, pd.DataFrame(columns)):
        for ours, theirs in zip(from_file, client_data(trial(), other, Scaling()), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_disclosures_match_what_is_sent():
    once, matrix, each_round = disclosures(parse_study(FEDERATED))
    assert (matrix.when, matrix.num_numbers, matrix.num_bytes) == ("once", 13, 104)
    assert str(once) == "once: n, sum and sum of squares of age (3 numbers, 24 bytes)"
    assert "2 arrays (7 + 49 numbers): precision_mean [7], precision [7, 7]" in str(each_round)
    assert (each_round.num_numbers, each_round.num_bytes) == (60, 480)
    algorithm = study_algorithm(trial(), Scaling())
    assert algorithm.server.entries.initial().precision.shape == (7, 7)
    diagonal = parse_study(TRIAL + '[algorithm]\ncovariance = "diagonal"\n')
    assert "(7 + 7 numbers)" in str(disclosures(diagonal)[-1])
