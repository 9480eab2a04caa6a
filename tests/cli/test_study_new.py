"""What `cavity study new` guesses from the columns that people bring."""

import jax
import numpy as np
import pytest

from cavity.study import read_study
from tests.studies import patients, write_csv

ROWS = 60


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    jax.devices()  # the command does not change the devices once JAX has started
    monkeypatch.chdir(tmp_path)


def drafted(command, columns, *words):
    write_csv("leeds-general.csv", columns)
    options = ["--output", "new.toml", "--with-levels", "--client", "leeds", *words]
    code, out, err = command("study", "new", "leeds-general.csv", *options)
    assert code == 0, err
    return read_study("new.toml"), " ".join(out.split())


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("id", np.arange(ROWS) % 7),
        ("patient", np.arange(ROWS) // 2),
        ("subject_no", np.arange(ROWS) // 3),
        ("PatientNumber", np.arange(ROWS) // 3),
        ("nhs", np.random.default_rng(0).choice(np.arange(10**9, 10**10, 7919), ROWS, replace=False)),
        ("sequence", 4000 + np.random.default_rng(0).permutation(ROWS)),
    ],
)
def test_whole_numbers_that_identify_patients_stay_out_of_the_formula(command, name, cells):
    study, out = drafted(command, {name: cells} | patients(ROWS, 0), "--outcome", "died")
    assert study.model.formula == "died ~ rx + age + sex"
    assert f"Identifiers, left out of the formula: {name}." in out


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("patient_age", np.arange(ROWS) % 40),
        ("number_of_visits", np.arange(ROWS) % 5),
        ("income", 20_000 + 37 * np.random.default_rng(0).permutation(ROWS)),
    ],
)
def test_other_whole_numbers_are_predictors(command, name, cells):
    study, _ = drafted(command, patients(ROWS, 0) | {name: cells}, "--outcome", "died")
    assert study.model.formula == f"died ~ rx + age + sex + {name}"


def test_whole_numbers_as_the_outcome_are_no_counts_by_default(command):
    columns = patients(ROWS, 0) | {"age": np.arange(ROWS) % 50 + 20}
    write_csv("leeds-general.csv", columns)
    code, _, err = command("study", "new", "leeds-general.csv", "--outcome", "age", "--output", "new.toml")
    assert code == 2
    assert "gaussian for measurements" in err
    study, _ = drafted(command, columns, "--outcome", "age", "--family", "gaussian")
    assert study.model.family.name == "gaussian"


@pytest.mark.parametrize(
    ("cells", "family"),
    [(("yes", "no"), "bernoulli"), (("alive", "dead"), "bernoulli"), (("low", "middle", "high"), "categorical")],
)
@pytest.mark.parametrize("word", ["unknown", "Not recorded", "?"])
def test_a_word_for_unknown_is_no_level_of_the_outcome(command, cells, family, word):
    columns = patients(ROWS, 0) | {"result": [word if i == 5 else cells[i % len(cells)] for i in range(ROWS)]}
    study, out = drafted(command, columns, "--outcome", "result")
    column = study.outcome_columns[0]
    assert study.model.family.name == family
    assert column.missing_codes == (word,)
    assert word not in column.level_names
    assert f"Read as missing values in 'result': {word}." in out
    code, out, _ = command("study", "check", "new.toml", "--data", "leeds-general.csv")
    assert code == 2
    assert "column 'result': 1 missing value: line 7; impute at the site, or agree on `missing = \"drop\"`" in out


def test_a_word_for_unknown_among_numbers_is_a_missing_value(command):
    columns = patients(ROWS, 0)
    columns["age"] = ["unknown" if i == 5 else age for i, age in enumerate(columns["age"])]
    study, _ = drafted(command, columns, "--outcome", "died")
    age = next(column for column in study.columns if column.name == "age")
    assert (age.type_name, age.missing_codes) == ("number", ("unknown",))


def test_a_word_for_unknown_is_a_level_of_a_predictor(command):
    columns = patients(ROWS, 0) | {"sex": ["unknown" if i == 5 else "fm"[i % 2] for i in range(ROWS)]}
    study, _ = drafted(command, columns, "--outcome", "died")
    sex = next(column for column in study.columns if column.name == "sex")
    assert sex.level_names == ("f", "m", "unknown")


def test_the_study_is_not_named_after_one_site(command, tmp_path):
    study, _ = drafted(command, patients(ROWS, 0), "--outcome", "died")
    assert study.name == "Study of died"
    assert study.id.startswith("died-")
    assert "leeds-general" not in (tmp_path / "new.toml").read_text()
