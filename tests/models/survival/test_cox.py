"""Cox's partial likelihood: against a loop over events, and under weights, padding, ties, late entry and extremes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity.core import Data
from cavity.errors import CavityError, DataError
from cavity.models import cox_regression
from cavity.models.survival.cox import log_partial_likelihood
from cavity.models.survival.scans import maximum_from_the_end, recurrence_from_the_end
from cavity.models.survival.ties import TIES, log_denominator
from cavity.solvers import NaturalGradientFromMode
from tests.contracts.model import NUM_ROWS, check_capabilities, check_model
from tests.marks import thorough
from tests.models.survival import by_hand

NUM = 24
value = jax.jit(log_partial_likelihood, static_argnames="ties")
slope = jax.jit(jax.grad(log_partial_likelihood), static_argnames="ties")


@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("unit", [0.001, 12_000.0])
def test_it_is_the_loop_over_events(ties, columns, unit):
    for seed, num_times in enumerate([1, 3, 1000]):
        rng = np.random.default_rng(seed)
        y = by_hand.survival_rows(rng, NUM, columns=columns, num_times=num_times, unit=unit)
        eta, weight = 2.0 * rng.normal(size=NUM), rng.integers(0, 4, NUM).astype(float)
        expected = by_hand.log_partial_likelihood(eta, y, weight, ties)
        np.testing.assert_allclose(value(eta, y, weight, ties=ties), expected, rtol=1e-12, atol=1e-12)
        steps = 1e-5 * np.eye(NUM)
        up, down = ([by_hand.log_partial_likelihood(eta + s * e, y, weight, ties) for e in steps] for s in (1, -1))
        differences = (np.array(up) - np.array(down)) / 2e-5
        np.testing.assert_allclose(slope(eta, y, weight, ties=ties), differences, atol=1e-7)


def test_rows_enter_late():
    y = np.array([[0.0, 2.0, 1.0], [1.0, 3.0, 1.0], [2.0, 4.0, 0.0], [3.0, 5.0, 1.0]])  # at risk: {1, 2}, {2, 3}, {4}
    eta = np.array([0.1, 0.5, -0.3, 2.0])
    expected = 0.1 - np.logaddexp(0.1, 0.5) + 0.5 - np.logaddexp(0.5, -0.3)
    np.testing.assert_allclose(log_partial_likelihood(jnp.array(eta), y, np.ones(4), "efron"), expected, rtol=1e-13)


def test_no_risk_set_vanishes_however_far_predictors_are_apart():
    y = np.column_stack([[1.0, 2.0, 3.0, 4.0], np.ones(4)])
    eta = np.array([0.0, 1e4, -1e4, 5.0])
    for ties in TIES:
        assert float(value(eta, y, np.ones(4), ties=ties)) == pytest.approx(-20_005.0, rel=1e-14)
        np.testing.assert_allclose(slope(eta, y, np.ones(4), ties=ties), [1.0, -1.0, 1.0, -1.0], atol=1e-12)


@pytest.mark.parametrize("ties", TIES)
def test_without_events_or_rows_that_count_it_is_flat(ties):
    y = np.column_stack([np.arange(1.0, 5.0), np.zeros(4)])
    died = np.column_stack([np.arange(1.0, 5.0), np.ones(4)])
    for outcomes, weight in [(y, np.ones(4)), (died, np.zeros(4))]:
        eta = np.array([0.3, 800.0, -800.0, 0.0])
        assert float(value(eta, outcomes, weight, ties=ties)) == 0.0
        np.testing.assert_array_equal(slope(eta, outcomes, weight, ties=ties), np.zeros(4))


@pytest.mark.parametrize("others", [0.0, 1e-9, 0.3, 40.0, 1e9, 1e40])
def test_the_sum_of_efron_has_a_closed_form(others):
    for count, events in [(1, 0.7), (2, 1.0), (7, 3.0), (500, 1e-3), (20_000, 1e4)]:
        terms = others + events - np.arange(count) / count * events
        found = log_denominator(*map(jnp.array, (others, events, float(count))), "efron")
        assert float(found) == pytest.approx(np.log(terms).sum(), rel=1e-12, abs=1e-12)


def test_scans_from_the_end():
    for size in (1, 7, 50):
        rng = np.random.default_rng(size)
        ratio, added, expected, total = rng.uniform(size=size), rng.normal(size=size), np.zeros(size), 0.0
        for k in reversed(range(size)):
            total = expected[k] = ratio[k] * total + added[k]
        np.testing.assert_allclose(recurrence_from_the_end(jnp.array(ratio), jnp.array(added)), expected, rtol=1e-12)
        largest = np.maximum.accumulate(added[::-1])[::-1]
        np.testing.assert_array_equal(maximum_from_the_end(jnp.array(added)), largest)


def rows(seed, num_rows, *, columns=2, events=0.6):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num_rows, 2)), by_hand.survival_rows(rng, num_rows, columns=columns, events=events)


@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("ties", TIES)
def test_contract(ties, columns):
    batch = rows(3, NUM_ROWS, columns=columns)
    model = cox_regression(["a", "b"], ties=ties)
    data = Data(batch, np.ones(NUM_ROWS), np.asarray(NUM_ROWS))
    check_model(model, jnp.array([0.4, -0.3]), data)
    checked = check_capabilities(model, jnp.array([0.4, -0.3]), data, batch[0])
    assert checked == {"PredictiveModel", "ReportedModel"}


def test_a_prediction_is_the_hazard_relative_to_that_at_zero():
    model = cox_regression(1, prior_scale=0.5)
    found = model.predict(model.prior, np.array([[0.0], [2.0]]), key=jax.random.key(0))
    np.testing.assert_allclose(found.mean, [1.0, np.exp(0.5)], rtol=1e-10)  # E exp(2 theta), theta ~ N(0, 1/4)


@thorough
def test_the_default_solver_ends_within_six_rounds_and_a_client_without_events_adds_nothing():
    clients = {name: rows(seed, size) for seed, (name, size) in enumerate({"a": 12, "b": 40, "c": 25}.items())}
    algorithm = cavity.PVI(cox_regression(["a", "b"]))
    assert isinstance(algorithm.solver, NaturalGradientFromMode)
    fit = cavity.run(algorithm, clients, tolerance=1e-8)
    assert len(fit.history) <= 6
    more = cavity.run(algorithm, clients | {"d": rows(9, 30, events=0.0)}, tolerance=1e-8)
    np.testing.assert_allclose(more.posterior.mean, fit.posterior.mean, atol=1e-6)
    np.testing.assert_allclose(more.posterior.precision, fit.posterior.precision, rtol=1e-6)


@pytest.mark.parametrize(
    ("y", "remedy"),
    [
        ([[1.0], [2.0]], "y must have 2 numbers per row"),
        ([[1.0, 1.0], [2.0, 2.0]], "coded 1 and 2.*subtract 1 if 2 means the event"),
        ([[1.0, 0.0], [2.0, 3.0]], "1 value other than 0 and 1"),
        ([[1.0, 0.0], [0.0, 1.0]], "1 value of the time is zero or negative; survival times are positive: correct"),
        ([[-1.0, 0.0], [0.0, 1.0]], "2 values of the time are zero or negative"),
        ([[-1.0, 2.0, 0.0], [0.0, 1.0, 1.0]], "1 value of the start is negative; count time from 0"),
        ([[2.0, 2.0, 0.0], [3.0, 1.0, 1.0]], "2 rows have a stop that is not after the start; correct"),
        ([[1.0, 0.0], [np.nan, 1.0]], "column 1 of the outcome has 1 missing"),
    ],
)
def test_outcomes_that_are_none_are_refused_with_the_remedy(y, remedy):
    with pytest.raises(DataError, match=remedy):
        cox_regression(1).prepare((np.ones((2, 1)), np.array(y)))


def test_arguments_are_checked():
    with pytest.raises(CavityError, match="unknown ties 'exact'; choose one of: efron, breslow"):
        cox_regression(1, ties="exact")
    with pytest.raises(CavityError, match="no columns"):
        cox_regression(0)
