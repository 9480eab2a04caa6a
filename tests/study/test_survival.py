"""Survival outcomes in formulas, studies and `cavity.regression`, against R on data that are in R."""

import csv
import gzip

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import cavity
from cavity.core.client_data import prepare_clients
from cavity.errors import DataError, StudyError
from cavity.network.limits import bounds
from cavity.study import Scaling, as_table, parse_study
from cavity.study.checks import check
from cavity.study.formula import parse_formula
from cavity.study.run import run_study
from cavity_experiments import sources
from tests.marks import needs_data, thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")


def patients(seed, num_rows=40, *, late=False):
    rng = np.random.default_rng(seed)
    age, rx = rng.normal(60, 10, num_rows), rng.choice(["placebo", "low", "high"], num_rows)
    time = np.ceil(300 * rng.exponential(np.exp(0.03 * (age - 60) + 0.4 * (rx == "high"))))
    found = {"time": time, "died": rng.random(num_rows) < 0.7, "age": age, "rx": rx}
    return found | ({"entry": time * rng.uniform(0, 0.5, num_rows)} if late else {})


CLIENTS = {"leeds": patients(0), "york": patients(1, 25)}
STUDY = """
name = "survival"
id = "survival"
clients = ["leeds", "york"]
[model]
family = "cox"
formula = "Surv(time, died) ~ age + rx"
[columns]
time = { type = "number", range = [0, inf] }
died = { type = "boolean" }
age = { type = "number", range = [0, 120] }
rx = { type = "category", levels = ["placebo", "low", "high"] }
[run]
tolerance = 1e-10
"""
LEVELS = {"rx": ["placebo", "low", "high"]}


def test_formulas():
    formula = parse_formula("Surv(time, died) ~ age")
    assert (formula.outcome_function, formula.outcomes) == ("Surv", ("time", "died"))
    assert parse_formula("Surv(entry, time, died) ~ age").outcomes == ("entry", "time", "died")
    for text, message in [
        ("Surv(time, time) ~ age", "takes different columns"),
        ("Surv(log(time), died) ~ age", "takes different columns"),
        ("Surv() ~ age", "takes different columns"),
        ("y ~ Surv(time, died)", r"Surv\(\) cannot be used: it is the outcome .* on the left"),
        ("Surv(time, died) ~ age + died", "'died' is also on the right"),
    ]:
        with pytest.raises(StudyError, match=message):
            parse_formula(text)


@thorough
def test_a_study_is_the_regression_of_its_formula():
    study = parse_study(STUDY)
    fit = run_study(study, {name: as_table(columns) for name, columns in CLIENTS.items()})
    same = cavity.regression("Surv(time, died) ~ age + rx", CLIENTS, family="cox", levels=LEVELS, tolerance=1e-10)
    assert fit.algorithm.model.parameter_names == ("age", "rx[T.low]", "rx[T.high]")
    np.testing.assert_allclose(fit.coefficients.mean, same.coefficients.mean, rtol=1e-7)
    # with another reference, the difference between two levels is the same
    high = cavity.regression(
        "Surv(time, died) ~ age + rx", CLIENTS, family="cox", levels={"rx": ["high", "low", "placebo"]},
        prior_scale=1e3, tolerance=1e-10,
    )  # fmt: skip
    wide = cavity.regression(
        "Surv(time, died) ~ age + rx", CLIENTS, family="cox", levels=LEVELS, prior_scale=1e3, tolerance=1e-10
    )
    first, second = high.coefficients.mean, wide.coefficients.mean
    np.testing.assert_allclose([first[0], -first[2]], [second[0], second[2]], rtol=1e-4)
    predicted = fit.predict({"age": [60.0, 70.0], "rx": ["low", "low"]})
    assert float(predicted.mean[1] / predicted.mean[0]) == pytest.approx(np.exp(10 * fit.coefficients.mean[0]), rel=0.1)


@thorough
def test_times_in_other_units_have_the_same_hazard_ratios():
    columns = patients(3, 12)
    fits = []
    for unit in (1.0, 1e-5, 400.0):
        scaled = {"leeds": columns | {"time": unit * columns["time"]}}
        fits.append(cavity.regression("Surv(time, died) ~ age", scaled, family="cox"))
    np.testing.assert_allclose(fits[1].posterior.mean, fits[0].posterior.mean, rtol=1e-9)
    np.testing.assert_allclose(fits[2].posterior.precision, fits[0].posterior.precision, rtol=1e-9)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Surv(time, died)", "time", "the family 'cox' needs Surv(...) on the left"),
        ('family = "cox"', 'family = "bernoulli"', "'bernoulli' takes one column on the left, not Surv(...)"),
        ("Surv(time, died)", "Surv(time)", "Surv() takes two columns, time and status, or three"),
        ("Surv(time, died) ~ age", "Surv(died, time) ~ age", "the time 'died' of Surv() must be a number"),
        ('{ type = "boolean" }', '{ type = "integer", range = [1, 2] }', "does not have 0 and 1; status is 1 for"),
        ('{ type = "boolean" }', '{ type = "text" }', "the last column of Surv(), 'died', is the status"),
        ("~ age + rx", "~ 0 + age + rx", "has no intercept, because its baseline hazard takes this role; leave out"),
        ("~ age + rx", "~ 1", "a Cox model needs at least one predictor"),
        ("~ age + rx", "~ age + (1 | rx)", "rows of different groups are in one risk set"),
        ('family = "cox"', 'family = "cox"\nties = "exact"', "unknown ties 'exact'; choose one of: efron, breslow"),
        ('family = "cox"', 'family = "cox"\nnoise_sd = 1.0', "the family 'cox' has no setting 'noise_sd'"),
    ],
)
def test_studies_that_cannot_be_fitted_are_refused(old, new, message):
    with pytest.raises(StudyError) as refused:
        parse_study(STUDY.replace(old, new))
    assert any(message in problem for problem in refused.value.problems), refused.value.problems


