"""Priors of slopes by family, in Python and in studies alike, against NUTS."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import cavity
from cavity.errors import StudyError
from cavity.network.limits import bounds
from cavity.study import as_table, parse_study
from cavity.study.building import scaling_of
from cavity.study.run import run_study
from tests.marks import exhaustive, thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")


def patients(seed, num_rows=50):
    rng = np.random.default_rng(seed)
    age, dose, weight = rng.normal(60, 10, num_rows), rng.gamma(2, 3, num_rows), rng.normal(size=num_rows)
    sex = rng.choice(["f", "m"], num_rows)
    log_odds = 0.05 * (age - 60) + 0.3 * (dose - 6) - 0.5 * (sex == "m")
    died = rng.uniform(size=num_rows) < 1 / (1 + np.exp(-log_odds))
    stay = 12_000 + 900 * log_odds + rng.normal(0, 1500, num_rows)
    return {"died": died, "stay": stay, "age": age, "dose": dose, "weight": weight, "sex": sex}


FRAMES = {name: patients(seed) for seed, name in enumerate(["leeds", "york"])}
POOLED = {name: np.concatenate([frame[name] for frame in FRAMES.values()]) for name in FRAMES["leeds"]}
STUDY = """
name = "s"
id = "s"
clients = ["leeds", "york"]
[model]
family = "bernoulli"
formula = "died ~ age + dose + weight + sex"
[columns]
died = { type = "boolean" }
age = { type = "number" }
dose = { type = "number" }
weight = { type = "number" }
sex = { type = "category", levels = ["f", "m"] }
[prior]
family = "student-t"
df = 5
scale = 0.4
[priors.age]
family = "laplace"
scale = 0.2
[priors."sex[T.m]"]
scale = 0.3
[run]
tolerance = 1e-9
"""
CHOICE = {"prior_family": "student-t", "prior_df": 5, "prior_scale": 0.4}
SINGLE = {"age": {"family": "laplace", "scale": 0.2}, "sex[T.m]": {"scale": 0.3}}
FORMULA = "died ~ age + dose + weight + sex"


def tables():
    return {name: as_table(frame) for name, frame in FRAMES.items()}


def standardised():
    """The columns that the model computes with, whose scale is 1 for numbers and the sd of a level."""
    level = (POOLED["sex"] == "m").astype(float)
    numbers = [(POOLED[name] - POOLED[name].mean()) / POOLED[name].std() for name in ("age", "dose", "weight")]
    return np.column_stack([*numbers, (level - level.mean()) / level.std()]), level.std()


@thorough
def test_priors_are_those_of_numpyro():
    with jax.enable_x64(True):
        fit = run_study(parse_study(STUDY), tables())
        x, unit = standardised()

        def model():
            beta = [
                numpyro.sample("age", dist.Laplace(0.0, 0.2)),
                numpyro.sample("dose", dist.StudentT(5.0, 0.0, 0.4)),
                numpyro.sample("weight", dist.StudentT(5.0, 0.0, 0.4)),
                numpyro.sample("sex", dist.Normal(0.0, 0.3 * unit)),
            ]
            f = numpyro.sample("intercept", dist.Normal(0.0, 10.0)) + jnp.asarray(x) @ jnp.stack(beta)
            numpyro.sample("died", dist.Bernoulli(logits=f), obs=jnp.asarray(POOLED["died"], float))

        sampler = numpyro.infer.MCMC(
            numpyro.infer.NUTS(model), num_warmup=500, num_samples=8000, num_chains=1, progress_bar=False
        )
        sampler.run(jax.random.key(0))
        draws = sampler.get_samples()
    exact = np.stack([np.asarray(draws[name]) for name in ("intercept", "age", "dose", "weight", "sex")], axis=1)
    assert fit.converged
    error = np.abs(np.asarray(fit.posterior.mean) - exact.mean(0)) / exact.std(0)
    assert error.max() < 0.06  # 0.03 is the Monte Carlo error; the posterior under a Laplace prior is slightly skewed
    np.testing.assert_allclose(np.sqrt(np.diag(fit.posterior.covariance)), exact.std(0), rtol=0.06)


@thorough
def test_python_and_study_files_are_the_same():
    with jax.enable_x64(True):
        fit = run_study(parse_study(STUDY), tables())
        same = cavity.regression(FORMULA, FRAMES, priors=SINGLE, tolerance=1e-9, **CHOICE)
        assert cavity.kl(fit.posterior, same.posterior) < 1e-8
    assert fit.coefficients.names == ("intercept", "age", "dose", "weight", "sex[T.m]")
    normal = cavity.regression(FORMULA, FRAMES, prior_scale=0.4, rounds=5)
    # a Laplace prior of scale 0.2 pulls harder than N(0, 0.4^2), in the units of the data too
    assert 0 < fit.summary()["age"].mean < normal.summary()["age"].mean


@thorough
def test_the_split_does_not_matter_and_predictions_are_in_units():
    pooled = {"all": POOLED}
    with jax.enable_x64(True):
        for family in ("bernoulli", "gaussian"):
            formula = FORMULA if family == "bernoulli" else FORMULA.replace("died", "stay")
            options = {"family": family, "prior_family": "laplace", "tolerance": 1e-9}
            fits = [cavity.regression(formula, frames, **options) for frames in (FRAMES, pooled)]
            assert cavity.kl(fits[0].posterior, fits[1].posterior) < 1e-6
            rows = {name: column[:3] for name, column in POOLED.items()}
            one, other = (np.asarray(fit.predict(rows).mean) for fit in fits)
            np.testing.assert_allclose(one, other, rtol=1e-4)
            assert 0 < one.min() <= one.max() < (1 if family == "bernoulli" else 30_000)


@exhaustive
@thorough
@pytest.mark.parametrize("family", ["gamma", "ordinal", "student-t", "gaussian"])
def test_other_families_have_them_too(family):
    """Also in one stack with the server's own row, whose outcome must be valid in every family."""
    grade = {name: frame | {"grade": np.digitize(frame["dose"], [3, 6, 9])} for name, frame in FRAMES.items()}
    left = "grade" if family == "ordinal" else "stay"
    fit = cavity.regression(f"{left} ~ age + weight", grade, family=family, prior_family="student-t", rounds=30)
    plain = cavity.regression(f"{left} ~ age + weight", grade, family=family, rounds=30)
    assert fit.converged
    assert fit.coefficients.names == plain.coefficients.names
    close = np.abs(fit.coefficients.mean - plain.coefficients.mean) / plain.coefficients.sd
    assert close.max() < 0.3


