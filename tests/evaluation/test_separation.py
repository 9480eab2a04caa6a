"""Separation of a binary outcome: a direction is found if and only if there is one."""

import numpy as np
import pytest

import cavity
from cavity.evaluation.separation import separating_column, separating_direction
from tests.marks import thorough


def problem(num_rows, num_columns, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, num_columns)) * 10.0 ** rng.uniform(-3, 3, num_columns) + 100 * rng.normal()
    return x, (x - x.mean(0)) / x.std(0) @ rng.normal(size=num_columns)


@pytest.mark.parametrize(("num_rows", "num_columns"), [(40, 2), (300, 5), (12_000, 4)])
def test_a_direction_separates_all_rows(num_rows, num_columns):
    x, score = problem(num_rows, num_columns, 1)
    for threshold in (0.3, np.sort(score)[-2]):
        y = (score > threshold).astype(float)
        beta = separating_direction(x, y)
        z = np.hstack([np.ones((num_rows, 1)), (x - x.mean(0)) / x.std(0)])
        assert ((2 * y - 1) * (z @ beta) > 0).all()


@pytest.mark.parametrize(("num_rows", "num_columns"), [(40, 2), (300, 5), (12_000, 4)])
def test_one_exception_is_enough(num_rows, num_columns):
    x, score = problem(num_rows, num_columns, 2)
    y = (score > 0.3).astype(float)
    deepest = np.argmax(score)
    y[deepest] = 0.0
    assert separating_direction(x, y) is None


def test_an_outcome_of_one_value_is_not_separated():
    assert separating_direction(np.eye(5), np.ones(5)) is None


def test_without_an_intercept_the_direction_goes_through_zero():
    x, y = np.array([[1.0], [2.0], [3.0], [4.0]]), np.array([0.0, 0.0, 1.0, 1.0])
    assert separating_direction(x, y) is not None
    assert separating_direction(x, y, intercept=False) is None
    assert separating_direction(x - 2.5, y, intercept=False) is not None


def test_the_single_column_is_named():
    x, _ = problem(50, 3, 3)
    y = (x[:, 1] < np.median(x[:, 1])).astype(float)
    assert separating_column(x, y) == 1
    assert separating_column(x[:, :1], y) is None


@thorough
def test_the_summary_of_a_separated_fit_gives_one_reason():
    rng = np.random.default_rng(0)
    frames = {}
    for name in ("leeds", "york"):
        age = rng.normal(60, 12, 80).round(1)
        frames[name] = {"age": age, "sex": rng.choice(["f", "m"], 80), "died": age > 60}
    for scale in (2.5, 100.0):
        text = str(cavity.regression("died ~ age + sex", frames, prior_scale=scale).summary())
        assert text.count("the predictors separate the outcome") == 1
        assert "tight" not in text
    frames["leeds"]["died"] = rng.random(80) < 0.5
    assert "separate" not in str(cavity.regression("died ~ age + sex", frames).summary())