def test_ties_are_part_of_what_is_agreed():
    study = parse_study(STUDY)
    other = parse_study(STUDY.replace('family = "cox"', 'family = "cox"\nties = "breslow"'))
    assert cavity.study.differences(study, other) == ["model.ties"]
    assert parse_study(STUDY.replace('family = "cox"', 'family = "cox"\nties = "efron"')).hash == study.hash


REFUSED = [
    ({"time": [0.0, 5.0]}, "time is zero or negative; survival times are positive"),
    ({"time": [-3.0, 5.0]}, "time is zero or negative"),
    ({"died": [1, 2]}, "coded 1 and 2"),
    ({"time": [None, 5.0]}, "column 'time': 1 missing value"),
    ({"died": [None, 1]}, "column 'died': 1 missing value"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_rows_that_are_no_survival_times_are_refused(changed, message):
    frame = {"time": [3.0, 5.0], "died": [0, 1], "age": [50.0, 60.0]} | changed
    with pytest.raises(DataError, match=f"client 'leeds': .*{message}"):
        cavity.regression("Surv(time, died) ~ age", {"leeds": frame}, family="cox", scaling="none")


def test_a_stop_before_the_start_is_refused():
    frame = {"entry": [4.0, 5.0], "time": [3.0, 8.0], "died": [0, 1], "age": [50.0, 60.0]}
    with pytest.raises(DataError, match="client 'leeds': 1 row has a stop that is not after the start"):
        cavity.regression("Surv(entry, time, died) ~ age", {"leeds": frame}, family="cox")


def test_a_site_checks_its_table():
    study = parse_study(STUDY)
    table = {name: list(column) for name, column in CLIENTS["leeds"].items()}
    assert [str(finding) for finding in check(study, table, "leeds") if finding.severity == "error"] == []
    zero = table | {"time": [0.0, *table["time"][1:]]}
    errors = [str(finding) for finding in check(study, zero, "leeds") if finding.severity == "error"]
    assert len(errors) == 1
    assert "1 value of the time is zero or negative" in errors[0]
    limits = bounds(study, Scaling())
    assert limits.notes == ()
    np.testing.assert_allclose(limits.added, 1e7 * np.array([120.0, 1.0, 1.0]) ** 2)


# R 4.2 on the pooled rows, from the README of the data: estimates and standard errors
COXPH = {
    "efron": ([0.01698975, -0.55688107], [0.00932878, 0.17162093]),
    "breslow": ([0.01697735, -0.55604821], [0.00932750, 0.17162955]),
}


def lung():
    with gzip.open(sources.data_directory() / "multisite" / "lung2.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    return {
        site: {name: [float(row[name]) for row in rows if row["site"] == site] for name in rows[0] if name != "site"}
        for site in sorted({row["site"] for row in rows})
    }


def mode(fit, frames):
    """The mode of the pooled posterior of a fit's model, with the inverse Hessian, in the units of the data."""
    model = fit.algorithm.model
    data = list(prepare_clients(model, frames).values())

    def objective(theta):
        return -model.prior.log_prob(theta) - sum(model.log_prob(theta, rows) for rows in data)

    slope = jax.jit(jax.value_and_grad(objective))
    found = minimize(lambda theta: [*map(np.asarray, slope(jnp.asarray(theta)))], np.asarray(fit.posterior.mean),
                     jac=True, method="BFGS", options={"gtol": 1e-8})  # fmt: skip
    hessian = jax.jit(jax.hessian(objective))(jnp.asarray(found.x))
    q = cavity.distributions.FullGaussian(hessian @ found.x, hessian)
    reported, covariance = model.reported_moments(q)
    return reported, np.sqrt(np.diag(covariance))


@needs_data
@thorough
@pytest.mark.parametrize("ties", COXPH)
def test_the_mode_under_a_wide_prior_is_that_of_coxph(ties):
    frames = lung()
    fit = cavity.regression("Surv(time, status) ~ age + sex", frames, family="cox", ties=ties, prior_scale=1e3)
    assert len(fit.history) <= 6
    (estimate, error), (expected, se) = mode(fit, frames), COXPH[ties]
    np.testing.assert_allclose((estimate - np.array(expected)) / se, 0.0, atol=1e-5)
    np.testing.assert_allclose(error, se, rtol=1e-5)
