"""Warnings name the user's line, and none of Cavity's."""

import warnings

import numpy as np
import pytest

import cavity
from cavity.core.client_data import prepare_clients
from cavity.models import logistic_regression
from tests.studies import hospitals


def test_an_outcome_of_one_value_is_a_warning_about_the_users_line():
    clients = {"leeds": (np.eye(2), np.ones(2)), "york": (np.eye(2), np.ones(2))}
    with pytest.warns(UserWarning, match="the outcome is 1 in every row of every client.*Check the coding") as found:
        prepare_clients(logistic_regression(2), clients)
    assert [warning.filename for warning in found] == [__file__]


def test_dropped_rows_are_a_warning_about_the_users_line():
    frames = hospitals()
    frames["york"]["age"][3] = np.nan
    dropped = pytest.warns(UserWarning, match="rows with missing values are dropped: york 1 of 80")
    with dropped as found, pytest.raises(cavity.CavityError, match="rounds"):
        cavity.regression("died ~ age", frames, missing="drop", rounds=0)
    assert [warning.filename for warning in found] == [__file__]


def test_the_command_shows_a_warning_in_one_line(command, monkeypatch):
    def warns(*arguments, **options):
        warnings.warn("check the coding\nof the outcome", stacklevel=1)
        raise cavity.CavityError("the study has an error")

    monkeypatch.setattr("cavity.study.reader.read_study", warns)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = command("status", "study.toml")
    assert code == 2
    assert err.splitlines() == ["cavity: warning: check the coding of the outcome", "cavity: the study has an error"]
