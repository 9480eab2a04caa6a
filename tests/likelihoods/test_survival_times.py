"""Likelihoods of survival times: against scipy's distributions and numerical integrals, in the tails too."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import log_ndtr

from cavity.likelihoods import ExponentialTime, LogNormalTime, PiecewiseExponentialTime, WeibullTime
from cavity.likelihoods.failure_time import log_normal_tail
from cavity.likelihoods.piecewise_exponential import cuts_problem, episodes, interval_names
from tests.contracts.likelihood import check_elementwise, check_expected_mean, check_rejects
from tests.marks import thorough

CUTS = (0.5, 2.0, 3.0)
# location and log scale (or the logs of the hazards of the four intervals)
FAILURE = jnp.array([[0.3, -0.4], [9.4, 0.5], [-6.9, 0.1], [0.0, -2.0]])
HAZARD = jnp.array([[0.3, -0.4, 0.1, 1.0], [-1.0, 0.5, 0.5, -0.5], [0.9, 0.1, 0.0, 0.0], [0.0, -2.0, 1.0, 3.0]])
TIMES = jnp.array([1.7, 12_000.0, 0.001, 0.9])
SHORT = jnp.array([1.7, 0.2, 4.0, 2.0])


def distribution(likelihood, f):
    """The same in scipy, or the cumulative hazard at a time."""
    f = [float(each) for each in f]
    if isinstance(likelihood, WeibullTime):
        return stats.weibull_min(math.exp(-f[1]), scale=math.exp(f[0]))
    if isinstance(likelihood, LogNormalTime):
        return stats.lognorm(math.exp(f[1]), scale=math.exp(f[0]))
    return stats.expon(scale=math.exp(f[0]))


CASES = [(WeibullTime(), FAILURE, TIMES), (LogNormalTime(), FAILURE, TIMES), (ExponentialTime(), FAILURE[:, :1], TIMES)]


@pytest.mark.parametrize(("likelihood", "f", "times"), CASES, ids=lambda case: type(case).__name__)
def test_events_have_densities_and_censored_rows_tails(likelihood, f, times):
    for i, time in enumerate(times):
        reference = distribution(likelihood, f[i])
        event, censored = (float(likelihood.log_prob(f[i], jnp.array([time, status]))) for status in (1.0, 0.0))
        assert event == pytest.approx(reference.logpdf(time), rel=1e-10)
        assert censored == pytest.approx(reference.logsf(time), rel=1e-10)
        late = float(likelihood.log_prob(f[i], jnp.array([0.4 * time, time, 1.0])))
        assert late == pytest.approx(reference.logpdf(time) - reference.logsf(0.4 * time), rel=1e-9)
        early = float(likelihood.log_prob(f[i], jnp.array([0.0, time, 1.0])))
        assert early == pytest.approx(event, rel=1e-14)
        assert float(likelihood.mean(f[i])) == pytest.approx(reference.mean(), rel=1e-9)


@pytest.mark.parametrize("z", [-300.0, -37.0, -5.0, 0.0, 1e-9, 3.0, 4.999, 5.001, 20.0, 38.0, 1e3, 1e8])
def test_the_normal_tail_is_exact_however_far(z):
    value, slope = jax.value_and_grad(log_normal_tail)(z)
    assert float(value) == pytest.approx(log_ndtr(-z), rel=1e-13)
    expected = -math.exp(-0.5 * z * z - 0.5 * math.log(2 * math.pi) - log_ndtr(-z)) if z < 1e3 else -z
    assert float(slope) == pytest.approx(expected, rel=1e-10 if z < 1e3 else 1e-5, abs=1e-300)


@thorough
@pytest.mark.parametrize("log_time", [-700.0, -20.0, 3.0, 6.5])
def test_censored_rows_in_extreme_tails(log_time):
    f, y = jnp.zeros(2), jnp.array([math.exp(log_time), 0.0])
    assert float(WeibullTime().log_prob(f, y)) == pytest.approx(-math.exp(log_time), rel=1e-13)
    assert float(LogNormalTime().log_prob(f, y)) == pytest.approx(log_ndtr(-log_time), rel=1e-12)
    for likelihood in (WeibullTime(), LogNormalTime()):
        assert np.isfinite(jax.grad(likelihood.log_prob)(f, y)).all()


def test_a_weibull_time_continues_smoothly_where_it_is_impossible():
    likelihood, f = WeibullTime(), jnp.zeros(2)

    def log_prob(z):
        return likelihood.log_prob(f, jnp.stack([jnp.exp(z), jnp.zeros_like(z)]))

    for order in range(3):
        below, above = (float(log_prob(jnp.asarray(z))) for z in (20.0 - 1e-7, 20.0 + 1e-7))
        assert above == pytest.approx(below, rel=1e-6), order
        log_prob = jax.grad(log_prob)
    far = jax.jit(jax.value_and_grad(likelihood.log_prob))(jnp.array([0.0, -10.0]), jnp.array([1e3, 1.0]))
    assert all(np.isfinite(part).all() for part in far)


def hazards(f):
    return np.exp(np.array([f[0], *(f[0] + f[1:])], float))


def cumulative(f, time):
    ends = np.array([*CUTS, np.inf])
    starts = np.array([0.0, *CUTS])
    return float(hazards(f) @ (np.clip(time, starts, ends) - starts))


def test_piecewise_exponential_times():
    likelihood = PiecewiseExponentialTime(cuts=CUTS)
    for f, time in zip(HAZARD, SHORT, strict=True):
        interval = int(np.searchsorted(CUTS, time, side="left"))  # a cut is in the interval before it
        event = np.log(hazards(f)[interval]) - cumulative(f, time)
        assert float(likelihood.log_prob(f, jnp.array([time, 1.0]))) == pytest.approx(event, rel=1e-12)
        assert float(likelihood.log_prob(f, jnp.array([time, 0.0]))) == pytest.approx(-cumulative(f, time), rel=1e-12)
        late = event + cumulative(f, 0.3 * time)
        assert float(likelihood.log_prob(f, jnp.array([0.3 * time, time, 1.0]))) == pytest.approx(late, rel=1e-12)
        parts = [(low, high) for low, high in zip((0.0, *CUTS), (*CUTS, 200.0), strict=True)]
        expected = sum(quad(lambda t, f=f: math.exp(-cumulative(f, t)), low, high)[0] for low, high in parts)
        assert float(likelihood.mean(f)) == pytest.approx(expected, rel=1e-8)


def test_one_interval_after_the_other_is_the_whole_time():
    y = jnp.array([[0.1, 2.5, 1.0]])
    parts = episodes(y, CUTS)
    np.testing.assert_allclose(parts.exposure, [[0.4, 1.5, 0.5, 0.0]], atol=1e-15)
    np.testing.assert_array_equal(parts.events, [[0.0, 0.0, 1.0, 0.0]])
    np.testing.assert_array_equal(episodes(jnp.array([[2.0, 1.0]]), CUTS).events, [[0.0, 1.0, 0.0, 0.0]])
    assert interval_names(CUTS) == ("(0, 0.5]", "(0.5, 2]", "(2, 3]", "(3, inf)")


@pytest.mark.parametrize(
    ("likelihood", "f", "times"),
    [*CASES, (PiecewiseExponentialTime(cuts=CUTS), HAZARD, SHORT)],
    ids=lambda case: type(case).__name__,
)
def test_contract(likelihood, f, times):
    status = jnp.array([1.0, 0.0, 1.0, 1.0])
    check_elementwise(likelihood, f, jnp.stack([times, status], axis=1))
    check_elementwise(likelihood, f, jnp.stack([jnp.array([0.0, 0.1, 0.5, 0.9]) * times, times, status], axis=1))
    good, bad = np.array([[1.0, 1.0]]), np.array([[1.0, 1.0], [2.0, 2.0]])
    check_rejects(likelihood, good, bad, "subtract 1 if 2 means the event")


@pytest.mark.parametrize(
    ("likelihood", "mean"), [(ExponentialTime(), FAILURE[:1, :1]), (PiecewiseExponentialTime(cuts=CUTS), HAZARD[:1])]
)
def test_expected_log_likelihoods_are_those_of_many_draws(likelihood, mean):
    size = mean.shape[1]
    root = 0.3 * np.eye(size) + np.tril(np.full((size, size), 0.1), -1)
    covariance, y = jnp.array(root @ root.T)[None], jnp.array([[0.2, 1.7, 1.0]])
    found = likelihood.expected_log_prob(mean, covariance, y)
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    grid = np.stack(np.meshgrid(*[nodes] * size), -1).reshape(-1, size)
    weight = np.prod(np.stack(np.meshgrid(*[weights] * size), -1).reshape(-1, size), axis=1) / weights.sum() ** size
    expected = weight @ np.asarray(likelihood.log_prob(mean + grid @ root.T, y))
    np.testing.assert_allclose(found, [expected], rtol=1e-9)


def test_the_expected_mean_of_an_exponential_time():
    check_expected_mean(ExponentialTime(), jnp.array([0.3]), jnp.array([0.2]), [math.exp(0.4)], 1e-12)


def test_a_floor_keeps_the_scale_from_zero():
    y = jnp.array([[5.0, 1.0]] * 3)
    for cls in (WeibullTime, LogNormalTime):
        small, smaller = (jnp.array([[math.log(5.0), s]] * 3) for s in (-20.0, -40.0))
        assert float(cls(floor=1e-3).log_prob(smaller, y).sum()) == pytest.approx(
            float(cls(floor=1e-3).log_prob(small, y).sum())
        )
        assert float(cls().log_prob(smaller, y).sum()) > float(cls().log_prob(small, y).sum()) + 50


def test_cut_points_are_checked():
    assert cuts_problem((1.0, 2.0)) is None
    assert "needs agreed cut points, such as cuts = [90, 365]" in cuts_problem(())
    for cuts in [(0.0, 1.0), (2.0, 1.0), (1.0, 1.0), (1.0, math.inf), (math.nan,)]:
        assert "cut points are positive and increase" in cuts_problem(cuts)
