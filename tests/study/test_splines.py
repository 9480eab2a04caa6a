"""Splines with agreed knots: against scipy and formulaic, refusals, and fits over clients."""

import formulaic
import numpy as np
import pandas as pd
import pytest
from scipy.interpolate import BSpline

import cavity
from cavity.errors import DataError, StudyError
from cavity.fit.run import load
from cavity.network.limits import bounds
from cavity.study import Scaling, parse_study
from cavity.study.checks import check
from cavity.study.columns import Boolean, Category, Number, Text
from cavity.study.encoding import FormulaEncoding
from cavity.study.formula import parse_formula
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

AGES = np.array([18.0, 18.001, 25.0, 39.999, 40.0, 41.5, 60.0, 72.25, 99.9, 100.0])
TEXT = "knots=[40, 60], range=[18, 100]"


def spline(text):
    (term,) = parse_formula(f"y ~ {text}").terms
    return term.factors[0].spline


def by_scipy(x, knots, ends, degree):
    whole = np.array([ends[0]] * (degree + 1) + list(knots) + [ends[1]] * (degree + 1), float)
    return BSpline.design_matrix(x, whole, degree).toarray(), whole


@pytest.mark.parametrize("degree", [1, 2, 3, 5])
@pytest.mark.parametrize("knots", [[], [40], [40, 60], [20, 21, 21.5, 99]])
def test_b_splines_are_those_of_scipy_and_formulaic(knots, degree):
    found = spline(f"bs(age, knots={knots}, range=[18, 100], degree={degree})").basis(AGES)
    expected, _ = by_scipy(AGES, knots, (18, 100), degree)
    np.testing.assert_allclose(found, expected[:, 1:], atol=1e-13)
    right = f"0 + bs(age, knots={knots}, degree={degree}, lower_bound=18, upper_bound=100)"
    theirs = formulaic.model_matrix(right, pd.DataFrame({"age": AGES}))
    np.testing.assert_allclose(found, theirs, atol=1e-10)


@pytest.mark.parametrize("knots", [[], [40], [40, 60], [20, 21, 21.5, 99]])
def test_natural_splines_are_those_of_the_recipe_in_r(knots):
    """As in the source of R's `ns`: splineDesign, the second derivatives at the boundary knots, and qr.qty."""
    natural = spline(f"ns(age, knots={knots}, range=[18, 100])")
    found = natural.basis(AGES)
    basis, whole = by_scipy(AGES, knots, (18, 100), 3)
    ends = np.array([18.0, 100.0 - 1e-12])
    columns = np.eye(basis.shape[1])
    constraint = np.stack([BSpline(whole, column, 3).derivative(2)(ends) for column in columns], axis=1)[:, 1:]
    rotation = np.linalg.qr(constraint.T, mode="complete")[0]
    np.testing.assert_allclose(found, (basis[:, 1:] @ rotation)[:, 2:], atol=1e-10)
    assert found.shape == (len(AGES), len(knots) + 1)
    # linear at both ends: of short steps h, second differences are f''' h^3 and not f'' h^2
    for start, step in [(18.0, 1e-4), (100.0, -1e-4)]:
        first, second, third = natural.basis(start + step * np.arange(3))
        assert np.abs(first - 2 * second + third).max() < 1e-11


