"""Default priors give the answer of least squares whatever the units are, in Python, in studies and over a network."""

from functools import cache

import jax
import numpy as np
import pytest

import cavity
from cavity.errors import CavityError
from tests.marks import thorough

SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 20))]


def least_squares(x, y):
    """Coefficients, the intercept first, and their standard errors; in units that lose no digits."""
    centre, scale, middle = x.mean(0), x.std(0), y.mean()
    z = np.column_stack([np.ones(len(y)), (x - centre) / scale])
    found = np.linalg.lstsq(z, y - middle)[0]
    gap = y - middle - z @ found
    errors = np.sqrt(gap @ gap / (len(y) - z.shape[1]) * np.diag(np.linalg.inv(z.T @ z)))
    slopes = found[1:] / scale
    return np.append(middle + found[0] - slopes @ centre, slopes), errors[1:] / scale


def split(columns, num_clients):
    return {f"c{i}": {name: v[i::num_clients] for name, v in columns.items()} for i in range(num_clients)}


def drawn(seed, num_rows=500, num_columns=3):
    """Columns correlated up to 0.9, and scales and means far from 0 and 1."""
    rng = np.random.default_rng(seed)
    rho, scale = rng.uniform(0, 0.9), 10.0 ** rng.uniform(-6, 6)
    covariance = rho + (1 - rho) * np.eye(num_columns)
    z = rng.normal(size=(num_rows, num_columns)) @ np.linalg.cholesky(covariance).T
    x = (z + rng.uniform(-1000, 1000, num_columns)) * 10.0 ** rng.uniform(-3, 4, num_columns)
    noise = rng.uniform(0.2, 3)
    y = scale * (rng.uniform(-1000, 1000) + z @ rng.normal(size=num_columns) + noise * rng.normal(size=num_rows))
    return x, y


def frames(x, y, num_clients=3):
    return split({"y": y} | {f"x{j}": column for j, column in enumerate(x.T)}, num_clients)


FORMULA = "y ~ x0 + x1 + x2"


@cache
def fitted(seed, factor=1.0, num_clients=3):
    """With all defaults, in single precision."""
    x, y = drawn(seed)
    with jax.enable_x64(False):
        return cavity.regression(FORMULA, frames(x, factor * y, num_clients), family="linear")


@thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_slopes_are_those_of_least_squares(seed):
    found, errors = least_squares(*drawn(seed))
    own = fitted(seed).coefficients
    assert np.max(np.abs(own.mean[1:4] - found[1:]) / own.sd[1:4]) < 0.05
    np.testing.assert_allclose(own.sd[1:4], errors, rtol=0.01)


@thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_units_of_the_outcome_do_not_matter(seed):
    fit, thousand = fitted(seed), fitted(seed, 1000.0)
    own, other = fit.coefficients, thousand.coefficients
    assert np.max(np.abs(other.mean[:4] / 1000 - own.mean[:4]) / own.sd[:4]) < 1e-6
    # log noise moves by log 1000, the log density of each row by minus that
    assert other.mean[4] - own.mean[4] == pytest.approx(np.log(1000), abs=1e-6)
    assert thousand.log_evidence - fit.log_evidence == pytest.approx(-500 * np.log(1000), abs=5e-3)


@pytest.mark.parametrize("num_clients", [1, 10])
@thorough
def test_the_split_does_not_matter(num_clients):
    own, other = fitted(0).coefficients, fitted(0, num_clients=num_clients).coefficients
    assert np.max(np.abs(other.mean - own.mean) / own.sd) < 2e-3  # the run's tolerance, 1e-6 nats, is sqrt(2e-6) sd


