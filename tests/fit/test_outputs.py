"""Ratios, and draws for other programs."""

import csv
import shutil
import subprocess

import jax
import numpy as np
import pytest

import cavity
from cavity.errors import CavityError
from cavity.study import Scaling, parse_study, study_algorithm
from tests import family_data


@pytest.fixture(scope="module")
def fit():
    frames = {"leeds": family_data.rows(0, 80), "york": family_data.rows(1, 60)}
    return cavity.regression("died ~ age + sex", frames)


def test_ratios_are_exponentials_of_slopes(fit):
    summary, ratios = fit.summary(0.9), fit.summary(0.9, exponentiate=True)
    assert [estimate.name for estimate in ratios] == [e.name for e in summary if e.name != "intercept"]
    for estimate in ratios:
        plain = summary[estimate.name]
        assert (estimate.mean, estimate.lower, estimate.upper) == tuple(
            np.exp([plain.mean, plain.lower, plain.upper]).tolist()
        )
    text = str(ratios)
    assert "odds ratio" in text
    assert "left out: intercept" in text


def test_a_model_without_ratios_says_so():
    frames = {"leeds": family_data.rows(0, 80), "york": family_data.rows(1, 60)}
    fit = cavity.regression("died ~ age", frames, link="probit", rounds=1)
    with pytest.raises(CavityError, match="leave out exponentiate"):
        fit.summary(exponentiate=True)


SURVIVAL = """
name = "s"
id = "s"
clients = ["leeds", "york"]
[model]
family = "{family}"
formula = "Surv(time, died) ~ age"
{more}
[columns]
age = {{ type = "number" }}
time = {{ type = "number" }}
died = {{ type = "boolean" }}
"""
TEXTS = {name: case.text for name, case in family_data.STUDIES.items()} | {
    name: SURVIVAL.format(family=name, more="cuts = [1.0]" if name.startswith("piecewise") else "")
    for name in ("cox", "weibull", "lognormal", "exponential", "piecewise-exponential")
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_model_has_the_ratio_of_its_family(name):
    study = parse_study(TEXTS[name])
    model = study_algorithm(study, Scaling()).model
    assert (None if model.ratios is None else model.ratios.title) == study.model.family.coefficient_ratio
    if model.ratios is not None:
        assert set(model.ratios.names) < {*model.parameter_names, ""}
        assert not [each for each in model.ratios.names if "intercept" in each or each.startswith("log_")]


def test_draws_have_the_columns_of_their_parameters(fit, tmp_path):
    fit.save_draws(tmp_path / "draws.csv", 3000, seed=1)
    with open(tmp_path / "draws.csv") as file:
        header, *rows = list(csv.reader(file))
    assert header == [estimate.name for estimate in fit.summary()]
    values = np.array(rows, float)
    for i, name in enumerate(header):
        estimate = fit.summary()[name]
        assert values[:, i].mean() == pytest.approx(estimate.mean, abs=5 * estimate.sd / np.sqrt(3000))
        assert values[:, i].std() == pytest.approx(estimate.sd, rel=0.1)
    np.testing.assert_allclose(np.corrcoef(values.T), _correlation(fit), atol=0.08)


def _correlation(fit):
    covariance = fit.coefficients.covariance
    sd = np.sqrt(np.diag(covariance))
    return covariance / np.outer(sd, sd)


def test_draws_as_parquet(fit, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    fit.save_draws(tmp_path / "draws.parquet", 50)
    fit.save_draws(tmp_path / "draws.csv", 50)
    table = parquet.read_table(tmp_path / "draws.parquet")
    expected = np.genfromtxt(tmp_path / "draws.csv", delimiter=",", skip_header=1)
    np.testing.assert_array_equal(np.stack([column.to_numpy() for column in table.columns], axis=1), expected)


def test_another_ending_is_refused(fit, tmp_path):
    with pytest.raises(CavityError, match=r"\.csv or \.parquet"):
        fit.save_draws(tmp_path / "draws.xlsx")


def test_draws_of_arrays_have_a_column_per_entry():
    from cavity.fit.draw_files import columns_of

    draws = {"b": jax.numpy.arange(6.0).reshape(2, 3), "a": jax.numpy.array([7.0, 8.0])}
    found = columns_of(draws)
    assert list(found) == ["b[0]", "b[1]", "b[2]", "a"]
    np.testing.assert_array_equal(found["b[2]"], [2.0, 5.0])


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed")
def test_r_reads_draws(fit, tmp_path):
    fit.save_draws(tmp_path / "draws.csv", 100)
    code = 'd <- read.csv("draws.csv", check.names = FALSE); cat(ncol(d), nrow(d))'
    done = subprocess.run(["Rscript", "-e", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"{len(fit.summary())} 100"