def test_names_and_columns():
    columns = (Boolean(name="y"), Number(name="age"), Category(name="rx", levels=("a", "b"), reference="a"))
    encoding = FormulaEncoding("y ~ rx * bs(age, range = [18, 100], knots = [40.0, 60])", columns)
    base = f"bs(age, {TEXT})"
    names = [f"{base}[{i}]" for i in range(5)]
    assert encoding.design.names == ("rx[T.b]", *names, *(f"rx[T.b]:{name}" for name in names))
    matrix = encoding.design.matrix({"age": AGES, "rx": np.arange(10) % 2}, 10)
    np.testing.assert_allclose(matrix[:, 6:], matrix[:, :1] * matrix[:, 1:6])
    assert parse_formula(f"y ~ {base} + ns(`age`, {TEXT})").spline_knots == {"age": (18, 40, 60, 100)}
    assert spline(f"bs(age, {TEXT}, degree=2)").written() == f"bs(age, {TEXT}, degree=2)"
    assert spline("ns(`age at entry`, knots=[-0.5], range=[-1, 2e3])").written(quote=True) == (
        "ns(`age at entry`, knots=[-0.5], range=[-1, 2000])"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "bs(age)",
            r"bs\(\) without `knots` is refused, because it would choose knots from the rows of each site; agree",
        ),
        (
            "bs(age, knots=[40, 60])",
            r"without `range` .* agree on them: `bs\(age, knots=\[40, 60\], range=\[18, 100\]\)`",
        ),
        ("ns(age, df=4)", "character 16 .*it would choose knots from the rows of each site; give the knots"),
        ("bs(knots=[4], range=[1, 9])", "takes a column, and each keyword once"),
        ("bs(age, 4, range=[1, 9])", "takes a column, and each keyword once"),
        ("bs(age, knots=[4], knots=[5], range=[1, 9])", "takes a column, and each keyword once"),
        ("bs(log(age), knots=[4], range=[1, 9])", r"the first argument of bs\(\) is a column"),
        ("bs()", r"the first argument of bs\(\) is a column"),
        ("bs(age, knots=4, range=[1, 9])", "`knots` is a list of numbers"),
        ("bs(age, knots=[age], range=[1, 9])", "`knots` is a list of numbers"),
        ("bs(age, knots=[4], range=[1, 9, 10])", "the range of a spline is"),
        ("bs(age, knots=[4], range=[9, 1])", "the range of a spline is"),
        ("bs(age, knots=[4, 4], range=[1, 9])", "knots increase, and are inside the range"),
        ("bs(age, knots=[9], range=[1, 9])", "knots increase, and are inside the range"),
        ("bs(age, knots=[4], range=[1, 1e999])", "`range` is a list of numbers"),
        ("bs(age, knots=[4], range=[1, 9], degree=7)", "the degree is 1 to 5"),
        ("ns(age, knots=[4], range=[1, 9], degree=3)", r"ns\(\) has no keyword 'degree'; it has knots, range"),
        ("bs(age, knots=[4], range=[1, 9], intercept=1)", "has no keyword 'intercept'; it has degree, knots, range"),
        ("log(bs(age, knots=[4], range=[1, 9]))", r"bs\(\) cannot be used: it is a term of its own"),
        (f"bs(age, knots=[{', '.join(map(str, range(2, 60)))}], range=[1, 99])", "at most 50 knots"),
    ],
)
def test_splines_without_agreed_numbers_are_refused(text, message):
    with pytest.raises(StudyError, match=message):
        parse_formula(f"y ~ {text}")


def patients(seed, num_rows=150):
    rng = np.random.default_rng(seed)
    age, dose = rng.uniform(20, 95, num_rows), rng.normal(500, 90, num_rows)
    odds = np.sin(age / 15) + 0.004 * (dose - 500)
    return {"died": rng.random(num_rows) < 1 / (1 + np.exp(-odds)), "age": age, "dose": dose}


CLIENTS = {"leeds": patients(0), "york": patients(1, 90)}
FORMULA = f"died ~ dose + ns(age, {TEXT})"


@pytest.fixture(scope="module")
def fit():
    return cavity.regression(FORMULA, CLIENTS, tolerance=1e-12)


@thorough
def test_the_federated_fit_is_the_pooled_one_in_the_units_of_the_data(fit):
    pooled = {name: np.concatenate([columns[name] for columns in CLIENTS.values()]) for name in CLIENTS["leeds"]}
    assert cavity.kl(fit.posterior, cavity.regression(FORMULA, {"all": pooled}, tolerance=1e-12).posterior) < 1e-9
    # the same as plain columns
    basis = spline(f"ns(age, {TEXT})").basis
    plain = {
        client: {"died": rows["died"], "dose": rows["dose"]} | {f"s{i}": s for i, s in enumerate(basis(rows["age"]).T)}
        for client, rows in CLIENTS.items()
    }
    scales = {
        f"s{i}": 2.5 * float(np.std(np.concatenate([rows[f"s{i}"] for rows in plain.values()]))) for i in range(3)
    }
    same = cavity.regression("died ~ dose + s0 + s1 + s2", plain, prior_scales=scales, tolerance=1e-12)
    np.testing.assert_allclose(fit.coefficients.mean, same.coefficients.mean, rtol=1e-6)
    assert "scaled columns" in str(fit.summary())
    assert fit.algorithm.model.encoding.is_reversible