def test_the_posterior_is_that_of_the_stated_prior():
    """N(mean y, (2.5 sd y)^2) at the means of the columns, N(0, (2.5 sd y / sd x)^2), and the noise given."""
    rng = np.random.default_rng(0)
    rx, age = rng.choice(["a", "b"], 30, p=[0.8, 0.2]), rng.normal(60, 12, 30)
    y = 12_000 + 2_000 * (rx == "b") + 50 * age + rng.normal(0, 1_500, 30)
    with jax.enable_x64(True):
        clients = split({"y": y, "rx": rx, "age": age}, 3)
        fit = cavity.regression("y ~ rx * age", clients, family="linear", noise_sd=1500, tolerance=1e-14)
        evidence = fit.log_evidence
    dummy, z = (rx == "b").astype(float), (age - age.mean()) / age.std()
    x = np.column_stack([dummy, z, dummy * z])  # the matrix is of scaled columns: the effect of rx is at the mean age
    centred = np.column_stack([np.ones(30), x - x.mean(0)])
    prior_sd = 2.5 * y.std() / np.append(1.0, x.std(0))
    precision = centred.T @ centred / 1500**2 + np.diag(prior_sd**-2)
    at_means = np.linalg.solve(precision, centred.T @ (y - y.mean()) / 1500**2)
    # in the units of the data: the slope of age is per year, the effect of rx is at age 0
    slope, interaction = at_means[2] / age.std(), at_means[3] / age.std()
    effect = at_means[1] - interaction * age.mean()
    expected = [y.mean() + at_means[0] - at_means[1:] @ x.mean(0) - slope * age.mean(), effect, slope, interaction]
    np.testing.assert_allclose(fit.coefficients.mean, expected, rtol=1e-9)
    marginal = 1500**2 * np.eye(30) + centred @ np.diag(prior_sd**2) @ centred.T
    away = y - y.mean()
    expected_evidence = -0.5 * (away @ np.linalg.solve(marginal, away) + np.linalg.slogdet(2 * np.pi * marginal)[1])
    assert evidence == pytest.approx(expected_evidence, abs=1e-8)


def costs(seed=0, num_rows=300):
    rng = np.random.default_rng(seed)
    rx, age = rng.choice(["placebo", "drug"], num_rows), rng.normal(61, 12, num_rows)
    cost = 12_000 + 2_200 * (rx == "drug") + 90 * (age - 61) + rng.normal(0, 4_000, num_rows)
    return {"cost": cost, "rx": rx, "age": age}


LEVELS = {"rx": ["placebo", "drug"]}


def by_least_squares(columns, outcome):
    x = np.column_stack([columns["rx"] == "drug", columns["age"]]).astype(float)
    return least_squares(x, columns[outcome])


def test_costs_near_twelve_thousand():
    """With the prior N(0, 10^2) on everything the effect of the drug was 0.4."""
    columns = costs()
    (_, effect, slope), _ = by_least_squares(columns, "cost")
    fit = cavity.regression("cost ~ rx + age", split(columns, 3), family="linear", levels=LEVELS)
    summary = fit.summary()
    assert abs(summary["rx[T.drug]"].mean - effect) < 0.05 * summary["rx[T.drug]"].sd
    assert abs(summary["age"].mean - slope) < 0.05 * summary["age"].sd
    assert abs(summary["log_noise_sd"].mean - np.log(4000)) < 0.15
    new = {"rx": ["drug", "placebo"], "age": [61.0, 61.0]}
    prediction = fit.predict(new)
    mean, sd = fit.coefficients.mean[:3], fit.coefficients.covariance[:3, :3]
    rows = np.array([[1, 1, 61], [1, 0, 61.0]])
    np.testing.assert_allclose(prediction.mean, rows @ mean, rtol=1e-5)
    np.testing.assert_allclose(prediction.sd, np.sqrt(np.einsum("ij,jk,ik->i", rows, sd, rows)), rtol=1e-3)
    assert np.all(prediction.lower < prediction.mean)


@pytest.mark.parametrize(("middle", "spread"), [(140.0, 15.0), (1e-3, 2e-4)], ids=["blood pressure", "near 0.001"])
@thorough
def test_a_small_effect_keeps_its_sign(middle, spread):
    columns = costs(1, 400)
    columns["y"] = middle + spread * (columns["cost"] - 12_000) / 4_000 - spread * (columns["rx"] == "drug")
    (_, effect, slope), _ = by_least_squares(columns, "y")
    summary = cavity.regression("y ~ rx + age", split(columns, 3), family="linear", levels=LEVELS).summary()
    assert abs(summary["rx[T.drug]"].mean - effect) < 0.05 * summary["rx[T.drug]"].sd
    assert abs(summary["age"].mean - slope) < 0.05 * summary["age"].sd


