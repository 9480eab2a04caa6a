"""What every schedule promises, in a rehearsal of the loop: clients that answer at once, or one that is away."""

from collections import Counter

import numpy as np


def rehearse(schedule, names, gaps=None, num_rounds=3, seed=0):
    """The rounds as lists of plans, when every client that is started replies."""
    gaps = dict.fromkeys(names, float("inf")) if gaps is None else gaps
    state, rounds = schedule.init(names), []
    for round_number in range(num_rounds):
        plans, visits = [], 0
        while visits < schedule.visits_per_round(len(names)):
            rng = np.random.default_rng([seed, round_number, visits])
            plan, state = schedule.next(rng, state, gaps, tuple(names))
            plans.append(plan)
            visits += plan.wait
        rounds.append(plans)
    return rounds


def check_all_clients_are_visited_in_a_round(schedule, names):
    """Exactly once each; and a plan waits for what it started."""
    for plans in rehearse(schedule, names):
        started = Counter(name for plan in plans for name in plan.start)
        assert started == Counter(names)
        assert all(1 <= plan.wait <= len(plan.start) for plan in plans)


def check_starts_idle_clients_only(schedule, names):
    """A client whose message is outstanding is not sent another, and no plan waits for more than was started."""
    state, busy = schedule.init(names), set()
    gaps = dict.fromkeys(names, float("inf"))
    for turn in range(3 * len(names)):
        idle = tuple(name for name in names if name not in busy)
        plan, state = schedule.next(np.random.default_rng([0, turn]), state, gaps, idle)
        assert set(plan.start) <= set(idle)
        assert len(set(plan.start)) == len(plan.start)
        busy |= set(plan.start)
        # replies come in the order of the names, just as many as are waited for
        busy -= set(sorted(busy)[: plan.wait])


def check_seed_decides(schedule, names):
    """The same random generator gives the same plans."""
    assert rehearse(schedule, names, seed=1) == rehearse(schedule, names, seed=1)
