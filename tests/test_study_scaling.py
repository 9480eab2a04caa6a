"""Scaling by sums is scaling by the pooled mean and sd, and coefficients come back to the units of the data."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies

import cavity
from cavity import wire
from cavity.errors import CavityError, StudyError
from cavity.study import client_data, parse_study, study_algorithm, study_scaling, sums
from cavity.study.columns import Category, Number
from cavity.study.encoding import FormulaEncoding
from cavity.study.scaling import ScaledColumn, Scaling, scaling_from, sums_of
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


def test_clients_may_come_in_any_order_and_over_a_wire():
    study = parse_study(FEDERATED)
    totals = [sums(study, table) for table in hospitals().values()]
    sent = [wire.from_bytes(wire.to_bytes(total)) for total in totals]
    assert study_scaling(study, totals) == study_scaling(study, sent[::-1])
    assert totals[0].columns == ("age",)
    assert int(totals[0].num_rows) == 120


def test_what_cannot_be_scaled_is_refused():
    same = [sums_of(["x"], {"x": np.full(n, 0.1)}, n) for n in (3, 7)]
    with pytest.raises(CavityError, match="same value in all rows"):
        scaling_from(same)
    with pytest.raises(CavityError, match="none yet"):
        study_scaling(parse_study(FEDERATED))
    with pytest.raises(CavityError, match="different columns"):
        scaling_from([same[0], sums_of(["y"], {"y": np.arange(3.0)}, 3)])
    with pytest.raises(StudyError, match="other columns"):
        study_scaling(parse_study(FEDERATED), [sums_of(["y"], {"y": np.arange(3.0)}, 3)])
    with pytest.raises(CavityError, match="not finite"):
        scaling_from([sums_of(["x"], {"x": np.array([1.0, np.nan])}, 2)])


def test_a_fixed_scaling_needs_no_sums():
    study = trial([('unit = "years"', "scaling = { centre = 60, scale = 10 }")])
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
def test_coefficients_come_back_exactly(formula):
    columns = {"age": AGE, "dose": DOSE, "rx": RX}
    used = (Y, *(columns[name] for name in FormulaEncoding(formula, (Y,)).parsed.predictors))
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


def test_where_there_is_no_way_back_the_summary_says_so():
    rng = np.random.default_rng(0)
    frames = {"a": {"y": rng.normal(size=40), "age": rng.normal(60, 5, 40)}}
    fit = cavity.regression("y ~ 0 + age", frames, family="linear", noise_sd=1.0, scaling={"age": (60, 5)})
    assert fit.algorithm.model.encoding.to_computed() is None
    assert "age is (age - 60) / 5" in str(fit.summary())
    # without a centre there is one
    fit = cavity.regression("y ~ 0 + age", frames, family="linear", noise_sd=1.0, scaling={"age": (0, 5)})
    np.testing.assert_allclose(fit.summary()["age"].mean, fit.posterior.mean[0] / 5)


@pytest.mark.parametrize("family", ["full", "diagonal"])
def test_the_reported_posterior_is_the_computed_one_in_other_units(family):
    study = parse_study(FEDERATED + f'[algorithm]\nfamily = "{family}"\n')
    tables = hospitals()
    scaling = study_scaling(study, [sums(study, table) for table in tables.values()])
    algorithm = study_algorithm(study, scaling)
    fit = cavity.run(algorithm, {name: client_data(study, table, scaling) for name, table in tables.items()})
    (age,) = scaling.columns
    names = list(algorithm.model.parameter_names)
    mean, covariance = np.asarray(fit.posterior.mean), np.asarray(fit.posterior.covariance)
    summary = fit.summary()
    i = names.index("age")
    np.testing.assert_allclose(summary["age"].mean, mean[i] / age.scale)
    np.testing.assert_allclose(summary["age"].sd, np.sqrt(covariance[i, i]) / age.scale)
    # the intercept at age 0: beta_0 - beta_age m / s
    weights = np.zeros(len(names))
    weights[0], weights[i] = 1.0, -age.centre / age.scale
    np.testing.assert_allclose(summary["intercept"].mean, weights @ mean)
    np.testing.assert_allclose(summary["intercept"].sd, np.sqrt(weights @ covariance @ weights))
    assert "per unit of the data" in str(summary)
    influence = fit.influence(refine=False)["york"]
    assert influence.kl > 0
    assert set(influence.shift) == set(names)
