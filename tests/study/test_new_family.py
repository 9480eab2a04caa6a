"""New families of outcomes, written as a user would write them, without a change in the package."""

import math
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln

import cavity
from cavity.core import Likelihood, LinearModel
from cavity.errors import DataError, StudyError
from cavity.models.glm.regression import gaussian_prior
from cavity.network.limits import bounds
from cavity.study import Family, RegressionFamily, Scaling, as_table, parse_study, register_family
from cavity.study.checks import check
from cavity.study.columns import Integer, Number
from cavity.study.disclosure import disclosures
from cavity.study.families.regression_family import coefficient_scales
from cavity.study.run import run_study
from tests.contracts.family import check_family
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")


class GammaLog(Likelihood):
    """y ~ Gamma with the mean exp(f) and a known shape."""

    shape: float

    @property
    def num_predictors(self):
        return 1

    def log_prob(self, f, y):
        a, f = self.shape, f[..., 0]
        return a * jnp.log(a) - gammaln(a) - a * f + (a - 1) * jnp.log(y) - a * y * jnp.exp(-f)

    def mean(self, f):
        return jnp.exp(f[..., 0])

    def check(self, y):
        return "the outcome must be positive" if (y <= 0).any() else None


@register_family
@dataclass(frozen=True)
class GammaFamily(RegressionFamily):
    """Positive amounts, such as costs. `shape` is a setting that a study agrees on."""

    shape: float = 1.0

    name = "gamma-known-shape"
    aliases = ("costs",)
    title = "gamma regression"
    ratio = "ratio of means"

    @classmethod
    def read(cls, section):
        return cls(section.positive("shape", 1.0))

    def outcome_problem(self, outcome):
        return None if outcome[0].is_numeric else "the outcome of gamma regression is a positive number"

    def outcome_column(self, raw, position):
        return Number(name=raw.name, missing=raw.missing, range=(0.0, math.inf))

    def likelihood(self, encoding):
        return GammaLog(self.shape)


STUDY = """
name = "costs"
id = "costs"
clients = ["leeds", "york"]
[model]
family = "gamma-known-shape"
shape = 2.0
formula = "cost ~ age"
[columns.cost]
type = "number"
range = [0, inf]
[columns.age]
type = "number"
[run]
tolerance = 1e-12
"""


def patients(seed, num_rows=150):
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, num_rows)
    return {"cost": rng.gamma(2.0, np.exp(8 + 0.02 * (age - 60)) / 2.0), "age": age}


CLIENTS = {"leeds": patients(0), "york": patients(1)}


def test_a_study_and_a_regression_with_a_new_family():
    study = parse_study(STUDY)
    fit = run_study(study, {name: as_table(columns) for name, columns in CLIENTS.items()})
    same = cavity.regression("cost ~ age", CLIENTS, family=GammaFamily(shape=2.0), tolerance=1e-12)
    np.testing.assert_allclose(fit.coefficients.mean, same.coefficients.mean, rtol=1e-8)
    # Newton's method for the maximum likelihood, with a wide prior and 300 rows
    age, cost = (np.concatenate([columns[name] for columns in CLIENTS.values()]) for name in ("age", "cost"))
    x = np.column_stack([np.ones(300), age - 60])
    theta = np.array([np.log(cost.mean()), 0.0])
    for _ in range(30):
        ratio = cost * np.exp(-x @ theta)
        theta = theta + np.linalg.solve((x * ratio[:, None]).T @ x, x.T @ (ratio - 1))
    estimate = fit.summary()["age"]
    assert abs(estimate.mean - theta[1]) < 0.1 * estimate.sd
    predicted = float(np.asarray(fit.predict({"age": [60.0]}).mean)[0])
    assert predicted == pytest.approx(np.exp(theta[0]), rel=0.02)


def test_new_families_keep_the_contract():
    check_family(GammaFamily(shape=2.0), [[1.0, 2.5, 0.2, 7.0]])
    check_family(Binomial(), [[1, 0, 3, 2], [4, 2, 3, 5]])


def test_a_new_family_has_a_default_setting_and_an_alias_in_python():
    by_name = cavity.regression("cost ~ age", CLIENTS, family="gamma-known-shape", rounds=2)
    by_alias = cavity.regression("cost ~ age", CLIENTS, family="costs", rounds=2)
    np.testing.assert_array_equal(by_name.posterior.mean, by_alias.posterior.mean)
    with pytest.raises(StudyError, match="'gamma-known-shape' has no setting 'noise_sd'; it is for gaussian"):
        cavity.regression("cost ~ age", CLIENTS, family="gamma-known-shape", noise_sd=1.0)


def test_a_new_family_is_part_of_what_is_agreed():
    study, alias = parse_study(STUDY), parse_study(STUDY.replace('"gamma-known-shape"', '"costs"'))
    assert study.hash == alias.hash
    other = parse_study(STUDY.replace("shape = 2.0", "shape = 3.0"))
    assert cavity.study.differences(study, other) == ["model.shape"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("shape = 2.0", "shape = -1", "model.shape (line 7): must be a positive number"),
        ('family = "gamma-known-shape"', 'family = "poisson"', "has no setting 'shape'; it is for gamma-known"),
        ('"gamma-known-shape"', '"gama-known-shape"', "unknown family 'gama-known-shape' (did you mean"),
        ('type = "number"\nrange = [0, inf]', 'type = "boolean"', "the outcome of gamma regression is a positive"),
    ],
)
def test_problems_of_a_new_family_are_reported_like_those_of_others(old, new, message):
    with pytest.raises(StudyError) as refused:
        parse_study(STUDY.replace(old, new))
    assert any(message in problem for problem in refused.value.problems)


