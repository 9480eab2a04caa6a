"""A study runs as its file says, for every kind of model, and problems of all clients are reported before it starts."""

import sys
import types

import numpy as np
import pytest

import cavity
from cavity.core import LatentModel
from cavity.errors import DataError, StudyError
from cavity.study import Scaling, parse_study, study_algorithm, study_schedule
from cavity.study.checks import check
from cavity.study.disclosure import disclosures
from cavity.study.run import run_study
from cavity.study.table import as_table
from tests.own_models import TEXT
from tests.studies import FEDERATED, TRIAL, hospitals, patients, trial

pytestmark = pytest.mark.usefixtures("quick_to_compile")


def tables():
    return {name: as_table(columns) for name, columns in hospitals().items()}


def test_a_study_is_the_regression_of_its_formula():
    study = parse_study(FEDERATED + "[run]\ntolerance = 1e-12\n")
    fit = run_study(study, tables())
    levels = {"rx": ["placebo", "low", "high"]}
    same = cavity.regression("died ~ rx * age + sex", hospitals(), levels=levels, tolerance=1e-12)
    # sums are around the middle of the range there, and around a mean here
    np.testing.assert_allclose(fit.posterior.precision, same.posterior.precision, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(fit.posterior.precision_mean, same.posterior.precision_mean, rtol=1e-12, atol=1e-12)
    assert str(fit.summary()) == str(same.summary())


def test_names_in_the_file_select_objects():
    text = (
        TRIAL
        + '[algorithm]\nmethod = "fedgvi"\nloss = { gce = 0.5 }\ndivergence = { weighted-kl = 2 }\ndamping = "stale"\n'
    )
    algorithm = study_algorithm(parse_study(text), Scaling())
    assert isinstance(algorithm, cavity.FedGVI)
    assert isinstance(algorithm.loss, cavity.losses.GeneralisedCrossEntropy)
    assert isinstance(algorithm.divergence, cavity.divergences.WeightedKL)
    assert isinstance(algorithm.damping, cavity.aggregation.Stale)
    diagonal = study_algorithm(parse_study(TRIAL + '[algorithm]\ncovariance = "diagonal"\n'), Scaling())
    assert isinstance(diagonal.prior, cavity.distributions.DiagonalGaussian)


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        ('"synchronous"', cavity.schedules.Synchronous()),
        ('"sequential"', cavity.schedules.Sequential()),
        ('"sequential-shuffled"', cavity.schedules.SequentialShuffled()),
        ('"sequential-largest-first"', cavity.schedules.SequentialLargestFirst()),
        ('"asynchronous"', cavity.schedules.Asynchronous()),
        ("{ sampled-count = 2 }", cavity.schedules.SampledCount(2)),
        ("{ sampled-share = 0.5 }", cavity.schedules.SampledShare(0.5)),
    ],
)
def test_schedules(words, schedule):
    assert study_schedule(parse_study(TRIAL + f"[run]\nschedule = {words}\n")) == schedule


def test_a_prior_for_every_coefficient():
    text = TRIAL + '[prior]\nscale = 2\nintercept_scale = 7\n[prior.scales]\nage = 0.1\n"sex[T.m]" = 3\n'
    prior = study_algorithm(parse_study(text), Scaling()).prior
    np.testing.assert_allclose(np.sqrt(np.asarray(prior.variance)), [7, 2, 2, 0.1, 3, 2, 2])


def test_problems_of_all_clients_are_reported_together():
    bad = hospitals()
    bad["leeds"]["age"][0] = 500
    bad["york"] = patients(9, 0)
    with pytest.raises(
        DataError, match="client 'leeds'.*row 0.*client 'york': 9 rows can be used, and the study needs at least 10"
    ):
        run_study(trial(), {name: as_table(columns) for name, columns in bad.items()})
    with pytest.raises(DataError, match="and no others; see hull, york"):
        run_study(trial(), {"leeds": tables()["leeds"], "hull": tables()["york"]})


