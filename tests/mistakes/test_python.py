"""Mistakes in Python: each raises a CavityError that names the argument, client or column, and gives the remedy."""

import numpy as np
import pytest

import cavity
from cavity import models
from cavity.errors import CavityError
from tests.mistakes.messages import check_message
from tests.studies import hospitals

FRAMES = hospitals()
LEEDS = FRAMES["leeds"]
X, Y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 2


def with_column(name, cells, client="leeds"):
    own = FRAMES[client]
    return FRAMES | {client: own | {name: cells(len(own["age"])) if callable(cells) else cells}}


def changed(column, cell, row=3):
    return with_column(column, [cell if i == row else own for i, own in enumerate(LEEDS[column].tolist())])


def everywhere(column, cells):
    return {name: own | {column: cells(len(own["age"]))} for name, own in FRAMES.items()}


def regression(**changes):
    arguments = {"formula": "died ~ rx + age + sex", "frames": FRAMES} | changes
    return lambda: cavity.regression(arguments.pop("formula"), arguments.pop("frames"), **arguments)


def logistic(data, **options):
    return lambda: cavity.run(cavity.PVI(models.logistic_regression(2)), data, **options)


REGRESSION = {
    "a path for the frames": (regression(frames="leeds.csv"), ("frames must be a dict", "not a str")),
    "one frame alone": (regression(frames=[LEEDS]), ('such as {"leeds": frame}', "not a list")),
    "no client": (regression(frames={}), ("frames must be a dict", "not an empty dict")),
    "a path for a frame": (
        regression(frames=FRAMES | {"york": "york.csv"}),
        ("client 'york'", "not a str", "pandas.read_csv"),
    ),
    "columns of different lengths": (
        regression(frames=with_column("age", np.ones(7))),
        ("client 'leeds'", "different numbers of rows", "'age': 7"),
    ),
    "a matrix for a column": (
        regression(frames=with_column("age", np.ones((120, 2)))),
        ("client 'leeds'", "column 'age' must have one value per row", "(120, 2)"),
    ),
    "no such column": (
        regression(formula="died ~ weight"),
        ("client 'leeds': column 'weight' not found", "it has died"),
    ),
    "column in upper case": (regression(formula="died ~ AGE"), ("client 'leeds'", "did you mean 'age'?")),
    "column at one client only": (
        regression(formula="died ~ bmi", frames=with_column("bmi", np.ones)),
        ("client 'york': column 'bmi' not found",),
    ),
    "missing value": (
        regression(frames=changed("age", None)),
        ("client 'leeds': column 'age': 1 missing value: row 3", 'missing="drop"'),
    ),
    "text among numbers": (
        regression(frames=changed("age", "old")),
        ("column 'age' has numbers, but also texts such as 'old'", "convert the column to numbers"),
    ),
    "dates": (
        regression(frames=everywhere("age", lambda n: np.full(n, "2024-05-01", "datetime64[D]"))),
        ("column 'age' holds dates", "days since an agreed date"),
    ),
    "identifiers": (
        regression(formula="died ~ patient", frames=everywhere("patient", lambda n: [f"P{i}" for i in range(n)])),
        ("column 'patient'", "like an identifier", "leave it out of the formula"),
    ),
    "constant predictor": (
        regression(frames=everywhere("age", np.ones)),
        ("column 'age' has (nearly) the same value in all rows", "remove it from the formula"),
    ),
    "one level": (
        regression(frames=everywhere("sex", lambda n: ["f"] * n)),
        ("column 'sex' needs at least two different levels; it has f", "Leave it out of the formula"),
    ),
    "outcome coded 1 and 2": (
        regression(frames=everywhere("died", lambda n: np.arange(n) % 2 + 1)),
        ("column 'died' is coded 1 and 2", 'levels={"died": ["1", "2"]}'),
    ),
    "outcome of three levels": (
        regression(formula="rx ~ age"),
        ("column 'rx'", "categorical"),
    ),
    "outcome of numbers": (
        regression(formula="age ~ sex"),
        ("column 'age' has many numbers other than 0 and 1", 'family="gaussian"'),
    ),
    "text as a Gaussian outcome": (
        regression(formula="rx ~ age", family="gaussian"),
        ("column 'rx' holds texts", "is a number", "bernoulli or categorical"),
    ),
    "negative counts": (
        regression(formula="n ~ age", family="poisson", frames=everywhere("n", lambda n: np.arange(n) - 5)),
        ("client 'leeds': column 'n'", "row 0", "outside"),
    ),
    "same frame twice": (regression(frames={"leeds": LEEDS, "york": LEEDS}), ("'leeds' and 'york'", "its own data")),
    "family": (regression(family="binomal"), ("unknown family 'binomal'", "did you mean 'binomial'?")),
    "family of another program": (regression(family="logit"), ("unknown family 'logit'", "did you mean 'bernoulli'?")),
    "link": (regression(link="log"), ("unknown link 'log'", "choose one of: logit, probit, cloglog")),
    "setting of another family": (regression(noise_sd=2.0), ("has no setting 'noise_sd'", "it is for gaussian")),
    "rule for missing values": (regression(missing="omit"), ("unknown missing 'omit'", "choose one of: refuse, drop")),
    "scaling": (regression(scaling="zscore"), ("unknown scaling 'zscore'", "choose one of: none, federated")),
    "covariance": (regression(covariance="lowrank"), ("unknown covariance 'lowrank'", "choose one of: full, diagonal")),
    "client effects": (regression(client_effects="fixed"), ("unknown client_effects 'fixed'", "intercepts, random")),
    "negative prior scale": (
        regression(prior_scale=-1.0),
        ("the scale of a prior must be positive; prior_scale is -1",),
    ),
    "prior of a misspelt coefficient": (
        regression(prior_scales={"agee": 1.0}),
        ("unknown coefficient 'agee'", "did you mean 'age'?"),
    ),
    "family of priors": (regression(prior_family="cauchy"), ("unknown prior family 'cauchy'", "student-t")),
    "levels of no column": (regression(levels={"arm": ["a", "b"]}), ("levels are given for 'arm'", "formula")),
    "level that is not given": (
        regression(levels={"rx": ["placebo", "low"]}),
        ("client 'leeds': column 'rx': not one of the agreed levels, which are placebo, low",),
    ),
    "levels as one text": (regression(levels={"rx": "low"}), ("the levels of 'rx' are a list", "['low', ...]")),
    "scaling of no column": (
        regression(column_scaling={"bmi": (25, 5)}),
        ("column_scaling is given for 'bmi'", "numeric"),
    ),
    "negative scaling": (
        regression(column_scaling={"age": (60, -5)}),
        ("the scale of 'age' must be positive, not -5",),
    ),
    "weights of no column": (regression(weights="copies"), ("client 'leeds': column 'copies' not found",)),
    "negative weights": (
        regression(weights="copies", frames=everywhere("copies", lambda n: -np.ones(n))),
        ("client 'leeds': column 'copies': outside the agreed range 0 to inf", "row 0"),
    ),
    "no outcome": (regression(formula="age + sex"), ("a formula needs an outcome", "`outcome ~ predictors`")),
    "polynomial of R": (regression(formula="died ~ poly(age, 2)"), ("character 8", "write `age + I(age ** 2)`")),
    "Cox without Surv": (regression(family="cox"), ("needs Surv(...) on the left", "Surv(time, status)")),
    "no rounds": (regression(rounds=0), ("rounds must be", "at least 1", "0")),
    "negative tolerance": (regression(tolerance=-1.0), ("tolerance must be a number of at least 0; it is -1",)),
    "method by name": (regression(method="pvi"), ("method is a function", "such as cavity.PVI, not 'pvi'")),
}