@thorough
def test_a_horseshoe_shrinks_what_has_no_effect():
    rng = np.random.default_rng(0)
    frames = {}
    for name in ("leeds", "york"):
        x = rng.normal(size=(60, 6))
        frames[name] = {"y": 2 * x[:, 0] + rng.normal(size=60)} | {f"x{j}": x[:, j] for j in range(6)}
    formula = "y ~ " + " + ".join(f"x{j}" for j in range(6))
    fit = cavity.regression(formula, frames, family="gaussian", noise_sd=1.0, prior_family="horseshoe", prior_scale=0.1)
    plain = cavity.regression(formula, frames, family="gaussian", noise_sd=1.0)
    own, other = fit.summary(), plain.summary()
    assert abs(own["x0"].mean - 2) < 0.3
    assert sum(abs(own[f"x{j}"].mean) for j in range(1, 6)) < 0.7 * sum(abs(other[f"x{j}"].mean) for j in range(1, 6))
    assert own["log_tau"].mean < 0


def test_a_study_knows_its_priors():
    study = parse_study(STUDY)
    assert not study.prior.is_normal
    assert cavity.study.differences(study, parse_study(STUDY.replace("scale = 0.2", "scale = 0.25"))) == [
        "priors.age.scale"
    ]
    assert cavity.study.differences(study, parse_study(STUDY.replace("df = 5", "df = 6"))) == ["prior.df"]
    limits = bounds(study, scaling_of(study, list(FRAMES.values())))
    assert limits.added is None
    assert "the prior is not normal" in limits.notes[0]
    plain = parse_study(STUDY.split("[prior]")[0])
    assert plain.prior.is_normal
    assert plain.prior.family == "normal"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('family = "student-t"', 'family = "cauchy"', "prior.family"),
        ('family = "laplace"', 'family = "laplace"\ndf = 3', "a laplace prior has no df; it is for student-t"),
        ("[priors.age]", "[priors.agge]", "unknown coefficient 'agge' (did you mean 'age'?); choose one of: age, dose"),
        ("scale = 0.2", "scale = -1", "must be a positive number"),
        ("scale = 0.2", "width = 1", "width"),
        ("[priors.age]", "[prior.scales]\nage = 1\n[priors.age]", "give its scale there"),
        ("[run]", '[algorithm]\nmethod = "fedgvi"\nloss = "nll"\n[run]', "fedgvi takes normal priors"),
    ],
)
def test_wrong_priors_of_a_study(old, new, message):
    with pytest.raises(StudyError) as refused:
        parse_study(STUDY.replace(old, new, 1))
    assert any(message in problem for problem in refused.value.problems), refused.value.problems


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_family": "cauchy"}, "unknown prior family 'cauchy'; choose one of: normal, student-t"),
        ({"prior_df": 3}, "a normal prior has no df"),
        ({"priors": {"age": {"family": "laplace", "sd": 1}}}, "has no key 'sd'; it may have family, scale and df"),
        ({"priors": {"age": {"scale": 0}}}, "must be a positive number, not 0"),
        ({"priors": {"agge": {"scale": 1}}}, "unknown coefficient 'agge'"),
        ({"priors": {"age": {"scale": 1}}, "prior_scales": {"age": 1}}, "give its scale in priors"),
    ],
)
def test_wrong_priors_in_python(options, message):
    with pytest.raises(StudyError, match=message):
        cavity.regression(FORMULA, FRAMES, **options)


@thorough
def test_group_terms_have_normal_priors():
    frames = {name: frame | {"ward": [f"{name}{i % 5}" for i in range(50)]} for name, frame in FRAMES.items()}
    with pytest.raises(StudyError, match="a formula with group terms has normal priors"):
        cavity.regression("died ~ age + (1 | ward)", frames, prior_family="laplace")
