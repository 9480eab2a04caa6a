"""`cavity.regression`: the pooled answer over data frames, with the names of the formula."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import cavity
from cavity.errors import DataError, StudyError
from tests.marks import thorough
from tests.studies import hospitals, patients

pytestmark = pytest.mark.usefixtures("quick_to_compile")

FORMULA = "died ~ rx * age + sex"
LEVELS = {"rx": ["placebo", "low", "high"]}
NAMES = ["intercept", "rx[T.low]", "rx[T.high]", "age", "sex[T.m]", "rx[T.low]:age", "rx[T.high]:age"]


def matrix(columns):
    low, high, age = columns["rx"] == "low", columns["rx"] == "high", columns["age"]
    return np.stack([np.ones(len(age)), low, high, age, columns["sex"] == "m", low * age, high * age], axis=1).astype(
        float
    )


def pooled(frames):
    return {name: np.concatenate([frame[name] for frame in frames.values()]) for name in next(iter(frames.values()))}


def test_linear_regression_is_the_conjugate_posterior():
    frames = hospitals()
    for frame in frames.values():
        frame["pressure"] = 100 + 0.5 * frame["age"] + np.random.default_rng(3).normal(0, 4, len(frame["age"]))
    fit = cavity.regression(
        "pressure ~ rx * age + sex",
        frames,
        family="linear",
        noise_sd=4,
        prior_scale=20,
        intercept_scale=200,
        prior_scales={"age": 1},
        levels=LEVELS,
        scaling="none",
    )
    everything = pooled(frames)
    x, y = matrix(everything), everything["pressure"]
    precision = x.T @ x / 16 + np.diag(np.array([200.0, 20, 20, 1, 20, 20, 20]) ** -2)
    mean = np.linalg.solve(precision, x.T @ y / 16)
    summary = fit.summary()
    assert [estimate.name for estimate in summary] == NAMES
    np.testing.assert_allclose([estimate.mean for estimate in summary], mean, rtol=1e-10, atol=1e-10)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    np.testing.assert_allclose([estimate.sd for estimate in summary], sd, rtol=1e-9)


def test_logistic_regression_is_the_pooled_fit():
    frames = hospitals()
    fit = cavity.regression(FORMULA, frames, levels=LEVELS, scaling="none", tolerance=1e-12)
    everything = pooled(frames)
    model = cavity.models.logistic_regression(NAMES[1:], prior_scale=np.array([10.0] + [2.5] * 6))
    direct = cavity.run(cavity.PVI(model), {"all": (matrix(everything)[:, 1:], everything["died"])}, tolerance=1e-12)
    assert cavity.kl(fit.posterior, direct.posterior) < 1e-9
    assert [estimate.name for estimate in fit.summary()] == NAMES


@thorough
def test_scaling_changes_only_the_prior():
    frames = hospitals()
    for frame in frames.values():
        frame["pressure"] = 100 + 0.5 * frame["age"] + np.random.default_rng(3).normal(0, 4, len(frame["age"]))
    wide = {"family": "linear", "noise_sd": 4, "prior_scale": 1e5, "intercept_scale": 1e5, "levels": LEVELS}
    plain = cavity.regression("pressure ~ rx * age", frames, scaling="none", **wide).summary()
    scaled = cavity.regression("pressure ~ rx * age", frames, **wide).summary()
    for estimate in plain:
        np.testing.assert_allclose(scaled[estimate.name].mean, estimate.mean, rtol=1e-5)
        np.testing.assert_allclose(scaled[estimate.name].sd, estimate.sd, rtol=1e-5)


@thorough
def test_data_frames_predictions_and_files(tmp_path):
    frames = {name: pd.DataFrame(columns) for name, columns in hospitals().items()}
    fit = cavity.regression(FORMULA, frames, levels=LEVELS)
    by_dict = cavity.regression(FORMULA, hospitals(), levels=LEVELS)
    np.testing.assert_array_equal(fit.posterior.mean, by_dict.posterior.mean)
    new = pd.DataFrame({"rx": ["high", "placebo"], "age": [50.0, 70.0], "sex": ["f", "m"]})
    scaling = by_dict.algorithm.model.encoding.scaling
    age = (new["age"] - scaling.columns[0].centre) / scaling.columns[0].scale
    x = np.stack([[0, 0], [1, 0], age, [0, 1], [0, 0], [1, 0] * age], axis=1).astype(float)
    x = (x - [column.centre for column in scaling.design]) / [column.scale for column in scaling.design]
    np.testing.assert_allclose(fit.predict(new).mean, fit.predict(x).mean)
    fit.save(tmp_path / "fit.npz")
    loaded = cavity.load(tmp_path / "fit.npz", clients=frames)
    assert str(loaded.summary()) == str(fit.summary())
    np.testing.assert_allclose(loaded.predict(new).mean, fit.predict(new).mean)
    later = fit.join("hull", pd.DataFrame(patients(60, 9)))
    assert later.server.names == ("leeds", "york", "hull")


def test_levels_that_are_not_given_are_the_union_over_clients():
    frames = hospitals()
    frames["york"]["rx"] = np.where(frames["york"]["rx"] == "low", "extra", frames["york"]["rx"])
    frames["leeds"]["rx"] = np.where(frames["leeds"]["rx"] == "high", "low", frames["leeds"]["rx"])
    fit = cavity.regression("died ~ rx", frames)
    assert [e.name for e in fit.summary()] == [
        "intercept",
        "rx[T.high]",
        "rx[T.low]",
        "rx[T.placebo]",
    ]  # 'extra' is the reference


@thorough
def test_softmax_and_poisson_have_their_names():
    frames = hospitals()
    rng = np.random.default_rng(0)
    for frame in frames.values():
        frame["visits"] = rng.poisson(2.0, len(frame["age"]))
    softmax = cavity.regression("rx ~ sex", frames, family="softmax", levels=LEVELS).summary()
    assert [e.name for e in softmax] == ["low: intercept", "low: sex[T.m]", "high: intercept", "high: sex[T.m]"]
    poisson = cavity.regression("visits ~ sex", frames, family="poisson").summary()
    everything = pooled(frames)
    female = everything["visits"][everything["sex"] == "f"].mean()
    # with one parameter per group the posterior mean is near the log of the group's mean
    assert abs(poisson["intercept"].mean - np.log(female)) < poisson["intercept"].sd
    unknown_noise = cavity.regression("age ~ sex", frames, family="linear").summary()
    assert abs(unknown_noise["log_noise_sd"].mean - np.log(everything["age"].std())) < 0.1


@thorough
def test_another_method_and_schedule():
    fit = cavity.regression(
        FORMULA,
        hospitals(),
        levels=LEVELS,
        method=lambda model: cavity.FedGVI(model, cavity.losses.Beta(0.3)),
        schedule=cavity.schedules.Sequential(),
        rounds=3,
        tolerance=1e-20,
    )
    assert isinstance(fit.algorithm, cavity.FedGVI)
    assert len(fit.history) == 3


def test_names_of_options_are_those_of_a_study():
    diagonal = cavity.regression(FORMULA, hospitals(), levels=LEVELS, covariance="diagonal", rounds=1)
    assert isinstance(diagonal.posterior, cavity.distributions.DiagonalGaussian)
    full = cavity.regression(FORMULA, hospitals(), levels=LEVELS, covariance="full", rounds=1)
    by_default = cavity.regression(FORMULA, hospitals(), levels=LEVELS, family="bernoulli", rounds=1)
    np.testing.assert_array_equal(full.posterior.mean, by_default.posterior.mean)
    unscaled = cavity.regression(FORMULA, hospitals(), levels=LEVELS, column_scaling={"age": "none"}, rounds=1)
    assert unscaled.algorithm.model.encoding.scaling.columns == ()
    assert len(unscaled.algorithm.model.encoding.scaling.design) == 6


def test_missing_values_are_an_error_or_dropped_with_a_warning():
    frames = hospitals()
    frames["york"]["age"][[1, 5]] = np.nan
    with pytest.raises(DataError, match="client 'york': column 'age': 2 missing values: rows 1, 5"):
        cavity.regression(FORMULA, frames, levels=LEVELS)
    with pytest.warns(UserWarning, match="dropped: york 2 of 80"):
        fit = cavity.regression(FORMULA, frames, levels=LEVELS, missing="drop")
    assert int(fit.clients["york"].num_rows) == 78


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": {"rx": ["placebo", "low"]}}, "client 'leeds': column 'rx': not one of the agreed levels"),
        ({"levels": {"rxx": ["a", "b"]}}, "'rxx', which is not a column"),
        ({"family": "logit"}, "unknown family 'logit'.*choose one of: gaussian or linear, student-t"),
        ({"formula": "died ~ dose"}, "client 'leeds': column 'dose' not found"),
        ({"formula": "age ~ sex"}, "many numbers other than 0 and 1"),
        ({"formula": "rx ~ sex"}, "a category of two levels"),
        ({"formula": "sex ~ age", "family": "linear"}, "column 'sex' holds texts"),
        ({"formula": "age ~ sex", "family": "poisson"}, "not a whole number"),
        ({"column_scaling": {"sex": (0, 1)}}, "not a numeric predictor"),
        ({"column_scaling": {"age": (0, 0)}}, "must be positive"),
        ({"prior_scale": -1}, "prior_scale is -1"),
        ({"formula": "age ~ 0 + sex", "family": "linear", "column_scaling": {"age": (60, 12)}}, "cannot be centred"),
        ({"prior_scales": {"agee": 1}}, "unknown coefficient 'agee'"),
        ({"formula": "age ~ sex", "family": "linear", "scaling": "none"}, "has no default prior: give prior_scale"),
        ({"scaling": "standard"}, "unknown scaling 'standard'; choose one of: none, federated"),
        ({"column_scaling": {"age": "federal"}}, "is \\(centre, scale\\) or \"none\", not 'federal'"),
        ({"covariance": "low rank"}, "unknown covariance 'low rank'; choose one of: full, diagonal"),
        ({"noise_sd": 1.0}, "the family 'bernoulli' has no setting 'noise_sd'; it is for gaussian"),
        ({"frames": {}}, "frames must be a dict of client"),
        ({"frames": {"leeds": [1, 2]}}, "client 'leeds': data must be"),
    ],
)
def test_errors_name_the_client_and_the_value(options, message):
    options = {"formula": FORMULA, "frames": hospitals()} | options
    with pytest.raises((DataError, StudyError), match=message):
        cavity.regression(**options)


DAYS = pd.date_range("2020-01-01", periods=60)


@pytest.mark.parametrize(
    "days",
    [
        pytest.param(pd.Series(DAYS), id="pandas"),
        pytest.param(pd.Series(DAYS.tz_localize("UTC")), id="pandas with a time zone"),
        pytest.param(DAYS.to_numpy().astype("datetime64[D]"), id="numpy"),
        pytest.param(list(DAYS.date), id="dates"),
        pytest.param([None, *DAYS.to_pydatetime()[1:]], id="datetimes, one missing"),
        pytest.param(list(DAYS.strftime("%Y-%m-%d")), id="texts"),
        pytest.param(list(DAYS.strftime("%Y-%m-%d %H:%M")), id="texts with a time"),
        pytest.param(pd.Series(DAYS - DAYS[0]), id="durations"),
    ],
)
def test_a_date_is_refused_with_a_remedy(days):
    frame = pd.DataFrame({"died": [True, False] * 30, "age": range(60), "day": days})
    for formula, family in [("died ~ age + day", "logistic"), ("day ~ age", "linear")]:
        with pytest.raises(DataError, match="'day' holds dates.*the days since an agreed date"):
            cavity.regression(formula, {"leeds": frame}, family=family)


def test_an_identifier_is_not_taken_for_a_category():
    frame = {"died": [True, False] * 30, "patient": [f"p{i}" for i in range(60)]}
    with pytest.raises(DataError, match="'patient' has 60 different texts in 60 rows, like an identifier"):
        cavity.regression("died ~ patient", {"leeds": frame})


@thorough
def test_formulas_need_neither_formulaic_nor_pandas():
    program = (
        "import sys\nsys.modules['formulaic'] = sys.modules['pandas'] = None\nfrom cavity.study.design import Design\n"
        "from cavity.study.columns import Category, Number\n"
        "columns = (Category(name='rx', levels=('a', 'b'), reference='a'), Number(name='age'))\n"
        "print(Design('y ~ rx * age', columns).names)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert finished.stdout.strip() == "('rx[T.b]', 'age', 'rx[T.b]:age')"
