"""Every schedule ends at the pooled optimum; who is slow holds up the others only where they wait for each other.

Virtual time is exact: no clock is read here. Free energies are those of the server's posterior on the pooled rows, by
quadrature, and not the sum of local ones, whose terms an asynchronous run takes from different versions.
"""

from functools import cache

import jax
import numpy as np
import pytest
from scipy.optimize import minimize

from cavity import PVI, ledger, training
from cavity.aggregation import Adaptive, Fixed, Stale
from cavity.core import Data, Engine
from cavity.distributions import FullGaussian
from cavity.errors import CavityError
from cavity.models import logistic_regression
from cavity.schedules import (
    Asynchronous,
    SampledCount,
    SampledShare,
    Sequential,
    SequentialLargestFirst,
    SequentialShuffled,
    Synchronous,
)
from cavity.simulation.local import LocalEngine
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

NAMES = ("york", "leeds", "hull", "bath")
SLOW = dict.fromkeys(NAMES, 1.0) | {"bath": 10.0}
MODEL = logistic_regression(2)


@cache
def rows():
    """80 rows, each client's from another range of the first feature."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = (rng.random(80) < 1 / (1 + np.exp(-0.3 - x @ [1.2, -0.8]))).astype(float)
    order = np.argsort(x[:, 0] + 0.8 * rng.normal(size=80))
    return x[order], y[order]


def data(part):
    x, y = rows()
    return Data((x[part], y[part]), np.ones(len(y[part])), np.asarray(len(y[part])))


def clients():
    return {name: data(slice(20 * i, 20 * i + 20)) for i, name in enumerate(NAMES)}


@cache
def pooled_optimum():
    """By SciPy, over the mean and a root of the covariance with the logs of its diagonal."""

    def member(parameters):
        root = np.diag(np.exp(parameters[3:6]))
        root[np.tril_indices(3, -1)] = parameters[6:]
        return parameters[:3], root @ root.T

    found = minimize(lambda parameters: -free_energy_at(*member(parameters)), np.zeros(9), options={"gtol": 1e-6})
    return FullGaussian.from_moments(*member(found.x))


def free_energy(q):
    return free_energy_at(np.asarray(q.mean), np.asarray(q.covariance))


def free_energy_at(mean, covariance):
    """E_q[log p(y | theta)] - KL(q : prior) on the pooled rows, in numpy."""
    x, y = rows()
    a = np.column_stack([np.ones(len(x)), x])
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    sd = np.sqrt(np.einsum("nd,de,ne->n", a, covariance, a))
    f = (a @ mean)[:, None] + sd[:, None] * nodes
    log_likelihood = np.sum((y[:, None] * f - np.logaddexp(0, f)) @ (weights / weights.sum()))
    ratio = np.asarray(MODEL.prior.precision) @ covariance
    distance = mean @ np.asarray(MODEL.prior.precision) @ mean
    return log_likelihood - 0.5 * (np.trace(ratio) - 3 - np.linalg.slogdet(ratio)[1] + distance)


class Watched(Engine):
    """Notes the posterior that each message brings, and when: the server's after every accepted reply."""

    def __init__(self, algorithm, seconds=None):
        self.inner = LocalEngine(algorithm, clients(), seconds=seconds)
        self.sent, self.num_stale = {}, 0

    def submit(self, message):
        self.sent[message.version] = (self.inner.virtual_seconds, message.inputs.posterior)
        self.inner.submit(message)

    def collect(self, num_replies):
        replies = self.inner.collect(num_replies)
        self.num_stale += sum(reply.version < max(self.sent) for reply in replies)
        return replies

    def client_states(self):
        return {}


def run(schedule, damping, *, seconds=None, rounds=150, observers=()):
    algorithm = PVI(MODEL, damping=damping)
    engine = Watched(algorithm, seconds)
    server = training.open_federation(algorithm, schedule, NAMES, 0)
    stopping = training.Stopping(rounds, tolerance=1e-7)
    server, history, why = training.run(algorithm, engine, schedule, server, [], stopping, observers=observers)
    return engine, server, history, why


UNEVEN = dict(zip(NAMES, (1.0, 1.3, 1.7, 2.1), strict=True))


@pytest.mark.parametrize(
    ("schedule", "damping", "seconds"),
    [
        (Synchronous(), Adaptive(), None),
        (Sequential(), Adaptive(), None),
        (SequentialShuffled(), Adaptive(), None),
        (SequentialLargestFirst(), Adaptive(), None),
        (SampledCount(2), Adaptive(), None),
        (SampledShare(0.5), Adaptive(), None),
        (Asynchronous(), Adaptive(), UNEVEN),
        (Asynchronous(), Adaptive(), SLOW),
        (Asynchronous(), Stale(Adaptive()), UNEVEN),
    ],
    ids=lambda part: type(part).__name__,
)
@thorough
def test_every_schedule_reaches_the_pooled_optimum(schedule, damping, seconds):
    """And keeps the ledger's invariant on its way, whatever is stale."""
    algorithm = PVI(MODEL, damping=damping)

    def rebuilt(record, server):
        again = algorithm.server.entries.rebuild(server.prior, list(server.entries.values()))
        for mine, theirs in zip(jax.tree.leaves(server.posterior), jax.tree.leaves(again), strict=True):
            np.testing.assert_array_equal(mine, theirs)

    engine, server, history, why = run(schedule, damping, seconds=seconds, observers=[rebuilt])
    assert why == "tolerance"
    assert float(server.posterior.kl(pooled_optimum())) < 1e-5
    assert abs(free_energy(server.posterior) - free_energy(pooled_optimum())) < 1e-5
    assert (engine.num_stale > 0) == isinstance(schedule, Asynchronous)
    assert history[-1]["communications"] == sum(record.settled.sequence for record in server.clients.values())


