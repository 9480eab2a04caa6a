"""Fits of survival models: against R on data that are in R, against NUTS, and against other ways to the same model."""

import csv
import gzip

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS
from scipy.optimize import minimize

import cavity
from cavity.core.client_data import prepare_clients
from cavity.study import as_table, parse_study
from cavity.study.run import run_study
from cavity_experiments import sources
from tests.marks import exhaustive, needs_data, thorough
from tests.study.test_survival import CLIENTS, PIECEWISE, STUDY, patients

pytestmark = pytest.mark.usefixtures("quick_to_compile")

LEVELS = {"rx": ["placebo", "low", "high"]}


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


SETTINGS = {
    'family = "weibull"\n': {"family": "weibull"},
    'family = "lognormal"\n': {"family": "lognormal"},
    'family = "exponential"\n': {"family": "exponential"},
    PIECEWISE: {"family": "piecewise-exponential", "cuts": [100, 300]},
    PIECEWISE + 'baseline = "client"\n': {
        "family": "piecewise-exponential", "cuts": [100, 300], "baseline": "client"
    },
}  # fmt: skip


@thorough
@pytest.mark.parametrize("text", SETTINGS)
def test_every_family_is_the_same_in_a_study(text):
    study = parse_study(STUDY.replace('family = "cox"\n', text))
    fit = run_study(study, {name: as_table(columns) for name, columns in CLIENTS.items()})
    same = cavity.regression("Surv(time, died) ~ age + rx", CLIENTS, levels=LEVELS, tolerance=1e-10, **SETTINGS[text])
    assert fit.algorithm.model.parameter_names == same.algorithm.model.parameter_names
    error = np.asarray(fit.coefficients.mean) - np.asarray(same.coefficients.mean)
    np.testing.assert_allclose(error / np.sqrt(np.diag(same.coefficients.covariance)), 0.0, atol=1e-5)
    predicted = fit.predict({"age": [60.0, 70.0], "rx": ["low", "high"]})
    assert (np.asarray(predicted.mean) > 0).all()


@thorough
def test_times_in_other_units_have_the_same_hazard_ratios():
    columns = patients(3, 12)
    fits = []
    for unit in (1.0, 1e-5, 400.0):
        scaled = {"leeds": columns | {"time": unit * columns["time"]}}
        fits.append(cavity.regression("Surv(time, died) ~ age", scaled, family="cox"))
    np.testing.assert_allclose(fits[1].posterior.mean, fits[0].posterior.mean, rtol=1e-9)
    np.testing.assert_allclose(fits[2].posterior.precision, fits[0].posterior.precision, rtol=1e-9)


def awkward(unit):
    """Ties everywhere: twelve rows, no events at the second client, equal times at the third; two columns alike."""
    rng, frames = np.random.default_rng(5), {}
    for client, size in {"leeds": 12, "york": 20, "hull": 15}.items():
        age = rng.normal(60, 10, size)
        time = unit * np.ceil(3 * rng.weibull(1.4, size) * np.exp(-0.03 * (age - 60))) / 3
        frames[client] = {"time": time, "died": (rng.random(size) < 0.8) * 1, "age": age, "months": 12 * age + 3}
    frames["york"]["died"] = np.zeros(20)
    frames["hull"]["time"] = np.full(15, unit)
    return frames


ROW_FAMILIES = {
    "weibull": {},
    "lognormal": {},
    "exponential": {},
    "piecewise-exponential": {"cuts": [0.5, 1.2]},
}


@thorough
@pytest.mark.parametrize("unit", [12_000.0, 0.001])
@pytest.mark.parametrize("family", ROW_FAMILIES)
def test_awkward_data_over_clients_are_as_if_pooled(family, unit):
    settings = {name: [unit * cut for cut in cuts] for name, cuts in ROW_FAMILIES[family].items()}
    frames, formula = awkward(unit), "Surv(time, died) ~ age + months"
    fit = cavity.regression(formula, frames, family=family, tolerance=1e-9, **settings)
    pooled = {name: np.concatenate([own[name] for own in frames.values()]) for name in frames["leeds"]}
    same = cavity.regression(formula, {"all": pooled}, family=family, tolerance=1e-9, **settings)
    assert fit.converged
    assert not fit.history[-1]["unconverged"]
    assert cavity.kl(fit.posterior, same.posterior) < 1e-6
    # both columns are one over a number: only the sum of their effects is known
    assert np.std(same.posterior.mean[1:3]) < 1e-4


@thorough
@pytest.mark.parametrize("settings", [{"family": "cox"}, {"family": "piecewise-exponential", "baseline": "client"}])
def test_awkward_data_have_hazard_ratios(settings):
    found = []
    for unit in (12_000.0, 0.001):
        cuts = {"cuts": [0.5 * unit, 1.2 * unit]} if settings["family"] != "cox" else {}
        fit = cavity.regression("Surv(time, died) ~ age + months", awkward(unit), tolerance=1e-9, **settings, **cuts)
        assert fit.converged
        assert len(fit.history) <= 6
        found.append(np.asarray(fit.posterior.mean))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


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


# intercept, age, sex and log scale
SURVREG = (
    [6.65693820, -0.01225703, 0.38208514, -0.28229534],
    [0.44752368, 0.00695747, 0.12747684, 0.06188327],
)
WIDE = {"prior_scale": 1e3, "intercept_scale": 1e3, "prior_scales": {"log_scale_scale": 1e3}}


@needs_data
@thorough
def test_the_mode_under_a_wide_prior_is_that_of_survreg():
    frames = lung()
    fit = cavity.regression("Surv(time, status) ~ age + sex", frames, family="weibull", **WIDE)
    assert len(fit.history) <= 6
    (estimate, error), (expected, se) = mode(fit, frames), SURVREG
    np.testing.assert_allclose((estimate - np.array(expected)) / se, 0.0, atol=1e-4)
    np.testing.assert_allclose(error, se, rtol=1e-4)


def draws(fit, frames, num_samples=3000):
    """Draws of the pooled posterior of a fit's model by NUTS, from the fit's own mean."""
    model = fit.algorithm.model
    data = jax.tree.map(jnp.asarray, list(prepare_clients(model, frames).values()))

    def potential(theta):
        return -model.prior.log_prob(theta) - sum(model.log_prob(theta, rows) for rows in data)

    chain = MCMC(NUTS(potential_fn=potential), num_warmup=500, num_samples=num_samples, progress_bar=False)
    chain.run(jax.random.key(0), init_params=jnp.asarray(fit.posterior.mean))
    return np.asarray(chain.get_samples())


@exhaustive
@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"family": "cox", "prior_scale": 1e3},
        {"family": "weibull", **WIDE},
        {"family": "lognormal"},
        {"family": "exponential"},
        {"family": "piecewise-exponential", "cuts": [100, 300, 500]},
        {"family": "piecewise-exponential", "cuts": [100, 300, 500], "baseline": "client"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_means_and_sds_are_those_of_nuts(settings):
    frames = lung()
    fit = cavity.regression("Surv(time, status) ~ age + sex", frames, **settings)
    assert len(fit.history) <= 6
    found = draws(fit, frames)
    mean, sd = np.asarray(fit.posterior.mean), np.sqrt(np.diag(fit.posterior.covariance))
    np.testing.assert_allclose((mean - found.mean(axis=0)) / found.std(axis=0), 0.0, atol=0.05)
    np.testing.assert_allclose(sd / found.std(axis=0), 1.0, atol=0.04)
