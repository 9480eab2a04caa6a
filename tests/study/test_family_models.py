"""The model of every family counts rows by their weights only, and does not depend on how rows are split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity.core.client_data import as_data
from cavity.study import parse_study
from cavity.study.building import client_data, scaling_of, study_algorithm
from tests import family_data
from tests.contracts.model import NUM_ROWS, check_capabilities, check_model
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")
study_of = pytest.mark.parametrize("case", family_data.STUDIES.values(), ids=family_data.STUDIES.keys())


def model_and_rows(case, num_rows=NUM_ROWS):
    """The model of a study, and some rows of one client in its form."""
    study = parse_study(case.text.replace("[model]", "min_rows = 1\n[model]"))
    scaling = scaling_of(study, list(family_data.clients().values()))
    model = study_algorithm(study, scaling).model
    # a mixture of levels and classes in the first rows
    frame = {name: column[:num_rows] for name, column in family_data.rows(3).items()}
    return model, as_data(model, client_data(study, frame, scaling)), frame


@study_of
@thorough
def test_rows_count_by_their_weight(case):
    model, data, _ = model_and_rows(case)
    theta = jnp.asarray(0.3 * np.random.default_rng(0).normal(size=model.prior.dimension)) + model.prior.mean
    check_model(model, theta, data)


@study_of
@thorough
def test_what_a_model_can_do(case):
    model, data, frame = model_and_rows(case)
    theta = jnp.asarray(0.3 * np.random.default_rng(0).normal(size=model.prior.dimension)) + model.prior.mean
    checked = check_capabilities(model, theta, data, frame)
    assert {"LinearModel", "PredictiveModel", "ReportedModel", "PredictorDraws"} <= checked


@study_of
@thorough
def test_the_split_does_not_matter(case):
    """One client, and two of which each has half of the classes or levels, are the same posterior."""
    frames = family_data.clients()
    pooled = {name: np.concatenate([own[name] for own in frames.values()]) for name in frames["leeds"]}
    levels = {"grade": ["none", "mild", "severe"]} if case.left == "grade" else {}
    order = np.argsort(np.asarray(pooled[case.left.split(" ")[0]]), kind="stable")
    halves = {f"c{i}": {n: c[part] for n, c in pooled.items()} for i, part in enumerate(np.array_split(order, 2))}
    with jax.enable_x64(True):
        options = {"family": case.family, "levels": levels, "tolerance": 1e-12, **dict(case.settings)}
        one, two = (cavity.regression(case.formula, split, **options) for split in ({"all": pooled}, halves))
        assert two.converged
        assert cavity.kl(two.posterior, one.posterior) < 1e-8


@study_of
@thorough
def test_summaries_have_the_moments_and_quantiles_of_draws(case):
    fit = cavity.regression(
        case.formula,
        family_data.clients(),
        family=case.family,
        levels={"grade": ["none", "mild", "severe"]} if case.left == "grade" else {},
        **dict(case.settings),
    )
    draws = fit._presentation.draws(40_000, 1)
    summary = fit.summary(0.9)
    assert tuple(draws) == tuple(estimate.name for estimate in summary) == fit.coefficients.names
    for estimate, own in zip(summary, draws.values(), strict=True):
        own = np.asarray(own)
        assert abs(estimate.mean - own.mean()) < 5 * own.std() / np.sqrt(len(own)) + 1e-9
        assert estimate.sd == pytest.approx(own.std(), rel=0.05)
        low, high = np.quantile(own, [0.05, 0.95])
        assert abs(estimate.lower - low) < 0.05 * own.std()
        assert abs(estimate.upper - high) < 0.05 * own.std()


@thorough
@pytest.mark.parametrize("family", ["gamma", "student-t", "gaussian"])
def test_the_unit_of_an_amount_does_not_matter(family):
    """In single precision: outcomes near 0.001, 12,000 and 10^9."""
    frames = family_data.clients()
    fits = {}
    for unit in (1e-7, 1.0, 1e5):
        scaled = {name: own | {"cost": unit * own["cost"]} for name, own in frames.items()}
        fits[unit] = cavity.regression("cost ~ age + sex", scaled, family=family)
        assert fits[unit].converged
    for unit in (1e-7, 1e5):
        own, other = fits[unit].coefficients, fits[1.0].coefficients
        moved = own.mean.copy()
        if family == "gamma":
            moved[0] -= np.log(unit)
        else:
            moved[:3] /= unit
            moved[3] = moved[3] / unit if family == "student-t" else moved[3] - np.log(unit)
        assert np.max(np.abs(moved - other.mean) / other.sd) < 1e-3
    predicted = [np.asarray(fit.predict({"age": [70.0], "sex": ["m"]}).mean)[0] / unit for unit, fit in fits.items()]
    np.testing.assert_allclose(predicted, predicted[1], rtol=1e-4)


@thorough
@pytest.mark.parametrize("family", ["student-t", "gamma"])
def test_a_client_whose_outcomes_are_all_equal(family):
    """Its own rows fit exactly, and t distributions are flat far away: cavities are kept proper."""
    frames = family_data.clients() | {"hull": family_data.rows(2) | {"cost": np.full(family_data.NUM_ROWS, 12_000.0)}}
    pooled = {name: np.concatenate([own[name] for own in frames.values()]) for name in ("cost", "age", "sex")}
    with jax.enable_x64(True):
        three = cavity.regression("cost ~ age + sex", frames, family=family, tolerance=1e-10)
        one = cavity.regression("cost ~ age + sex", {"all": pooled}, family=family, tolerance=1e-10)
        assert three.converged
        assert cavity.kl(three.posterior, one.posterior) < 1e-7


@thorough
def test_outliers_hardly_change_a_student_t_regression():
    frames = family_data.clients()
    wild = {name: own | {"cost": own["cost"].copy()} for name, own in frames.items()}
    wild["leeds"]["cost"][0] = 1e7
    fits = [
        cavity.regression("cost ~ age", clients, family=family).summary()["age"]
        for family in ("student-t", "gaussian")
        for clients in (frames, wild)
    ]
    assert abs(fits[1].mean - fits[0].mean) < 0.5 * fits[0].sd
    assert abs(fits[3].mean - fits[2].mean) > 3 * fits[2].sd


@thorough
@pytest.mark.parametrize("name", ["gamma", "negative binomial", "ordinal logit", "binomial", "cloglog", "student-t"])
def test_collinear_columns_share_their_effect(name):
    frames = {name: own | {"months": 12 * own["age"]} for name, own in family_data.clients().items()}
    case = family_data.STUDIES[name]
    options = {"family": case.family, **dict(case.settings)}
    if case.left == "grade":
        options["levels"] = {"grade": ["none", "mild", "severe"]}
    fit = cavity.regression(f"{case.left} ~ age + months", frames, **options)
    plain = cavity.regression(f"{case.left} ~ age", frames, **options)
    assert fit.converged
    together = fit.summary()["age"].mean + 12 * fit.summary()["months"].mean
    assert abs(together - plain.summary()["age"].mean) < 0.1 * plain.summary()["age"].sd
    assert fit.summary()["age"].sd > 3 * plain.summary()["age"].sd


@thorough
@pytest.mark.parametrize("name", ["gamma", "negative binomial", "binomial", "cloglog", "probit", "student-t"])
def test_twelve_rows(name):
    """Four at each client, which a study would refuse. Such posteriors are skewed, and the verdict corrects them."""
    frames, case = {f"c{i}": family_data.rows(i, 4) for i in range(3)}, family_data.STUDIES[name]
    fit = cavity.regression(f"{case.left} ~ age", frames, family=case.family, **dict(case.settings))
    assert fit.converged
    assert fit.verdict.mean_error < 0.15