@thorough
def test_twelve_rows_shrink_a_little():
    columns = costs(2, 12)
    found, errors = by_least_squares(columns, "cost")
    fit = cavity.regression("cost ~ rx + age", split(columns, 2), family="linear", levels=LEVELS)
    assert np.max(np.abs(fit.coefficients.mean[1:3] - found[1:]) / errors) < 0.3


@pytest.mark.parametrize("double", [False, True])
@thorough
def test_a_client_whose_outcomes_are_all_equal(double):
    """Its own rows fit exactly and would pull the noise to 0."""
    columns = costs(3)
    columns["cost"][::3] = 12_000.0
    (_, effect, slope), _ = by_least_squares(columns, "cost")
    with jax.enable_x64(double):
        fit = cavity.regression("cost ~ rx + age", split(columns, 3), family="linear", levels=LEVELS)
    assert fit.converged
    assert len(fit.history) < 12
    own = fit.coefficients
    assert np.max(np.abs(own.mean[1:3] - [effect, slope]) / own.sd[1:3]) < 0.05


@pytest.mark.parametrize("name", ["cost", "age"])
def test_a_column_without_variance_is_refused_with_a_remedy(name):
    columns = costs() | {name: np.full(300, 7.5)}
    with pytest.raises(CavityError, match=f"'{name}' has .* the same value in all rows.*fixed scaling"):
        cavity.regression("cost ~ rx + age", split(columns, 3), family="linear", levels=LEVELS)


@thorough
def test_identifiers_and_collinear_columns():
    columns = costs(4)
    columns |= {"id": 4_000_000_000 + np.arange(300), "months": 12 * columns["age"]}
    fit = cavity.regression("cost ~ rx + age + months + id", split(columns, 3), family="linear", levels=LEVELS)
    x = np.column_stack([columns["rx"] == "drug", columns["age"], columns["id"]]).astype(float)
    (_, effect, slope, per_id), errors = least_squares(x, columns["cost"])
    found = dict(zip(fit.coefficients.names, fit.coefficients.mean, strict=True))
    assert abs(found["rx[T.drug]"] - effect) < 0.05 * errors[0]
    assert abs(found["age"] + 12 * found["months"] - slope) < 0.05 * errors[1]
    assert abs(found["id"] - per_id) < 0.05 * errors[2]
    assert np.isfinite([estimate.sd for estimate in fit.summary()]).all()


@thorough
def test_group_means_without_an_intercept():
    columns = costs(5)
    fit = cavity.regression("cost ~ 0 + rx", split(columns, 3), family="linear", levels=LEVELS)
    for level in LEVELS["rx"]:
        group = columns["cost"][columns["rx"] == level]
        estimate = fit.summary()[f"rx[{level}]"]
        assert abs(estimate.mean - group.mean()) < 0.05 * estimate.sd


@pytest.mark.parametrize(
    ("formula", "x"),
    [
        ("cost ~ age:id", lambda c: c["age"] * c["id"]),
        ("cost ~ log(age)", lambda c: np.log(c["age"])),
    ],
)
@thorough
def test_scaling_does_not_change_the_model(formula, x):
    """Centring would change the model of an interaction without main effects; a logarithm needs the raw column."""
    columns = costs(6)
    columns["id"] = 2019 + np.arange(300) / 300
    fit = cavity.regression(formula, split(columns, 3), family="linear")
    (intercept, slope), (error,) = least_squares(x(columns)[:, None], columns["cost"])
    assert abs(fit.coefficients.mean[1] - slope) < 0.05 * error
    assert abs(fit.coefficients.mean[0] - intercept) < 0.05 * fit.coefficients.sd[0]