def test_predictions_need_the_saved_encoding_only(fit, tmp_path):
    rows = {"age": [20.0, 50.0, 99.0], "dose": [500.0, 400.0, 700.0]}
    fit.save(tmp_path / "fit")
    again = load(tmp_path / "fit")
    np.testing.assert_array_equal(again.predict(rows).mean, fit.predict(rows).mean)
    with pytest.raises(DataError, match=r"column 'age': outside the range 18 to 100 of its spline: '17' \(row 1\)"):
        again.predict({"age": [20.0, 17.0], "dose": [500.0, 400.0]})


def test_loading_a_formula_without_knots_is_refused(fit):
    encoding = fit.algorithm.model.encoding
    with pytest.raises(StudyError, match="without `range`"):
        FormulaEncoding(encoding.formula.replace(", range=[18, 100]", ""), encoding.columns, encoding.scaling)


STUDY = f"""
name = "splines"
id = "splines"
clients = ["leeds", "york"]
[model]
family = "bernoulli"
formula = "died ~ bs(age, {TEXT})"
[columns]
died = {{ type = "boolean" }}
age = {{ type = "number", range = [0, 120] }}
"""


def test_a_site_with_values_outside_the_range_is_refused():
    study = parse_study(STUDY)
    good = {"died": [True, False] * 10, "age": list(np.linspace(18, 100, 20))}
    assert [str(each) for each in check(study, good) if each.severity == "error"] == []
    bad = good | {"age": [*good["age"][:-1], 101.0]}
    (error,) = [str(each) for each in check(study, bad) if each.severity == "error"]
    assert "column 'age': outside the range 18 to 100 of its spline: '101' (row 19); agree on a wider range" in error
    limits = bounds(study, Scaling())
    assert limits.notes == ()
    np.testing.assert_allclose(limits.added, 2.5e6 * np.array([1.0, *np.max(spline(f"bs(age, {TEXT})").basis(
        np.linspace(18, 100, 4000)), axis=0)]) ** 2, rtol=0.05)  # fmt: skip
    with pytest.raises(StudyError) as refused:
        parse_study(STUDY.replace("age = {", 'age = { scaling = "federated",'))
    assert any(
        "the formula takes a function of 'age', so it cannot be scaled" in each for each in refused.value.problems
    )


@thorough
def test_splines_in_a_cox_model():
    rng = np.random.default_rng(3)
    survival = {
        client: {"age": rows["age"], "time": rng.exponential(100, len(rows["age"])), "died": rows["died"]}
        for client, rows in CLIENTS.items()
    }
    fit = cavity.regression(f"Surv(time, died) ~ bs(age, {TEXT})", survival, family="cox")
    assert len(fit.algorithm.model.parameter_names) == 5
    assert len(fit.history) <= 6


def test_splines_beside_and_within_group_terms():
    columns = (Boolean(name="y"), Number(name="age"), Text(name="ward"))
    encoding = FormulaEncoding(f"y ~ 1 + (0 + ns(age, {TEXT}) | ward)", columns)
    rows = encoding.grouped_rows({"y": [True, False] * 5, "age": AGES, "ward": ["a"] * 10})
    np.testing.assert_allclose(rows.z, spline(f"ns(age, {TEXT})").basis(AGES))
    assert encoding.group_design.names[0] == f"ns(age, {TEXT})[0]|ward"
    (term,) = parse_formula(encoding.formula).groups
    assert parse_formula(f"y ~ {term}").groups == (term,)
    with pytest.raises(DataError, match="column 'age': outside the range 18 to 100 of its spline"):
        encoding.grouped_rows({"y": [True], "age": [17.0], "ward": ["a"]})
