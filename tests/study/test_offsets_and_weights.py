"""Offsets have the coefficient 1; a row of weight 2 is the row twice, one of weight 0 is absent."""

import jax
import numpy as np
import pytest
from scipy import optimize

import cavity
from cavity.errors import DataError, StudyError
from cavity.study import as_table, parse_study
from cavity.study.building import client_data, scaling_of, sums
from cavity.study.checks import check
from cavity.study.disclosure import disclosures
from cavity.study.run import run_study
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")


def counts(seed, num_rows=60):
    rng = np.random.default_rng(seed)
    age, years = rng.normal(60, 10, num_rows), rng.uniform(0.5, 8, num_rows)
    falls = rng.poisson(years * np.exp(0.2 + 0.03 * (age - 60)))
    return {"falls": falls, "age": age, "years": years, "stay": 3 * age + 1000 * years + rng.normal(0, 5, num_rows)}


FRAMES = {"leeds": counts(0), "york": counts(1)}
POOLED = {name: np.concatenate([own[name] for own in FRAMES.values()]) for name in FRAMES["leeds"]}
RUN = {"tolerance": 1e-11}


@thorough
def test_an_offset_is_a_term_with_coefficient_one():
    with jax.enable_x64(True):
        fit = cavity.regression("falls ~ age + offset(log(years))", FRAMES, family="poisson", **RUN)
        new = {"age": [60.0, 60.0], "years": [1.0, 7.0]}
        one, seven = np.asarray(fit.predict(new).mean)
    # the mode of the same posterior by an optimiser; the mean of 120 rows is within 0.1 sd of it
    z, log_years = (POOLED["age"] - POOLED["age"].mean()) / POOLED["age"].std(), np.log(POOLED["years"])

    def loss(theta):
        f = theta[0] + theta[1] * z + log_years
        return np.sum(np.exp(f) - POOLED["falls"] * f) + theta[0] ** 2 / 200 + theta[1] ** 2 / 12.5

    mode = optimize.minimize(loss, [0.0, 0.0]).x
    estimate = fit.summary()["age"]
    assert abs(estimate.mean - mode[1] / POOLED["age"].std()) < 0.1 * estimate.sd
    assert seven / one == pytest.approx(7.0, rel=1e-9)
    assert one == pytest.approx(np.exp(mode[0] + mode[1] * (60 - POOLED["age"].mean()) / POOLED["age"].std()), rel=0.02)


@thorough
def test_an_offset_of_a_gaussian_outcome_is_subtracted():
    moved = {name: own | {"rest": own["stay"] - 1000 * own["years"]} for name, own in FRAMES.items()}
    with jax.enable_x64(True):
        for noise in (None, 5.0):
            options = {"family": "gaussian", "noise_sd": noise, **RUN}
            fit = cavity.regression("stay ~ age + offset(1000 * years)", FRAMES, **options)
            other = cavity.regression("rest ~ age", moved, **options)
            np.testing.assert_allclose(fit.coefficients.mean, other.coefficients.mean, rtol=1e-8)
        new = fit.predict({"age": [50.0], "years": [2.0]})
        plain = other.predict({"age": [50.0]})
    np.testing.assert_allclose(new.mean, np.asarray(plain.mean) + 2000.0, rtol=1e-9)
    np.testing.assert_allclose(new.upper, np.asarray(plain.upper) + 2000.0, rtol=1e-9)


@thorough
def test_offsets_add_up_and_may_be_of_an_outcome_that_is_not_scaled():
    options = {"family": "gaussian", "scaling": "none", "prior_scale": 1e3, "intercept_scale": 1e4}
    with jax.enable_x64(True):
        one = cavity.regression("stay ~ age + offset(900 * years) + offset(100 * years)", FRAMES, **options)
        other = cavity.regression("stay ~ age + offset(1000 * years)", FRAMES, **options)
    np.testing.assert_allclose(one.posterior.mean, other.posterior.mean, rtol=1e-9)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("falls ~ age - offset(years)", "an offset cannot be removed"),
        ("falls ~ age + offset(years, age)", "takes one column or expression"),
        ("falls ~ age + offset(2)", "a constant offset is part of the intercept"),
        ("falls ~ age + offset(falls)", "the outcome 'falls' is also on the right"),
        ("falls ~ age * offset(years)", "can only be added to the formula"),
        ("falls ~ age + offset(scale(years))", r"scale\(\) cannot be used"),
    ],
)
def test_formulas_with_wrong_offsets(formula, message):
    with pytest.raises(StudyError, match=message):
        cavity.regression(formula, FRAMES, family="poisson")


STUDY = """
name = "falls"
id = "falls"
clients = ["leeds", "york"]
[model]
family = "poisson"
formula = "falls ~ age + offset(log(years))"
weights = "copies"
[columns]
falls = { type = "integer", range = [0, inf] }
age = { type = "number" }
years = { type = "number" }
copies = { type = "number", range = [0, inf] }
[run]
tolerance = 1e-11
"""


def with_copies(frame, seed):
    return frame | {"copies": np.random.default_rng(seed).integers(0, 4, len(frame["age"]))}


def repeated(frame):
    """Every row as often as its weight says."""
    return {name: np.repeat(column, frame["copies"]) for name, column in frame.items() if name != "copies"}


COPIES = {name: with_copies(frame, seed) for seed, (name, frame) in enumerate(FRAMES.items())}


def as_tables(frames):
    return {name: as_table(frame) for name, frame in frames.items()}