def test_a_site_checks_its_data_with_a_new_family():
    study = parse_study(STUDY)
    assert [finding for finding in check(study, CLIENTS["leeds"], "leeds") if finding.severity == "error"] == []
    free = CLIENTS["leeds"] | {"cost": np.zeros(150)}
    assert any("the outcome must be positive" in str(finding) for finding in check(study, free))
    assert "2 arrays (2 + 4 numbers)" in str(disclosures(study)[-1])
    assert any("curvature of the family 'gamma-known-shape'" in note for note in bounds(study, Scaling()).notes)


def test_a_name_belongs_to_one_family():
    with pytest.raises(StudyError, match="there is a family 'gamma-known-shape' already: GammaFamily"):

        @register_family
        @dataclass(frozen=True)
        class Other(GammaFamily):
            title = "another"


class BinomialLogit(Likelihood):
    """y[..., 0] successes of y[..., 1] trials, with the log odds f."""

    @property
    def num_predictors(self):
        return 1

    def log_prob(self, f, y):
        f, successes, trials = f[..., 0], y[..., 0], y[..., 1]
        ways = gammaln(trials + 1) - gammaln(successes + 1) - gammaln(trials - successes + 1)
        return ways + successes * f - trials * jax.nn.softplus(f)

    def mean(self, f):
        return jax.nn.sigmoid(f[..., 0])

    def check(self, y):
        return "there are more successes than trials" if (y[:, 0] > y[:, 1]).any() else None


class BinomialModel(LinearModel):
    """Log odds of a success, linear in x."""

    prior: cavity.distributions.FullGaussian
    likelihood: BinomialLogit
    encoding: cavity.core.Encoding
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def parameter_names(self):
        return self.names

    def designs(self, batch):
        x, y = batch
        return (jnp.concatenate([jnp.ones((len(x), 1), x.dtype), x], axis=1),), y

    def predictor(self, theta, batch):
        (x,), y = self.designs(batch)
        return (x @ theta)[:, None], y

    def prepare(self, batch):
        x, y = batch if isinstance(batch, tuple) else self.encoding.rows(batch)
        if problem := self.likelihood.check(y):
            raise DataError(problem)
        return x, y


@register_family
@dataclass(frozen=True)
class Binomial(Family):
    """An outcome of two columns: `trials(successes, number)`."""

    name = "binomial-of-trials"
    title = "binomial regression"
    outcome_function = "trials"

    def outcome_problem(self, outcome):
        counts = len(outcome) == 2 and all(column.is_numeric for column in outcome)
        return None if counts else "trials() takes two columns of counts: successes and trials"

    def outcome_column(self, raw, position):
        return Integer(name=raw.name, missing=raw.missing, range=(0.0, math.inf))

    def model(self, encoding, prior, covariance):
        scales = np.array(coefficient_scales(self, encoding, prior))
        names = ("intercept", *encoding.design.names)
        return BinomialModel(gaussian_prior(len(scales), scales, covariance), BinomialLogit(), encoding, names)


def wards(seed):
    rng = np.random.default_rng(seed)
    age, patients = rng.normal(60, 10, 40), rng.integers(1, 30, 40)
    return {"deaths": rng.binomial(patients, 1 / (1 + np.exp(1 - (age - 60) / 10))), "patients": patients, "age": age}


WARDS = {"leeds": wards(0), "york": wards(1)}
TRIALS = """
name = "wards"
id = "wards"
clients = ["leeds", "york"]
[model]
family = "binomial-of-trials"
formula = "trials(deaths, patients) ~ age"
[columns]
deaths = { type = "integer", range = [0, inf] }
patients = { type = "integer", range = [1, inf] }
age = { type = "number" }
[run]
tolerance = 1e-12
"""


def in_rows(columns):
    """One row per patient."""
    died = np.concatenate([np.arange(n) < k for k, n in zip(columns["deaths"], columns["patients"], strict=True)])
    return {"died": died, "age": np.repeat(columns["age"], columns["patients"])}


@thorough
def test_an_outcome_of_several_columns():
    study = parse_study(TRIALS)
    assert [column.name for column in study.outcome_columns] == ["deaths", "patients"]
    fit = run_study(study, {name: as_table(columns) for name, columns in WARDS.items()})
    same = cavity.regression("trials(deaths, patients) ~ age", WARDS, family="binomial-of-trials", tolerance=1e-12)
    np.testing.assert_allclose(fit.posterior.mean, same.posterior.mean, rtol=1e-8)
    # the same patients, one row each, in the same units
    (age,) = fit.algorithm.model.encoding.scaling.columns
    rows = {name: in_rows(columns) for name, columns in WARDS.items()}
    plain = {n: {"died": r["died"], "z": (r["age"] - age.centre) / age.scale} for n, r in rows.items()}
    bernoulli = cavity.regression("died ~ z", plain, scaling="none", tolerance=1e-12)
    assert cavity.kl(fit.posterior, bernoulli.posterior) < 1e-8


def test_the_left_side_must_be_that_of_the_family():
    for text, message in [
        (TRIALS.replace('"binomial-of-trials"', '"poisson"'), "takes one column on the left, not trials"),
        (TRIALS.replace("trials(deaths, patients)", "deaths"), "needs trials(...) on the left"),
        (TRIALS.replace("trials(deaths, patients)", "trials(deaths, deaths)"), "takes different columns"),
        (TRIALS.replace("trials(deaths, patients)", "trials(log(deaths), patients)"), "takes different columns"),
        (TRIALS.replace("~ age", "~ age + patients"), "'patients' is also on the right"),
    ]:
        with pytest.raises(StudyError) as refused:
            parse_study(text)
        assert any(message in problem for problem in refused.value.problems)
    with pytest.raises(StudyError, match="takes one column on the left"):
        cavity.regression("trials(deaths, patients) ~ age", WARDS)