@thorough
@pytest.mark.parametrize(("family", "rate"), [("poisson", 12_000.0), ("poisson", 0.01), ("logistic", 0.02)])
def test_counts_and_rates_of_any_size(family, rate):
    rng = np.random.default_rng(7)
    age = rng.normal(61, 12, 4000)
    expected = rate * np.exp(0.03 * (age - 61))
    y = rng.poisson(expected) if family == "poisson" else (rng.random(4000) < expected).astype(int)
    fit = cavity.regression("y ~ age", split({"y": y, "age": age}, 3), family=family)
    x = np.column_stack([np.ones(4000), (age - age.mean()) / age.std()])
    theta = np.array([np.log(y.mean()), 0.0])
    for _ in range(50):  # Newton's method for the maximum likelihood
        f = x @ theta
        mean = np.exp(f) if family == "poisson" else 1 / (1 + np.exp(-f))
        weight = mean if family == "poisson" else mean * (1 - mean)
        theta = theta + np.linalg.solve((x * weight[:, None]).T @ x, x.T @ (y - mean))
    estimate = fit.summary()["age"]
    assert abs(estimate.mean - theta[1] / age.std()) < 0.05 * estimate.sd


def test_a_fit_reports_its_units():
    fit = cavity.regression("cost ~ rx + age", split(costs(), 3), family="linear", levels=LEVELS)
    assert "coefficients are per unit of the data; the prior and fit.posterior are of scaled columns" in fit.units
    assert fit.units in str(fit.summary())
    assert fit.coefficients.names == tuple(estimate.name for estimate in fit.summary())
    np.testing.assert_array_equal(fit.coefficients.mean, [estimate.mean for estimate in fit.summary()])
    np.testing.assert_array_equal(fit.coefficients.sd, [estimate.sd for estimate in fit.summary()])
    np.testing.assert_allclose(fit.coefficients.mean, fit.reported.mean, rtol=1e-5)
    plain = cavity.models.linear_regression(1, noise_sd=1.0)
    x = np.arange(5.0)[:, None]
    assert "as they were given" in cavity.run(cavity.PVI(plain), {"a": (x, x[:, 0])}).units


@thorough
def test_a_shifted_square_is_in_the_units_of_the_data():
    """The square of a scaled age would be nearly collinear with the age, and its prior would remove the curvature."""
    rng = np.random.default_rng(0)
    age = rng.normal(50, 10, 600)
    y = 120 + 0.5 * (age - 50) + 0.05 * (age - 50) ** 2 + 5 * rng.normal(size=600)
    fit = cavity.regression("y ~ age + I((age - 50) ** 2)", {"leeds": {"y": y, "age": age}}, family="linear")
    design = np.column_stack([np.ones(600), age, (age - 50) ** 2])
    least_squares = np.linalg.lstsq(design, y, rcond=None)[0]
    estimate = fit.summary()["I((age - 50) ** 2)"]
    assert abs(estimate.mean - least_squares[2]) < 0.05 * estimate.sd


@thorough
def test_the_sd_of_a_prediction_far_from_zero():
    """Outcomes are near 12,000 in single precision, so the sd must not be a difference of two large squares."""
    rng = np.random.default_rng(1)
    g = rng.choice(["u", "v"], 600)
    y = 12_000 + 3 * (g == "v") + 3 * rng.normal(size=600)
    fit = cavity.regression("y ~ 0 + g", {"leeds": {"y": y, "g": g}}, family="linear")
    expected = [np.std(y[g == level]) / np.sqrt(np.sum(g == level)) for level in "uv"]
    np.testing.assert_allclose(fit.predict({"g": ["u", "v"]}).sd, expected, rtol=0.05)
    assert np.exp(fit.summary()["log_noise_sd"].mean) == pytest.approx(3, rel=0.1)
    counts = rng.poisson(np.exp(11.0), 2000)
    fit = cavity.regression("k ~ 1", {"leeds": {"k": counts}}, family="poisson")
    sd = float(np.asarray(fit.predict({"k": [1]}).sd)[0])
    assert sd == pytest.approx(np.sqrt(counts.mean() / 2000), rel=0.05)


@thorough
def test_very_small_noise_is_not_reported_as_converged():
    rng = np.random.default_rng(2)
    x = rng.normal(size=400)
    y = 1000 * x + 0.05 * rng.normal(size=400)
    fit = cavity.regression("y ~ x", {"leeds": {"y": y, "x": x}}, family="linear")
    assert not fit.converged
    assert "give `noise_sd`" in str(fit.summary())
