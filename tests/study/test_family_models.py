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