@pytest.fixture
def own(monkeypatch):
    """A package of the user's own, with models of several kinds."""
    module = types.ModuleType("own_models")

    def linear(width: int = 1) -> cavity.models.Regression:
        return cavity.models.linear_regression(width, noise_sd=1.0)

    def nothing() -> cavity.models.Regression:
        return None

    def wards(ward_scale: float = 1.0) -> LatentModel:
        import numpyro
        from numpyro import distributions as dist

        def model(ward, dose, outcome, num_wards):
            mu = numpyro.sample("mu", dist.Normal(0, 2))
            with numpyro.plate("wards", num_wards):
                level = numpyro.sample("level", dist.Normal(mu, ward_scale))
            numpyro.sample("y", dist.Normal(level[ward] + dose, 1), obs=outcome)

        example = {"ward": ["a", "b"], "dose": np.zeros(2), "outcome": np.zeros(2)}
        return cavity.models.numpyro_model(model, example, unit="ward", num_units="num_wards")

    module.linear, module.nothing, module.wards = linear, nothing, wards
    module.silent = lambda: linear()
    monkeypatch.setitem(sys.modules, "own_models", module)
    monkeypatch.setenv("CAVITY_ALLOW_MODELS", "own_models,no_such_package os, pandas")


OWN = """
name = "own"
id = "own"
clients = ["a", "b"]
[model]
function = "own_models:linear"
formula = "y ~ x"
arguments = { width = 1 }
[columns.y]
type = "number"
[columns.x]
type = "number"
"""


def rows(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=30)
    return {"y": 2 * x + rng.normal(size=30), "x": x}


@pytest.mark.usefixtures("own")
def test_a_users_own_model_by_formula():
    study = parse_study(OWN)
    fit = run_study(study, {"a": as_table(rows(0)), "b": as_table(rows(1))})
    x, y = (np.concatenate([rows(seed)[name] for seed in (0, 1)]) for name in "xy")
    design = np.stack([np.ones(60), x], axis=1)
    mean = np.linalg.solve(design.T @ design + np.eye(2) / 100, design.T @ y)
    np.testing.assert_allclose(fit.posterior.mean, mean, rtol=1e-10)
    assert "2 arrays (2 + 4 numbers)" in str(disclosures(study)[0])


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("own_models:linear", "no_such_package:linear", "no module 'no_such_package' here"),
        ("own_models:linear", "own_models:none", "no function 'none'"),
        ("own_models:linear", "own_models:silent", "annotate it"),
        ("own_models:linear", "os:system", "no function 'system' that is annotated to return a model"),
        ("own_models:linear", "pandas:read_pickle", "no function 'read_pickle' that is annotated"),
        (
            'own_models:linear"\nformula = "y ~ x"\narguments = { width = 1 }',
            'own_models:nothing"\nformula = "y ~ x"',
            "which is not a model",
        ),
        ("width = 1", "widht = 1", "cannot be called"),
        ('id = "own"', 'id = "own"\n[algorithm]\nmethod = "sfvi"\n', "needs a model with local latents"),
    ],
)
def test_requirements_on_a_users_own_model(old, new, message):
    text = OWN.replace(old, new)
    if "[algorithm]" in new:
        text = OWN + '[algorithm]\nmethod = "sfvi"\n'
    with pytest.raises((StudyError, cavity.CavityError), match=message):
        study_algorithm(parse_study(text), Scaling())


@pytest.mark.slow
@pytest.mark.usefixtures("own")
def test_a_numpyro_model_with_local_latents():
    text = TEXT.replace("tests.own_models:MODEL", "own_models:wards").replace('["leeds", "york"]', '["a", "b"]')
    text += '[algorithm]\nmethod = "sfvi"\n[run]\nrounds = 20\n'
    study = parse_study(text)
    rng = np.random.default_rng(0)
    clients = {
        name: as_table(
            {"ward": np.repeat([f"{name}1", f"{name}2"], 15), "dose": rng.random(30), "outcome": rng.random(30)}
        )
        for name in ("a", "b")
    }
    assert [f.severity for f in check(study, clients["a"])] == []
    fit = run_study(study, clients)
    assert len(fit.history) == 20
    assert "mu" in str(fit.summary())
    assert "the change of the globals" in str(disclosures(study)[0])
    averaged = parse_study(text.replace('"sfvi"', '"sfvi-avg"\ntotal = 4\nlocal_steps = 5').replace("= 20", "= 2"))
    assert len(run_study(averaged, clients).history) == 2
    integrated = study_algorithm(parse_study(text.replace('"sfvi"', '"pvi"')), Scaling())
    assert isinstance(integrated.model, cavity.models.MarginalModel)