def time_to(engine, gap):
    """The virtual second from which on the free energy is within `gap` nats of the best."""
    best = free_energy(pooled_optimum())
    track = [(seconds, best - free_energy(q) < gap) for seconds, q in engine.sent.values()]
    late = [i for i, (_, is_near) in enumerate(track) if not is_near]
    return track[late[-1] + 1][0]


@thorough
def test_a_slow_client_holds_up_only_those_who_wait_for_it(record_property):
    """One of four takes ten times as long. Without it three nats are left; with it, the other three answer at once."""
    synchronous, *_ = run(Synchronous(), Adaptive(), seconds=SLOW)
    asynchronous, *_ = run(Asynchronous(), Adaptive(), seconds=SLOW)
    for gap in (3.0, 1e-4):
        times = time_to(synchronous, gap), time_to(asynchronous, gap)
        record_property(f"virtual seconds to {gap} nats, synchronous and asynchronous", times)
        assert times[1] < times[0]
    assert time_to(asynchronous, 3.0) == 1.0
    assert time_to(synchronous, 3.0) == 10.0


def submit(engine, algorithm, names):
    server = training.open_federation(algorithm, Synchronous(), NAMES, 0)
    _, sent = ledger.dispatch(algorithm, server, names)
    for message in sent:
        engine.submit(message)


@thorough
def test_virtual_time():
    """Replies come in the order in which they are due, those due together at once; without any, time stands still."""
    algorithm = PVI(MODEL)
    engine = LocalEngine(algorithm, clients(), seconds={"york": 3.0, "leeds": 1.0, "hull": 1.0})
    submit(engine, algorithm, ("york", "leeds", "hull"))
    assert sorted(reply.client for reply in engine.collect(1)) == ["hull", "leeds"]
    assert engine.virtual_seconds == 1.0
    submit(engine, algorithm, ("leeds", "bath"))
    # who has no time takes none
    assert [reply.client for reply in engine.collect(1)] == ["bath"]
    assert engine.virtual_seconds == 1.0
    assert [reply.client for reply in engine.collect(2)] == ["leeds", "york"]
    assert engine.virtual_seconds == 3.0
    assert engine.collect(1) == []
    assert engine.virtual_seconds == 3.0


def test_asynchronous_starts_whoever_is_idle_and_waits_for_one():
    plan, _ = Asynchronous().next(np.random.default_rng(0), None, dict.fromkeys(NAMES, 1.0), NAMES[1:3])
    assert (plan.start, plan.wait) == (NAMES[1:3], 1)


def draws(schedule, number=2000):
    rng = np.random.default_rng(0)
    plans = [schedule.next(rng, None, dict.fromkeys(NAMES, 1.0), NAMES)[0] for _ in range(number)]
    assert all(plan.wait == len(plan.start) == len(set(plan.start)) > 0 for plan in plans)
    return plans


def test_sampled_count_draws_each_set_equally_often():
    plans = draws(SampledCount(2))
    sets, counts = np.unique([sorted(plan.start) for plan in plans], axis=0, return_counts=True)
    assert len(sets) == 6
    # binomial: 4 standard errors
    np.testing.assert_array_less(np.abs(counts - 2000 / 6), 4 * np.sqrt(2000 * 5 / 36))
    assert SampledCount(2).visits_per_round(4) == 2
    assert SampledCount(9).visits_per_round(4) == 4
    assert set(draws(SampledCount(9), 1)[0].start) == set(NAMES)


def test_sampled_share_draws_each_client_by_itself():
    """Given that anybody is drawn: 0.3 / (1 - 0.7^4), and two together as if independent."""
    taken = np.array([[name in plan.start for name in NAMES] for plan in draws(SampledShare(0.3))])
    some = 1 - 0.7**4
    for mean, expected in ((taken.mean(0), 0.3 / some), ((taken[:, 0] & taken[:, 1]).mean(), 0.09 / some)):
        np.testing.assert_array_less(np.abs(mean - expected), 4 * np.sqrt(expected * (1 - expected) / 2000))
    assert all(plan.start == NAMES for plan in draws(SampledShare(1.0), 3))


@pytest.mark.parametrize("bad", [lambda: SampledCount(0), lambda: SampledShare(0.0), lambda: SampledShare(1.5)])
def test_bad_samples_are_refused(bad):
    with pytest.raises(CavityError, match="at least one client|lies in"):
        bad()


def test_stale_replies_are_weakened_by_their_age():
    exponents, _ = Stale(Fixed(0.8)).choose(None, np.ones(3), np.array([0, 1, 3]))
    np.testing.assert_allclose(exponents, [0.8, 0.4, 0.2])
    adaptive = Stale(Adaptive())
    state = adaptive.backed_off(adaptive.init())
    exponents, _ = adaptive.choose(state, np.ones(3), np.array([0, 1, 3]))
    np.testing.assert_allclose(exponents, 0.5 * 1.25 / np.array([1, 2, 4]))


def test_who_happens_to_reply_is_not_a_trend():
    """A slow client's gap is larger than those of the fast ones, which reply ten times as often; all gaps decrease."""
    damping, chosen, last = Adaptive(), [], np.full(3, np.inf)
    state = damping.init()
    for turn in range(40):
        slow = turn % 10 == 9
        places = [0, 1, 2] if slow else [0, 1]
        last[places] = np.array([0.1, 0.1, 5.0])[places] * 0.9**turn
        some, state = damping.choose(state, last, np.zeros(len(places)))
        chosen += list(np.asarray(some))
    assert set(chosen) == {1.0}
