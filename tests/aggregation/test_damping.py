"""Damping: the rules by themselves, and what the ledger makes of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cavity
from cavity import ledger
from cavity.aggregation import Adaptive, Fixed, Probing
from cavity.core.messages import ClientUpdate, Reply, Report
from cavity.distributions import DiagonalGaussian
from cavity.errors import CavityError
from cavity.models import logistic_regression
from cavity.schedules import Sequential, Synchronous
from tests import scenarios
from tests.marks import thorough


def exponents(damping, rounds, *, one_at_a_time=False):
    """The exponent of every reply, for these gaps of each round."""
    state, chosen, last = damping.init(), [], np.full(len(rounds[0]), np.inf)
    for gaps in rounds:
        places = range(len(last))
        for batch in [[i] for i in places] if one_at_a_time else [list(places)]:
            last[batch] = np.array(gaps)[batch]
            some, state = damping.choose(state, last, np.zeros(len(batch), int))
            chosen += list(np.asarray(some))
    return chosen


@settings(max_examples=20, deadline=None)
@given(rho=st.floats(0.01, 1.0), gaps=st.lists(st.floats(0, 1e6), min_size=3, max_size=3))
def test_fixed_is_always_the_same(rho, gaps):
    assert exponents(Fixed(rho), [gaps] * 4) == [rho] * 12
    assert Fixed(rho).backed_off(None) is None


@pytest.mark.parametrize("rho", [0.0, -0.5, 1.5, float("nan")])
def test_fixed_lies_between_zero_and_one(rho):
    with pytest.raises(CavityError, match=r"\(0, 1\]"):
        Fixed(rho)


def test_adaptive_starts_at_one():
    assert exponents(Adaptive(), [[9.0, 1.0]]) == [1.0, 1.0]
    assert exponents(Adaptive(), [[9.0, 1.0], [4.0, 0.5], [1.0, 0.1]]) == [1.0] * 6


def test_adaptive_halves_when_the_total_of_a_round_grows_and_recovers():
    """Round totals 2, 3, 4, 1, 1: grown twice, better, equal."""
    rounds = [[1.0, 1.0], [2.0, 1.0], [2.0, 2.0], [0.5, 0.5], [0.5, 0.5]]
    assert exponents(Adaptive(), rounds)[::2] == [1.0, 0.5, 0.25, 0.3125, 0.390625]


def test_adaptive_never_exceeds_one_nor_falls_below_its_smallest():
    growing = [[2.0**i] for i in range(12)]
    falling = [[2.0**-i] for i in range(20)]
    assert min(exponents(Adaptive(), growing)) == Adaptive().smallest
    assert exponents(Adaptive(smallest=0.3), growing)[-1] == 0.3
    # 0.05 * 1.25^14 > 1
    assert exponents(Adaptive(), growing + falling)[-1] == 1.0


def test_adaptive_compares_rounds_and_not_turns():
    """Within a pass the gaps of clients differ; only the totals of passes show a trend."""
    alternating = [[0.1, 5.0], [0.09, 4.9], [0.08, 4.8]]
    assert exponents(Adaptive(), alternating, one_at_a_time=True) == [1.0] * 6
    growing = [[0.1, 5.0], [5.0, 5.0]]
    # the second total exceeds the first when its last reply is in
    assert exponents(Adaptive(), growing, one_at_a_time=True) == [1.0, 1.0, 1.0, 0.5]


def test_adaptive_backs_off_and_recovers():
    damping = Adaptive()
    state = damping.backed_off(damping.backed_off(damping.init()))
    some, state = damping.choose(state, np.array([1.0]), np.zeros(1, int))
    np.testing.assert_allclose(some, [0.25 * 1.25])
    # an exponent that impropriety has reduced below `smallest` stays there while gaps grow
    deep = damping.init()
    for _ in range(6):
        deep = damping.backed_off(deep)
    some, deep = damping.choose(deep, np.array([1.0]), np.zeros(1, int))
    some, deep = damping.choose(deep, np.array([2.0]), np.zeros(1, int))
    np.testing.assert_allclose(some, [1.25 / 64])


def reply(server, name, delta, gap=1.0):
    report = Report(np.asarray(gap), np.asarray(0.0), np.asarray(1), np.asarray(True))
    return Reply(name, server.version, server.clients[name].sequence, ClientUpdate(delta, report))


def opened(damping, names=("a", "b")):
    """A ledger over N(0, 1), waiting for all clients."""
    prior = DiagonalGaussian(np.zeros(1), np.ones(1))
    algorithm = cavity.PVI(logistic_regression(1, prior=prior, intercept=False), damping=damping)
    server, _ = ledger.dispatch(algorithm, ledger.open_ledger(algorithm, names), names)
    return algorithm, server


def factor(precision_mean, precision):
    return DiagonalGaussian(np.array([precision_mean]), np.array([precision]))


def test_exponent_is_a_power_of_each_delta():
    algorithm, server = opened(Fixed(0.25))
    server, outcome = ledger.receive(
        algorithm, server, [reply(server, "a", factor(4.0, 8.0)), reply(server, "b", factor(-2.0, 4.0))]
    )
    assert outcome.accepted == {"a": 0.25, "b": 0.25}
    np.testing.assert_allclose(server.posterior.precision, 1 + 0.25 * (8 + 4))
    np.testing.assert_allclose(server.posterior.precision_mean, 0.25 * (4 - 2))
    np.testing.assert_allclose(server.entries["a"].precision, 2.0)


@pytest.mark.parametrize("damping", [Fixed(1.0), Adaptive()], ids=["fixed", "adaptive"])
def test_ledger_halves_until_the_product_is_proper(damping):
    """1 - 3 and 1 - 3 / 2 are not positive, 1 - 3 / 4 is."""
    algorithm, server = opened(damping)
    server, outcome = ledger.receive(
        algorithm, server, [reply(server, "a", factor(0.0, -2.0)), reply(server, "b", factor(0.0, -1.0))]
    )
    assert outcome.accepted == {"a": 0.25, "b": 0.25}
    np.testing.assert_allclose(server.posterior.precision, 0.25)
    assert outcome.refused == []
    # an adaptive exponent continues from there, a fixed one does not change
    server, _ = ledger.dispatch(algorithm, server, ["a", "b"])
    server, outcome = ledger.receive(
        algorithm, server, [reply(server, "a", factor(0.0, 1.0), 0.1), reply(server, "b", factor(0.0, 1.0), 0.1)]
    )
    expected = 0.25 * 1.25 if isinstance(damping, Adaptive) else 1.0
    assert outcome.accepted == {"a": expected, "b": expected}


def test_a_product_that_no_exponent_saves_is_refused():
    """By itself: what others ask for at the same time is done."""
    algorithm, server = opened(Fixed(1.0))
    bad = [reply(server, "a", factor(0.0, -1e30)), reply(server, "b", factor(0.0, 1.0))]
    after, outcome = ledger.receive(algorithm, server, bad)
    assert outcome.accepted == {"b": 1.0}
    assert outcome.refused == [("a", "its update alone makes the posterior improper")]
    np.testing.assert_array_equal(after.posterior.precision, server.posterior.precision + 1.0)
    np.testing.assert_array_equal(after.entries["a"].precision, 0.0)


@thorough
@pytest.mark.parametrize(
    ("schedule", "damping"),
    [(Synchronous(), Fixed(1 / 3)), (Sequential(), Fixed(0.5))],
    ids=["synchronous, 1/M", "sequential, 1/2"],
)
def test_fixed_points_do_not_depend_on_damping(schedule, damping):
    scenario = scenarios.logistic()
    clients = scenarios.clients(scenario.x, scenario.y, scenarios.homogeneous(len(scenario.y), 3))
    algorithm = cavity.PVI(logistic_regression(2, prior_scale=scenario.prior_scale), damping=damping)
    fit = cavity.run(algorithm, clients, schedule=schedule, tolerance=1e-9, rounds=300)
    assert fit.converged
    assert {record["exponent"] for record in fit.history} == {damping.exponent}
    reference = scenarios.gaussian_optimum(scenario, mean_field=False)
    q = fit.posterior
    assert scenarios.gaussian_kl(np.asarray(q.mean), np.asarray(q.covariance), *reference) < 1e-5


def rounds_until(damping, rate, goal=1e-5, most=200):
    """Rounds of an error e <- (1 - x (1 - rate)) e with exponent x; the gap is its square before the round."""
    error, state = 0.4, damping.init()
    for i in range(most):
        if error**2 < goal:
            return i
        exponents_, state = damping.choose(state, np.array([error**2]), np.zeros(1))
        error *= 1 - float(exponents_[0]) * (1 - rate)
    return most


@pytest.mark.parametrize("rate", [-0.97, -0.9, -0.8])
def test_probing_notices_that_rounds_overshoot(rate):
    undamped, probing = rounds_until(Fixed(1.0), rate), rounds_until(Probing(), rate)
    assert undamped > 20
    assert probing <= 12


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8, 0.95])
def test_probing_costs_little_where_rounds_do_not_overshoot(rate):
    assert rounds_until(Probing(), rate) <= rounds_until(Fixed(1.0), rate) + 3


def test_probing_backs_off_where_gaps_grow():
    assert rounds_until(Probing(), -1.3) < 40
    assert rounds_until(Fixed(1.0), -1.3) == 200