@thorough
def test_a_study_with_an_offset_and_weights():
    study = parse_study(STUDY)
    with jax.enable_x64(True):
        fit = run_study(study, as_tables(COPIES))
        python = cavity.regression(study.model.formula, COPIES, family="poisson", weights="copies", **RUN)
        plain = parse_study(STUDY.replace('weights = "copies"\n', ""))
        copied = run_study(plain, as_tables({name: repeated(frame) for name, frame in COPIES.items()}))
        assert cavity.kl(fit.posterior, python.posterior) < 1e-10
        assert cavity.kl(fit.posterior, copied.posterior) < 1e-10
    np.testing.assert_allclose(fit.coefficients.mean, copied.coefficients.mean, rtol=1e-7)
    totals = sums(study, COPIES["leeds"])
    assert float(totals.num_rows) == COPIES["leeds"]["copies"].sum()
    assert "sum of weights, sum and sum of squares of age" in str(disclosures(study)[0])


FAMILIES = [
    ("gaussian", "stay", {}),
    ("student-t", "stay", {}),
    ("negative-binomial", "falls", {}),
    ("gamma", "stay", {}),
    ("ordinal", "grade", {}),
    ("bernoulli", "fell", {"link": "cloglog"}),
    ("binomial", "deaths | trials(patients)", {}),
]


@pytest.mark.parametrize(("family", "left", "settings"), FAMILIES, ids=[name for name, *_ in FAMILIES])
@thorough
def test_a_weight_of_two_is_the_row_twice_in_every_family(family, left, settings):
    frames = {}
    for name, frame in COPIES.items():
        patients = 3 + frame["falls"]
        grade = np.digitize(frame["falls"], [2, 6, 12])
        frames[name] = frame | {"grade": grade, "fell": frame["falls"] > 4, "deaths": grade, "patients": patients}
    formula = f"{left} ~ age + offset(0.1 * years)"
    with jax.enable_x64(True):
        options = {"family": family, **settings, **RUN}
        weighted = cavity.regression(formula, frames, weights="copies", **options)
        copied = cavity.regression(formula, {n: repeated(f) for n, f in frames.items()}, **options)
        assert cavity.kl(weighted.posterior, copied.posterior) < 1e-9
    np.testing.assert_allclose(weighted.coefficients.mean, copied.coefficients.mean, rtol=1e-6)


def test_a_row_of_weight_zero_may_have_any_value():
    frames = {name: frame | {"copies": np.ones(60)} for name, frame in FRAMES.items()}
    wild = frames["leeds"] | {"age": frames["leeds"]["age"].copy(), "copies": frames["leeds"]["copies"].copy()}
    wild["age"][0], wild["copies"][0] = 1e9, 0.0
    kept = {name: column[1:] for name, column in FRAMES["leeds"].items()} | {"copies": np.ones(59)}
    with jax.enable_x64(True):
        fits = [
            cavity.regression("falls ~ age", frames | {"leeds": own}, family="poisson", weights="copies", **RUN)
            for own in (wild, kept)
        ]
    np.testing.assert_allclose(fits[0].coefficients.mean, fits[1].coefficients.mean, rtol=1e-8)


@thorough
def test_group_terms_take_offsets_and_weights():
    frames = {name: f | {"ward": [f"{name}-{i % 6}" for i in range(60)]} for name, f in COPIES.items()}
    with jax.enable_x64(True):
        formula = "falls ~ age + offset(log(years)) + (1 | ward)"
        weighted = cavity.regression(formula, frames, family="poisson", weights="copies", rounds=4)
        copied = cavity.regression(formula, {n: repeated(f) for n, f in frames.items()}, family="poisson", rounds=4)
        np.testing.assert_allclose(weighted.posterior.mean, copied.posterior.mean, rtol=1e-6, atol=1e-8)
        new = {"age": np.full(2, 60.0), "years": np.array([1.0, 7.0]), "ward": ["leeds-0", "leeds-0"]}
        one, seven = np.asarray(copied.predict(new).mean)
    assert seven / one == pytest.approx(7.0, rel=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('weights = "copies"', 'weights = "copys"', "undeclared column 'copys'"),
        ('weights = "copies"', 'weights = "age"', "the column 'age' of weights is also in the formula"),
        ('copies = { type = "number", range = [0, inf] }', 'copies = { type = "text" }', "must be a number"),
        ('years = { type = "number" }', 'years = { type = "boolean" }', "an offset is computed from 'years'"),
        ("offset(log(years))", "offset(log(year))", "undeclared column 'year' (did you mean 'years'?)"),
    ],
)
def test_studies_with_wrong_offsets_and_weights(old, new, message):
    with pytest.raises(StudyError) as refused:
        parse_study(STUDY.replace(old, new))
    assert any(message in problem for problem in refused.value.problems)


def test_wrong_weights_and_offsets_of_rows_are_found():
    study = parse_study(STUDY)
    good, scaling = COPIES["leeds"], scaling_of(study, list(COPIES.values()))
    for column, value, message in [
        ("copies", -1, "outside the agreed range 0 to inf"),
        ("years", 0.0, "offset(log(years)) is not a finite number in row 0"),
        ("years", None, "1 missing value: row 0; impute at the site"),
        ("copies", None, "1 missing value: row 0"),
    ]:
        bad = good | {column: [value, *good[column][1:].tolist()]}
        assert any(message in str(finding) for finding in check(study, bad)), message
        with pytest.raises(DataError):
            client_data(study, bad, scaling)
    assert any("all weights in column 'copies' are 0" in str(f) for f in check(study, good | {"copies": np.zeros(60)}))
    with pytest.raises(DataError, match=r"client 'york': .*missing value"):
        cavity.regression(study.model.formula, {"york": good | {"years": [None, *good["years"][1:]]}}, family="poisson")
    with pytest.raises(DataError, match="its columns|the formula has an offset"):
        cavity.regression(study.model.formula, FRAMES, family="poisson", rounds=1).predict(np.ones((2, 1)))
