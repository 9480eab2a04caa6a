"""Shared frailty, `(1 | ward)`: marginal likelihoods against integrals by scipy, and what cannot be integrated."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

import cavity
from cavity.core.client_data import as_data
from cavity.errors import StudyError
from cavity.models.mixed.marginal import marginal_model
from cavity.study.columns import Number, Text
from cavity.study.encoding import FormulaEncoding
from cavity.study.families import Cox, Exponential, LogNormal, PiecewiseExponential, Weibull
from cavity.study.models import formula_model
from cavity.study.priors import GroupPriorChoice, PriorChoice
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

CUTS = (2.0, 5.0)
TABLE = {
    "time": [1.0, 3.0, 5.0, 0.4, 7.0, 2.0, 2.5],
    "died": [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0],
    "x": [0.3, -1.0, 0.5, 0.0, 1.2, -0.4, 0.8],
    "ward": ["a", "a", "a", "b", "b", "c", "c"],
}
COLUMNS = (Number(name="time"), Number(name="died"), Number(name="x"), Text(name="ward"))
ENCODING = FormulaEncoding("Surv(time, died) ~ x + (1 | ward)", COLUMNS)


def prior(family):
    extra = tuple(family.extra_scales(outcome_is_scaled=False).items())
    return PriorChoice(2.5, 10.0, extra, group=GroupPriorChoice())


def log_density(family, location, further, time, died):
    """Of one row, by scipy or in closed form; `further` are log scales or log baselines."""
    if isinstance(family, PiecewiseExponential):
        hazard = np.exp(location + np.array([0.0, *further]))
        start, end = np.array([0.0, *CUTS]), np.array([*CUTS, np.inf])
        own = hazard[np.searchsorted(CUTS, time)]
        return died * np.log(own) - hazard @ (np.clip(time, start, end) - start)
    if isinstance(family, LogNormal):
        time_of = stats.lognorm(np.exp(further[0]), scale=np.exp(location))
    else:
        time_of = stats.weibull_min(np.exp(-further[0]) if further else 1.0, scale=np.exp(location))
    return time_of.logpdf(time) if died else time_of.logsf(time)


@thorough
@pytest.mark.parametrize(
    ("family", "further"),
    [(Weibull(), [0.2]), (LogNormal(), [0.2]), (Exponential(), []), (PiecewiseExponential(CUTS), [0.5, -0.3])],
    ids=lambda case: getattr(case, "name", ""),
)
def test_the_marginal_likelihood_is_an_integral_over_each_ward(family, further):
    model = marginal_model(formula_model(family, ENCODING, prior(family), None))
    intercept, slope, log_sd = 0.4, -0.6, -0.2
    theta = jnp.array([intercept, slope, *further, log_sd])
    found = float(model.log_prob(theta, as_data(model, TABLE)))
    expected = 0.0
    for ward in "abc":
        rows = [
            row for row in zip(*(TABLE[name] for name in ("time", "died", "x", "ward")), strict=True) if row[3] == ward
        ]

        def density(effect, rows=rows):
            each = [
                log_density(family, intercept + slope * x + effect, further, time, died) for time, died, x, _ in rows
            ]
            return np.exp(sum(each) + stats.norm(0, np.exp(log_sd)).logpdf(effect))

        expected += np.log(quad(density, -10, 10, points=[0.0], epsabs=1e-14, limit=200)[0])
    assert found == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("family", [Cox(), PiecewiseExponential(CUTS, "client")])
def test_what_cannot_be_integrated_is_refused_with_the_reason(family):
    with pytest.raises(StudyError, match=r"group terms such as `\(1 \| ward\)`.*(risk set|integrated out, which ties)"):
        formula_model(family, ENCODING, prior(family), None)


@thorough
def test_frailty_over_clients():
    rng, frames = np.random.default_rng(0), {}
    for client in ("leeds", "york"):
        ward = np.repeat(np.arange(6), 8)
        x, effect = rng.normal(size=48), 0.6 * rng.normal(size=6)
        frames[client] = {
            "time": rng.exponential(300 * np.exp(-(0.5 * x + effect[ward]))),
            "died": rng.random(48) < 0.8,
            "x": x,
            "ward": [f"{client}-{i}" for i in ward],
        }
    fit = cavity.regression(
        "Surv(time, died) ~ x + (1 | ward)", frames, family="piecewise-exponential", cuts=[100, 300]
    )
    names = ("intercept", "x", "baseline(100, 300]", "baseline(300, inf)", "1|ward_sigma")
    assert fit.algorithm.model.parameter_names == names
    assert len(fit.history) <= 6
    assert abs(fit.summary()["x"].mean - 0.5) < 3 * fit.summary()["x"].sd