RUN = {
    "a list of clients": (logistic([(X, Y)]), ("clients must be a dict of name -> data, not a list",)),
    "no clients": (logistic({}), ("there are no clients", "at least one name -> data")),
    "number as a name": (logistic({1: (X, Y)}), ("client names must be strings; 1 is an int",)),
    "rows that differ": (logistic({"leeds": (X, Y[:20])}), ("client 'leeds'", "30 rows", "20")),
    "labels -1 and 1": (logistic({"leeds": (X, 2 * Y - 1)}), ("client 'leeds'", "0 and 1")),
    "labels as texts": (logistic({"leeds": (X, np.where(Y, "yes", "no"))}), ("client 'leeds'", "numbers")),
    "NaN": (
        logistic({"leeds": (np.where(X > 1, np.nan, X), Y)}),
        ("client 'leeds': column 'x1' has 4 missing or infinite values", "impute them"),
    ),
    "one column too many": (logistic({"leeds": (np.ones((30, 3)), Y)}), ("client 'leeds'", "2", "3")),
    "features without outcomes": (logistic({"leeds": X}), ("client 'leeds'", "(x, y)")),
    "no rows": (logistic({"leeds": (X[:0], Y[:0])}), ("client 'leeds'", "no rows", "leave this client out")),
    "negative weight": (
        logistic({"leeds": cavity.Weighted((X, Y), -np.ones(30))}),
        ("client 'leeds'", "weights must be finite and not negative"),
    ),
    "text for a schedule": (logistic({"leeds": (X, Y)}, schedule="sequential"), ("schedule", "cavity.schedules")),
    "model for a method": (
        lambda: cavity.run(models.logistic_regression(2), {"leeds": (X, Y)}),
        ("is an algorithm, not a model", "such as PVI(model)"),
    ),
    "no saved fit": (lambda: cavity.load("nowhere"), ("nowhere", "not found", "check the path")),
    "study that is not there": (lambda: cavity.study.read_study("trial.toml"), ("trial.toml: file not found",)),
    "data that are not there": (lambda: cavity.study.read_csv("leeds.csv"), ("leeds.csv: file not found", "the path")),
}


@pytest.mark.parametrize(("mistake", "expected"), REGRESSION.values(), ids=REGRESSION.keys())
def test_a_call_of_regression(mistake, expected):
    with pytest.raises(CavityError) as raised:
        mistake()
    check_message(str(raised.value), *expected)


@pytest.mark.parametrize(("mistake", "expected"), RUN.values(), ids=RUN.keys())
def test_another_call(mistake, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CavityError) as raised:
        mistake()
    check_message(str(raised.value), *expected)
