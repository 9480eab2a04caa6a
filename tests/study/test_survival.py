"""Survival outcomes in formulas, studies and `cavity.regression`, against R on data that are in R."""

import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity.core import Data
from cavity.errors import DataError, StudyError
from cavity.network.limits import bounds
from cavity.study import Scaling, parse_study
from cavity.study.checks import check
from cavity.study.columns import Number
from cavity.study.encoding import FormulaEncoding
from cavity.study.families import Cox, Exponential, LogNormal, PiecewiseExponential, Weibull, make_family
from cavity.study.formula import parse_formula
from cavity.study.models import formula_model
from tests.contracts.family import check_family, default_prior
from tests.contracts.model import NUM_ROWS, check_model
from tests.marks import thorough
from tests.models.survival import by_hand

pytestmark = pytest.mark.usefixtures("quick_to_compile")


PIECEWISE = 'family = "piecewise-exponential"\ncuts = [100, 300]\n'


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


SURVIVAL, LATE = (
    [[3.0, 12_000.0, 0.001, 5.0], [1, 0, 1, 1]],
    [[0.0, 9.0, 0.0, 1.0], [3.0, 90.0, 0.5, 5.0], [1, 0, 1, 1]],
)
FAMILIES = [
    Cox(), Cox("breslow"), Weibull(), LogNormal(), Exponential(),
    PiecewiseExponential((1.0, 4.0)), PiecewiseExponential((1.0, 4.0), "client"),
]  # fmt: skip


@pytest.mark.parametrize("cells", [SURVIVAL, LATE], ids=["Surv(time, status)", "Surv(start, stop, status)"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family))
def test_contract(family, cells):
    check_family(family, cells)


@thorough
@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family))
def test_models_count_rows_by_their_weights(family, columns):
    rng = np.random.default_rng(1)
    y = by_hand.survival_rows(rng, NUM_ROWS, columns=columns, num_times=6)
    table = dict(zip(["start", "stop", "status"][-columns:], y.T, strict=True)) | {"age": rng.normal(size=NUM_ROWS)}
    names = ", ".join(list(table)[:columns])
    encoding = FormulaEncoding(f"Surv({names}) ~ age", tuple(Number(name=name) for name in table))
    model = formula_model(family, encoding, default_prior(family, outcome_is_scaled=False), None)
    theta = jnp.asarray(rng.normal(size=model.prior.dimension))
    check_model(model, 0.3 * theta, Data(model.prepare(table), np.ones(NUM_ROWS), np.asarray(NUM_ROWS)))


def test_settings_of_families():
    assert make_family("cox", {"ties": "breslow"}) == Cox("breslow")
    assert make_family("piecewise-exponential", {"cuts": (1, 2)}).cuts == (1.0, 2.0)
    with pytest.raises(StudyError, match=r"needs agreed cut points, such as cuts = \[90, 365\]"):
        make_family("piecewise-exponential", {})
    with pytest.raises(StudyError, match="unknown baseline 'both'; choose one of: shared"):
        PiecewiseExponential((1.0,), "both")
    with pytest.raises(StudyError, match="unknown ties 'exact'"):
        Cox("exact")
    assert {cls.ratio for cls in (Cox, PiecewiseExponential)} == {"hazard ratio"}
    assert {cls.ratio for cls in (Weibull, LogNormal, Exponential)} == {"time ratio"}


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
        ('family = "cox"', 'family = "piecewise-exponential"', "model needs agreed cut points, such as cuts = [90"),
        ('family = "cox"', 'family = "piecewise-exponential"\ncuts = [3, 2]', "points are positive and increase"),
        ('family = "cox"', 'family = "piecewise-exponential"\ncuts = 3', "must be a list of numbers, not 3"),
        ('family = "cox"', PIECEWISE + 'baseline = "both"', "unknown baseline 'both'; choose one of: shared"),
        ('family = "cox"', 'family = "weibull"\nties = "efron"', "'weibull' has no setting 'ties'; it is for cox"),
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


def test_cut_points_are_part_of_what_is_agreed():
    study = parse_study(STUDY.replace('family = "cox"\n', PIECEWISE))
    other = parse_study(STUDY.replace('family = "cox"\n', PIECEWISE.replace("300", "400")))
    assert study.model.family == PiecewiseExponential((100.0, 300.0))
    assert cavity.study.differences(study, other) == ["model.cuts"]


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


@thorough
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
