"""`cavity reproduce pvi-heart`: encoding and folds, the hospital alone, and that PVI is pooling."""

import numpy as np
import pytest

from cavity.algorithms import PVI
from cavity.fit.run import run
from cavity.models import logistic_regression
from cavity_experiments import pvi_heart, runner
from cavity_experiments.runner import Size
from cavity_experiments.sources.hospitals import HospitalTable
from tests.marks import needs_data, thorough


def raw(num_patients):
    """A table with the columns of the set; values encode column and row."""
    names = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
    x = np.arange(num_patients * len(names), dtype=float).reshape(num_patients, len(names))
    hospital = np.repeat(["leeds", "york"], [num_patients - num_patients // 3, num_patients // 3])
    return HospitalTable(name="raw", x=x, y=np.arange(num_patients) % 2, columns=names, hospital=hospital)


def test_levels_are_columns_and_what_is_missing_stays_so():
    table = raw(4)
    table.x[:, 2], table.x[:, 6] = [1, 3, 4, 2], [0, np.nan, 2, 1]
    encoded = pvi_heart.with_levels(table)
    columns = dict(zip(encoded.columns, encoded.x.T, strict=True))
    assert encoded.columns == (*pvi_heart.COLUMNS, "cp=1", "cp=2", "cp=3", "restecg=1", "restecg=2")
    np.testing.assert_array_equal(columns["cp=3"], [0, 1, 0, 0])
    np.testing.assert_array_equal(columns["restecg=2"], [0, np.nan, 1, 0])
    np.testing.assert_array_equal(columns["oldpeak"], table.x[:, 9])


def test_folds_deal_out_every_hospital_evenly():
    hospitals = {"leeds": np.arange(0, 23), "york": np.arange(23, 40)}
    fold = pvi_heart.folds(np.random.default_rng(0), hospitals, 40)
    for rows in hospitals.values():
        counts = np.bincount(fold[rows], minlength=pvi_heart.NUM_FOLDS)
        assert len(counts) == pvi_heart.NUM_FOLDS
        assert np.ptp(counts) <= 1
    other = pvi_heart.folds(np.random.default_rng(1), hospitals, 40)
    assert np.any(fold != other)


def test_scores_by_hand():
    risks, y = np.array([[0.8, 0.4], [0.5, 0.2]]), np.array([1, 0])
    np.testing.assert_allclose(pvi_heart.log_scores(risks, y), np.log([[0.8, 0.6], [0.5, 0.8]]))
    # the patients' means are 0.65 and 0.3: their standard deviation is 0.35 / sqrt(2), over sqrt(2) patients
    np.testing.assert_allclose(pvi_heart.mean_and_error(risks), (0.475, 0.175))


@thorough
def test_a_hospital_alone_is_a_fit_of_its_own_patients():
    """One undamped round gives it as prior times factor; PVI gives what pooling does."""
    rng = np.random.default_rng(3)
    table = raw(60)
    x = rng.normal(size=(60, 3))
    y = (rng.random(60) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)
    table = HospitalTable(name="drawn", x=x, y=y, columns=("a", "b", "c"), hospital=table.hospital)
    hospitals, is_test = {"leeds": np.arange(40), "york": np.arange(40, 60)}, np.arange(60) % 4 == 0
    found = pvi_heart.predicted(table, is_test, hospitals, own_level=False)
    own = hospitals["york"][~is_test[hospitals["york"]]]
    fit = run(PVI(logistic_regression(table.columns, prior_scale=1.0)), {"york": (x[own], y[own])})
    at_york = np.flatnonzero(is_test) >= 40
    np.testing.assert_allclose(
        found[pvi_heart.ALONE][at_york], fit.predict(x[is_test][at_york], num_draws=None).mean, rtol=1e-6
    )
    np.testing.assert_allclose(found[pvi_heart.FEDERATED], found[pvi_heart.POOLED], atol=1e-4)
    assert np.max(np.abs(found[pvi_heart.ALONE] - found[pvi_heart.POOLED])) > 0.01


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_small(tmp_path):
    result = runner.run("pvi-heart", pvi_heart.pvi_heart, directory=tmp_path, size=Size.QUICK)
    assert [(check.name.split()[0], check.holds) for check in result.checks] == [
        ("pvi-6a", None),
        ("pvi-6b", None),
        ("pvi-6c", None),
    ]
    assert all(check.value < 1e-3 for check in result.checks[:2])
    scores = {(row["model"], row["hospital"], row["method"]): row for row in result.results["scores"]}
    assert len(scores) == 2 * 4 * 4
    # better than saying each hospital's share of diseased patients, -0.568 at Long Beach
    assert all(row["log_likelihood"] > -0.55 for row in scores.values())
    # without levels of their own, hospitals with many or few diseased patients are misjudged
    large = {(row["model"], row["hospital"], row["method"]): row for row in result.results["calibration"]}
    off = [large[model, "switzerland", "pooled"] for model in pvi_heart.MODELS]
    gaps = [row["observed_share"] - row["predicted_share"] for row in off]
    assert abs(gaps[0]) < 0.05 < 0.1 < gaps[1]
    assert result.figures == ("risks.png", "risks_one_level.png")
