"""The schedules by their contract, and the orders in which they visit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavity.schedules import Sequential, SequentialLargestFirst, SequentialShuffled, Synchronous
from tests.contracts import schedule as contract

NAMES = ("york", "leeds", "hull", "bath")
ALL = [Synchronous(), Sequential(), SequentialShuffled(), SequentialLargestFirst()]
schedule_of = pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: type(schedule).__name__)


@schedule_of
@settings(max_examples=10, deadline=None)
@given(num_clients=st.integers(1, 7))
def test_contract(schedule, num_clients):
    names = tuple(f"client-{i}" for i in range(num_clients))
    contract.check_all_clients_are_visited_in_a_round(schedule, names)
    contract.check_starts_idle_clients_only(schedule, names)
    contract.check_seed_decides(schedule, names)
    assert schedule.visits_per_round(num_clients) == num_clients


def order(plans):
    return [name for plan in plans for name in plan.start]


def test_synchronous_starts_all_at_once_and_waits_for_all():
    for plans in contract.rehearse(Synchronous(), NAMES):
        assert [(plan.start, plan.wait) for plan in plans] == [(NAMES, 4)]


def test_synchronous_leaves_the_busy_alone():
    plan, _ = Synchronous().next(np.random.default_rng(0), None, dict.fromkeys(NAMES, 1.0), NAMES[1:])
    assert (plan.start, plan.wait) == (NAMES[1:], 3)


def test_sequential_keeps_the_given_order():
    for plans in contract.rehearse(Sequential(), NAMES):
        assert order(plans) == list(NAMES)
        assert all(plan.wait == 1 for plan in plans)


def test_shuffled_orders_differ_from_pass_to_pass():
    orders = [tuple(order(plans)) for plans in contract.rehearse(SequentialShuffled(), NAMES, num_rounds=20)]
    assert len(set(orders)) > 5
    # every client comes first sometimes: 20 fair draws of 4 miss one with probability 4 * 0.75^20 = 0.013
    assert {first for first, *_ in orders} == set(NAMES)


def test_largest_first():
    gaps = {"york": 0.1, "leeds": 3.0, "hull": float("inf"), "bath": 0.2}
    for plans in contract.rehearse(SequentialLargestFirst(), NAMES, gaps):
        assert order(plans) == ["hull", "leeds", "bath", "york"]
