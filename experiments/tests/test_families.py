"""The data of other packages, one-shot combinations, and posteriors of every family beside NUTS."""

import jax
import numpy as np
import pytest

import cavity
from cavity_experiments import families, family_references, one_shot, runner, sources
from cavity_experiments.families_heterogeneity import designs, flags
from cavity_experiments.families_survival import pooled_mode
from cavity_experiments.runner import Size
from tests import family_data
from tests.marks import needs_data, thorough


@needs_data
def test_multisite_data():
    trauma, crabs, covid = sources.trauma(), sources.crabs(), sources.long_covid()
    assert [len(own["age"]) for own in trauma.values()] == [49, 106, 216]
    assert sum(own["satellites"].sum() for own in crabs.values()) == 505
    assert sorted({value for own in covid.values() for value in own["PASC_features"].tolist()}) == [1, 2, 3, 4, 5]


@needs_data
def test_the_mode_of_trauma_is_that_of_glm():
    """R: glm(mortality ~ sex + scale(age) + scale(ISS) + scale(GCS), binomial)."""
    frames = one_shot.standardised(sources.trauma(), ("age", "ISS", "GCS"))
    rows = [one_shot.design(own, ("sex", "age", "ISS", "GCS"), "mortality") for own in frames.values()]
    found, information = one_shot.mode(*(np.concatenate(part) for part in zip(*rows, strict=True)), 1e-12)
    np.testing.assert_allclose(found, [-1.6271990, -0.3358810, 1.3717389, 0.5499248, -2.0000777], atol=2e-7)
    errors = np.sqrt(np.diag(np.linalg.inv(information)))
    np.testing.assert_allclose(errors, [0.2400904, 0.3995150, 0.2058470, 0.1863562, 0.2383007], atol=2e-6)


@needs_data
@thorough
def test_the_mode_of_crabs_is_that_of_glm_nb():
    """R: glm.nb(satellites ~ width + weight), with theta 0.9323858."""
    frames = sources.crabs()
    with jax.enable_x64(True):
        wide = {"prior_scale": 1e3, "intercept_scale": 1e3, "prior_scales": {"log_shape_scale": 1e3}}
        fit = cavity.regression("satellites ~ width + weight", frames, family="negative-binomial", **wide)
        found, _ = pooled_mode(fit, frames)
    np.testing.assert_allclose(found[:3], [-1.38857488, 0.02888766, 0.66339525], atol=2e-4)
    assert np.exp(found[3]) == pytest.approx(0.9323858, rel=1e-4)


def test_one_shot_combinations_are_exact_for_equal_sites():
    """Three copies of one site: its mode is that of all rows, without a prior."""
    own = family_data.rows(0, 60)
    x = np.column_stack([np.ones(60), (own["age"] - 60) / 10])
    rows = dict.fromkeys("abc", (x, own["died"].astype(float)))
    for off in one_shot.compare(rows, precision=1e-9).values():
        np.testing.assert_allclose(off, 0.0, atol=1e-6)
    # with a prior at each site, BFI removes all but one of them
    assert np.abs(one_shot.compare(rows, precision=0.3)["BFI"]).max() < 0.2


NAMES = ["gaussian", "student-t", "probit", "cloglog", "binomial", "ordinal logit", "ordinal probit"]
NAMES += ["poisson", "negative binomial", "gamma"]


@thorough
@pytest.mark.parametrize("name", NAMES)
def test_posteriors_are_those_of_nuts(name):
    """200 rows. The error of NUTS is about 0.02 sd; shapes and distances of thresholds are slightly skewed."""
    case = family_data.STUDIES[name]
    frames = {"leeds": family_data.rows(5, 80), "york": family_data.rows(6, 120)}
    levels = {"grade": ["none", "mild", "severe"]} if case.left == "grade" else {}
    with jax.enable_x64(True):
        options = {"family": case.family, "levels": levels, "tolerance": 1e-9, **dict(case.settings)}
        fit = cavity.regression(case.formula, frames, **options)
        pooled = {column: np.concatenate([own[column] for own in frames.values()]) for column in frames["leeds"]}
        x, y = fit.algorithm.model.prepare(pooled)
        draws, r_hat, ess = family_references.nuts_draws(fit.algorithm.model, x, y, num_draws=4000, seed=0, chains=1)
    assert r_hat < 1.01
    mean, sd = np.asarray(fit.posterior.mean), np.sqrt(np.diag(fit.posterior.covariance))
    assert np.max(np.abs(mean - draws.mean(0)) / draws.std(0)) < 0.03 + 4 / np.sqrt(ess)
    np.testing.assert_allclose(sd, draws.std(0), rtol=0.03 + 4 / np.sqrt(2 * ess))


def test_planted_effects_are_in_standard_errors_of_the_client():
    """Of a linear regression with noise of sd 1, these are known."""
    with jax.enable_x64(True):
        design = designs()["gaussian"]
    x, y = design.simulate(np.random.default_rng(0), 400.0)
    assert design.standard_error(x[0], 4.0) == pytest.approx(0.1, rel=0.2)
    slope = np.linalg.lstsq(x[0], y[0], rcond=None)[0][1]
    assert slope == pytest.approx(0.3 + 400 * design.standard_error(x[0], 400.0), abs=0.5)


@thorough
def test_clients_far_away_are_flagged():
    with jax.enable_x64(True):
        found = flags(designs()["gaussian"], 10, 12.0, 0)
    assert found[:, 0].all()
    assert not found[:, 1:].all()


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_small(tmp_path):
    result = runner.run("families", families.families, directory=tmp_path, size=Size.QUICK)
    assert result.failed == ()
    decided = {check.name.split(":")[0] for check in result.checks if check.holds}
    assert {"families cloglog", "families trauma", "families coxph, Efron", "families Cox"} <= decided
    assert "families flags, gaussian" in decided
