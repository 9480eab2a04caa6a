"""Scaling by sums equals scaling by the pooled mean and sd, and coefficients are reported in the units of the data."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies

import cavity
from cavity.errors import CavityError, StudyError
from cavity.io import serialization
from cavity.study import client_data, parse_study, study_algorithm, study_scaling, sums
from cavity.study.building import scaling_of
from cavity.study.columns import Category, Number
from cavity.study.encoding import FormulaEncoding
from cavity.study.formula import parse_formula
from cavity.study.scaling import ScaledColumn, Scaling, Sums, reason_to_refuse, scaling_from, sums_of
from tests.marks import thorough
from tests.studies import FEDERATED, hospitals, trial


@settings(max_examples=30, deadline=None)
@given(strategies.integers(0, 10**6), strategies.sampled_from([0.0, 3.0, -2000.0, 1e5]))
def test_sums_give_the_pooled_mean_and_sd(seed, offset):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(offset, 1 + rng.random(), rng.integers(1, 50)) for _ in range(4)] + [
        np.array([offset, offset + 1])
    ]
    (column,) = scaling_from([sums_of(["x"], {"x": part}, len(part)) for part in parts])
    pooled = np.concatenate(parts)
    # the clients' sums of squares are rounded once each: eps (mean / sd)^2, and no more
    tolerance = 1e-15 * (10 + (np.abs(pooled).max() / pooled.std()) ** 2)
    np.testing.assert_allclose([column.centre, column.scale], [pooled.mean(), pooled.std()], rtol=tolerance, atol=1e-14)


def test_sums_can_be_serialised_and_come_in_any_order():
    study = parse_study(FEDERATED)
    totals = [sums(study, table) for table in hospitals().values()]
    sent = [serialization.from_bytes(serialization.to_bytes(total)) for total in totals]
    assert study_scaling(study, totals) == study_scaling(study, sent[::-1])
    assert totals[0].columns == ("age",)
    assert int(totals[0].num_rows) == 120


def test_columns_that_cannot_be_scaled_are_refused():
    same = [sums_of(["x"], {"x": np.full(n, 0.1)}, n) for n in (3, 7)]
    with pytest.raises(CavityError, match="same value in all rows"):
        scaling_from(same)
    (constant,) = scaling_from(same, allow_constant=True)
    assert (constant.centre, constant.scale) == (pytest.approx(0.1), 1.0)
    with pytest.raises(CavityError, match="none yet"):
        study_scaling(parse_study(FEDERATED))
    with pytest.raises(CavityError, match="different columns"):
        scaling_from([same[0], sums_of(["y"], {"y": np.arange(3.0)}, 3)])
    with pytest.raises(StudyError, match="not those of the study's columns"):
        study_scaling(parse_study(FEDERATED), [sums_of(["y"], {"y": np.arange(3.0)}, 3)])
    with pytest.raises(CavityError, match="not finite"):
        scaling_from([sums_of(["x"], {"x": np.array([1.0, np.nan])}, 2)])


BAD_SUMS = {
    "not sums of": {"columns": ("y",)},
    "a count": {"num_rows": np.asarray(0)},
    "count from": {"num_rows": np.asarray(2.5)},
    "count from 1 to": {"num_rows": np.asarray(10**15)},
    "a count from 1": {"num_rows": np.asarray([4])},
    "one number per column": {"sum": np.zeros(2)},
    "number per column": {"sum_of_squares": np.asarray(["1"])},
    "not finite": {"sum": np.array([np.nan])},
    "not finite, too": {"sum_of_squares": np.array([np.inf])},
    "too large": {"sum": np.array([1e200]), "sum_of_squares": np.array([1e300])},
    "negative": {"sum_of_squares": np.array([-1.0])},
    "contradict": {"sum": np.array([10.0]), "sum_of_squares": np.array([20.0])},  # 100 > 4 * 20
}


@pytest.mark.parametrize("reason", BAD_SUMS)
def test_impossible_sums_are_refused(reason):
    honest = sums_of(["x"], {"x": np.arange(4.0)}, 4)
    assert reason_to_refuse(honest, ["x"]) is None
    bad = object.__new__(Sums)  # as from a client that does not check its types
    for field in ("columns", "num_rows", "sum", "sum_of_squares"):
        object.__setattr__(bad, field, BAD_SUMS[reason].get(field, getattr(honest, field)))
    assert reason in reason_to_refuse(bad, ["x"])


@settings(max_examples=50, deadline=None)
@given(strategies.lists(strategies.floats(-1e6, 1e6), min_size=1, max_size=20), strategies.floats(-1e8, 1e8))
@example([0.0], 3.102705469930323e-163)  # whose square underflows
def test_sums_of_real_rows_are_accepted(values, offset):
    """Constant columns included, where (sum x)^2 is n * sum x^2 up to rounding."""
    for column in (np.array(values) + offset, np.full(7, offset)):
        assert reason_to_refuse(sums_of(["x"], {"x": column}, len(column)), ["x"]) is None


@pytest.mark.parametrize("part", [{"scale": 0.0}, {"scale": -1.0}, {"scale": np.inf}, {"centre": np.nan}])
def test_unusable_scalings(part):
    column = ScaledColumn("age", 60.0, 10.0)
    assert Scaling((column,)).is_usable
    assert not Scaling((column, replace(column, **part))).is_usable


def test_a_fixed_scaling_needs_no_sums():
    study = trial(
        [('unit = "years"', "scaling = { centre = 60, scale = 10 }"), ('"trial-1"', '"trial-1"\nscaling = "none"')]
    )
    scaling = study_scaling(study)
    assert scaling == Scaling((ScaledColumn("age", 60.0, 10.0),))
    table = hospitals()["leeds"]
    x, _ = client_data(study, table, scaling)
    np.testing.assert_allclose(x[:, 2], (table["age"] - 60) / 10)


RX = Category(name="rx", levels=("a", "b", "c"), reference="a")
Y, AGE, DOSE = Number(name="y"), Number(name="age"), Number(name="dose")
SCALING = Scaling((ScaledColumn("age", 61.5, 11.0), ScaledColumn("dose", -3.0, 0.25)))


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ age + dose + rx",
        "y ~ rx * age * dose",
        "y ~ age + I(age**2) + dose",
        "y ~ rx + rx:age + dose",
        "y ~ age*dose",
    ],
)
def test_coefficients_in_the_units_of_the_data_are_exact(formula):
    columns = {"age": AGE, "dose": DOSE, "rx": RX}
    used = (Y, *(columns[name] for name in parse_formula(formula).predictors))
    scaling = Scaling(tuple(c for c in SCALING.columns if c.name in {column.name for column in used}))
    scaled, raw = FormulaEncoding(formula, used, scaling), FormulaEncoding(formula, used)
    rng = np.random.default_rng(0)
    table = {"age": rng.normal(60, 10, 50), "dose": rng.random(50), "rx": rng.choice(["a", "b", "c"], 50)}
    computed = rng.normal(size=len(scaled.design.names) + 1)
    reported = np.linalg.solve(scaled.to_computed(), computed)
    ones = np.ones((50, 1))
    np.testing.assert_allclose(
        np.hstack([ones, raw.features(table)]) @ reported,
        np.hstack([ones, scaled.features(table)]) @ computed,
        rtol=1e-9,
        atol=1e-9,
    )


@thorough
def test_the_summary_says_if_results_are_of_scaled_columns():
    rng = np.random.default_rng(0)
    frames = {"a": {"y": rng.normal(size=40), "age": rng.normal(60, 5, 40)}}
    fit = cavity.regression("y ~ 0 + age", frames, family="linear", noise_sd=1.0, column_scaling={"age": (60, 5)})
    assert not fit.algorithm.model.encoding.is_reversible
    assert "age is (age - 60) / 5" in str(fit.summary())
    x = (frames["a"]["age"] - 60) / 5
    slope = (x @ frames["a"]["y"]) / (x @ x)
    assert abs(fit.summary()["age"].mean - slope) < 0.05 * fit.summary()["age"].sd
    # without a centre there is one
    fit = cavity.regression("y ~ 0 + age", frames, family="linear", noise_sd=1.0, column_scaling={"age": (0, 5)})
    (age,), outcome = fit.algorithm.model.encoding.scaling.design, fit.algorithm.model.encoding.scaling.outcome
    found = fit.posterior.mean[0] * outcome.scale / age.scale / 5
    np.testing.assert_allclose(fit.summary()["age"].mean, found)


@thorough
@pytest.mark.parametrize("family", ["full", "diagonal"])
def test_the_reported_posterior_is_the_computed_one_in_other_units(family):
    study = parse_study(FEDERATED.replace("rx * age + sex", "age + sex") + f'[algorithm]\ncovariance = "{family}"\n')
    tables = hospitals()
    scaling = scaling_of(study, list(tables.values()))
    algorithm = study_algorithm(study, scaling)
    fit = cavity.run(algorithm, {name: client_data(study, table, scaling) for name, table in tables.items()})
    (age,) = scaling.columns
    units = {column.name: column for column in scaling.design}
    np.testing.assert_allclose([units["age"].centre, units["age"].scale], [0, 1], atol=1e-12)
    ages = np.concatenate([table["age"] for table in tables.values()])
    np.testing.assert_allclose([age.centre, age.scale], [ages.mean(), ages.std()])
    male = np.concatenate([table["sex"] == "m" for table in tables.values()])
    np.testing.assert_allclose([units["sex[T.m]"].centre, units["sex[T.m]"].scale], [male.mean(), male.std()])
    names = list(algorithm.model.parameter_names)
    assert names == ["intercept", "age", "sex[T.m]"]
    mean, covariance = np.asarray(fit.posterior.mean), np.asarray(fit.posterior.covariance)
    summary = fit.summary()
    # at age 0 of a woman: beta_0 - beta_age m / s - beta_sex p / sd
    back = np.diag([1.0, 1 / age.scale, 1 / male.std()])
    back[0] = [1.0, -age.centre / age.scale, -male.mean() / male.std()]
    np.testing.assert_allclose([e.mean for e in summary], back @ mean, rtol=1e-9)
    np.testing.assert_allclose([e.sd for e in summary], np.sqrt(np.diag(back @ covariance @ back.T)), rtol=1e-9)
    assert "per unit of the data" in str(summary)
    # 2.5 is per standard deviation of a number and per level; 10 is at the means of the columns
    np.testing.assert_allclose(np.sqrt(np.asarray(algorithm.prior.variance)), [10, 2.5, 2.5 * male.std()])
    influence = fit.influence(refine=False)["york"]
    assert influence.kl > 0
    assert set(influence.shift) == set(names)


@settings(max_examples=30, deadline=None)
@given(strategies.integers(0, 10**6), strategies.sampled_from([0.0, 1e5, 1e9]))
def test_sums_around_an_agreed_value_keep_their_digits(seed, offset):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(offset, 1 + rng.random(), rng.integers(2, 50)) for _ in range(4)]
    pooled = np.concatenate(parts)
    around = {"x": offset}
    (column,) = scaling_from([sums_of(["x"], {"x": part}, len(part), around) for part in parts], around)
    np.testing.assert_allclose([column.centre, column.scale], [pooled.mean(), pooled.std()], rtol=1e-12, atol=1e-12)
    (column,) = scaling_from([sums_of(["x"], {"x": p}, len(p), around) for p in parts], around, around_zero=True)
    np.testing.assert_allclose(column.scale, np.sqrt(np.mean(pooled**2)), rtol=1e-12)
    assert column.centre == 0.0


def test_a_function_that_needs_large_numbers_is_reported_in_the_units_of_the_data():
    columns = (Number(name="y"), Number(name="age"), Number(name="dose"))
    encoding = FormulaEncoding("y ~ age + log(dose - 5)", columns, Scaling((ScaledColumn("age", 60.0, 10.0),)))
    np.testing.assert_allclose(encoding.to_computed(), [[1, 60, 0], [0, 10, 0], [0, 0, 1]], atol=1e-9)


def test_sums_beyond_a_declared_range_are_refused():
    study = parse_study(FEDERATED)  # ages from 18 to 110: at most 46 from the middle
    assert study.farthest == {"age": 46.0}
    inside = sums_of(["age"], {"age": np.array([18.0, 110.0, 64.0])}, 3, study.agreed_centres)
    outside = sums_of(["age"], {"age": np.array([18.0, 110.0, 200.0])}, 3, study.agreed_centres)
    assert reason_to_refuse(inside, ["age"], study.farthest) is None
    assert "within the declared range" in reason_to_refuse(outside, ["age"], study.farthest)
