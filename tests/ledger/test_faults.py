"""No client's data count twice, or not at all: a thousand random schedules of faults, for both variants of the ledger.

And the other way round: a ledger or a client that is broken on purpose does not get through.
"""

from dataclasses import replace

import numpy as np
import pytest

import cavity
from cavity import ledger
from cavity.aggregation import Fixed, entries
from cavity.core.messages import Acknowledgement, ClientState, ClientUpdate, Reply, Report
from cavity.distributions import FullGaussian
from cavity.divergences import WeightedKL
from cavity.errors import ProtocolError
from cavity.ledger import client as client_ledger
from cavity.losses import ScoreMatching, SquaredExponential
from tests import scenarios
from tests.contracts.faults import EVENTS, Simulation, World, check_survives_faults, distance
from tests.marks import thorough

RARELY = [pytest.mark.slow, pytest.mark.exhaustive]
VARIANTS = pytest.mark.parametrize("held_by_clients", [False, True], ids=["server-held", "client-held"])
CRASHES = {f"crash: {who} {when} its write" for who in ("server", "client") for when in ("before", "after")}


def linear(damping=None):
    x, y = scenarios.linear(24, 1)
    clients = scenarios.clients(x, y, scenarios.homogeneous(24, 3))
    return cavity.PVI(cavity.models.linear_regression(1, noise_sd=0.7), damping=damping), clients


def logistic():
    problem = scenarios.logistic(60, 1)
    clients = scenarios.clients(problem.x, problem.y, scenarios.homogeneous(60, 3))
    return cavity.PVI(cavity.models.logistic_regression(1)), clients


@VARIANTS
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=RARELY) for block in (1, 2))])
def test_conjugate_regression(held_by_clients, block):
    algorithm, clients = linear()
    seen = check_survives_faults(algorithm, clients, 145, first_seed=1000 * block, held_by_clients=held_by_clients)
    server_held_only = {"withdraw", "client wiped"}
    events = EVENTS.keys() - server_held_only if held_by_clients else EVENTS.keys()
    wanted = (
        events | CRASHES | {"stored reply", "reply refused"} | ({"message overtaken"} if held_by_clients else set())
    )
    assert all(seen[event] >= 10 for event in wanted), seen
    assert seen["reply accepted"] > 800


@thorough
@VARIANTS
def test_damped(held_by_clients):
    """With an exponent below 1 the client cannot guess what became of its delta."""
    algorithm, clients = linear(Fixed(0.9))
    check_survives_faults(algorithm, clients, 30, first_seed=10_000, held_by_clients=held_by_clients)


@VARIANTS
@thorough
def test_logistic_regression(held_by_clients):
    algorithm, clients = logistic()
    check_survives_faults(algorithm, clients, 10, first_seed=20_000, held_by_clients=held_by_clients, rest=1e-10)


@VARIANTS
@thorough
def test_generalised(held_by_clients):
    """FedGVI with a robust loss in closed form, whose factors depend on the cavity they were fitted in."""
    x, y = scenarios.linear(24, 1)
    clients = scenarios.clients(x, y, scenarios.homogeneous(24, 3))
    model, loss = cavity.models.linear_regression(1, noise_sd=0.7), ScoreMatching(SquaredExponential(3.0))
    algorithm = cavity.FedGVI(model, loss, WeightedKL(0.8), damping=Fixed(0.7))
    check_survives_faults(algorithm, clients, 15, first_seed=40_000, held_by_clients=held_by_clients)


@thorough
@VARIANTS
def test_a_single_client(held_by_clients):
    """The only member may be alone with a late joiner; the sum over clients hides nothing."""
    algorithm, clients = linear()
    pair = {name: clients[name] for name in list(clients)[:2]}
    check_survives_faults(algorithm, pair, 30, first_seed=30_000, held_by_clients=held_by_clients)


def test_a_schedule_can_be_played_again():
    algorithm, clients = linear()
    world = World(algorithm, clients)
    logs = []
    for _ in range(2):
        simulation = Simulation(world, world.names, seed=3, crash_rate=0.1)
        simulation.play(40)
        logs.append((simulation.log, simulation.server.posterior))
    assert logs[0][0] == logs[1][0]
    assert distance(logs[0][1], logs[1][1]) == 0.0


def accept_repeats(server, reply):
    return None if reply.client in server.clients else "not a member"


def merge_twice(part, server, replies, absorb=entries.absorb_into_entries):
    doubled = [replace(r, update=replace(r.update, delta=r.update.delta**2.0)) for r in replies]
    return absorb(part, server, doubled)


def add_to_a_total(part, server, replies, absorb=entries.absorb_into_entries):
    """The posterior is updated; entries are sometimes lost, as by a server without a ledger."""
    change = absorb(part, server, replies)
    return replace(change, entries=server.entries) if server.version % 3 == 0 else change


def forget_one_row(part, server, replies, absorb=entries.absorb_into_entries):
    change = absorb(part, server, replies)
    return replace(change, posterior=part.entries.rebuild(server.prior, list(change.entries.values())[1:]))


def commit_without_settlement(algorithm, state, message):
    if state.pending is None:
        return state
    row = algorithm.server.entries.merge(state.entry, ledger.to_host(state.pending.update.delta), 1.0)
    return ClientState(local=state.pending.local, entry=row, settled=state.pending.sequence)


def commit_with_exponent_one(algorithm, state, message, settle=client_ledger.settle):
    full = Acknowledgement(message.settled.sequence, 1.0)
    return settle(algorithm, state, replace(message, settled=full))


def never_commit(algorithm, state, message):
    return replace(state, pending=None)


def never(state, message):
    return False


BROKEN = [
    ("reason_to_refuse", accept_repeats, False),
    ("reason_to_refuse", accept_repeats, True),
    ("absorb_into_entries", merge_twice, False),
    ("absorb_into_entries", merge_twice, True),
    ("absorb_into_entries", add_to_a_total, False),
    ("absorb_into_entries", add_to_a_total, True),
    ("absorb_into_entries", forget_one_row, False),
    ("settle", commit_without_settlement, True),
    ("settle", commit_with_exponent_one, True),
    ("settle", never_commit, True),
    ("is_stale", never, True),
]


@pytest.mark.parametrize(("function", "broken", "held_by_clients"), BROKEN)
def test_what_is_broken_is_caught(monkeypatch, function, broken, held_by_clients):
    algorithm, clients = linear(Fixed(0.8))
    for module in (ledger, ledger.server, client_ledger, entries):
        if hasattr(module, function):
            monkeypatch.setattr(module, function, broken)
    with pytest.raises((AssertionError, ProtocolError)):
        check_survives_faults(algorithm, clients, 40, first_seed=40_000, held_by_clients=held_by_clients)


# What the simulation found, or cannot reach, one case at a time


def reply_to(message, precision=0.0, shift=0.0):
    """A reply that asks for a factor exp(shift theta - precision theta^2 / 2) in both coefficients."""
    delta = FullGaussian(np.full(2, shift), precision * np.eye(2))
    return Reply(message.client, message.version, message.sequence, ClientUpdate(delta, Report(1.0, 0.0, 1, True)))


def open_pair(**options):
    algorithm, _ = linear()
    return algorithm, ledger.open_ledger(algorithm, ["leeds", "york"], **options)


def test_a_reply_from_before_a_withdrawal_is_refused_after_it():
    algorithm, server = open_pair()
    server, (message,) = ledger.dispatch(algorithm, server, ["york"])
    late = reply_to(message, 3.0)
    server, _ = ledger.receive(algorithm, server, [late])
    server = ledger.join(algorithm, ledger.withdraw(algorithm, server, "york"), "york")
    server, (again,) = ledger.dispatch(algorithm, server, ["york"])
    assert again.sequence == message.sequence  # a new member counts from 1
    after, outcome = ledger.receive(algorithm, server, [late])
    assert not outcome.accepted
    assert after.posterior is server.posterior


def test_a_client_that_comes_back_solves_again():
    algorithm, server = open_pair()
    server, (message,) = ledger.dispatch(algorithm, server, ["york"])
    state, _ = client_ledger.commit(ClientState(local=np.zeros(1)), message, reply_to(message, 3.0).update, np.ones(1))
    server = ledger.join(algorithm, ledger.withdraw(algorithm, server, "york"), "york")
    server, (again,) = ledger.dispatch(algorithm, server, ["york"])
    assert client_ledger.stored_reply(state, message) is not None
    assert client_ledger.stored_reply(state, again) is None
    assert not client_ledger.is_stale(state, again)


@VARIANTS
def test_a_message_that_was_overtaken_is_stale(held_by_clients):
    algorithm, server = open_pair(held_by_clients=held_by_clients)
    state = ClientState(entry=ledger.to_host(algorithm.server.entries.initial()) if held_by_clients else None)
    server, (first,) = ledger.dispatch(algorithm, server, ["york"])
    server, (second,) = ledger.dispatch(algorithm, server, ["york"])  # `first` is abandoned by it
    state, reply = client_ledger.commit(
        client_ledger.settle(algorithm, state, second), second, reply_to(second, 3.0).update, None
    )
    # a client that keeps nothing may answer: the server refuses
    assert client_ledger.is_stale(state, first) == held_by_clients
    assert not client_ledger.is_stale(state, second)
    assert client_ledger.stored_reply(state, second).sequence == reply.sequence
    assert client_ledger.stored_reply(state, first) is None


def test_a_client_that_lost_its_factor_says_so():
    algorithm, server = open_pair(held_by_clients=True)
    server, (message,) = ledger.dispatch(algorithm, server, ["york"])
    server, _ = ledger.receive(algorithm, server, [reply_to(message, 3.0)])
    _, (message,) = ledger.dispatch(algorithm, server, ["york"])
    wiped = ClientState(entry=ledger.to_host(algorithm.server.entries.initial()))
    with pytest.raises(ProtocolError, match=r"client 'york'.*accepted its reply 1.*of reply 0.*backup"):
        client_ledger.settle(algorithm, wiped, message)


def test_a_factor_that_the_server_does_not_hold_cannot_be_withdrawn():
    algorithm, server = open_pair(held_by_clients=True)
    with pytest.raises(ProtocolError, match=r"client 'york' keeps its own factor.*run the study again"):
        ledger.withdraw(algorithm, server, "york")


def test_unknown_and_repeated_replies_are_refused():
    algorithm, server = open_pair()
    server, (message,) = ledger.dispatch(algorithm, server, ["york"])
    reply = reply_to(message, 3.0)
    server, outcome = ledger.receive(algorithm, server, [replace(reply, client="hull"), reply, reply])
    assert set(outcome.accepted) == {"york"}
    assert [name for name, _ in outcome.refused] == ["hull", "york"]
    assert server.entries["york"].precision[0, 0] == 3.0


def test_after_an_improper_withdrawal_all_clients_restart():
    """The product of the others may be improper; then their entries are reset, and outstanding messages are dropped."""
    algorithm, server = open_pair()
    server, messages = ledger.dispatch(algorithm, server, ["leeds", "york"])
    server, outcome = ledger.receive(algorithm, server, [reply_to(messages[0], 10.0), reply_to(messages[1], -5.0)])
    assert outcome.accepted == {"leeds": 1.0, "york": 1.0}
    server, (message,) = ledger.dispatch(algorithm, server, ["york"])
    server = ledger.withdraw(algorithm, server, "leeds")
    assert distance(server.entries["york"], ledger.to_host(algorithm.server.entries.initial())) == 0.0
    assert distance(server.posterior, server.prior) == 0.0
    # this change was for an entry that no longer exists
    server, outcome = ledger.receive(algorithm, server, [reply_to(message, 7.0)])
    assert not outcome.accepted
    assert distance(server.posterior, server.prior) == 0.0


def test_exponents_are_halved_until_the_product_is_proper():
    algorithm, server = open_pair()
    server, (message,) = ledger.dispatch(algorithm, server, ["york"])
    server, outcome = ledger.receive(algorithm, server, [reply_to(message, -0.03)])  # the prior has precision 0.01
    assert outcome.accepted == {"york": 0.25}
    assert server.entries["york"].precision[0, 0] == -0.03 * 0.25
    assert server.method.exponent == 0.25


def test_a_hopeless_reply_changes_nothing():
    algorithm, server = open_pair()
    server, (message,) = ledger.dispatch(algorithm, server, ["york"])
    after, outcome = ledger.receive(algorithm, server, [reply_to(message, -1e30)])
    assert not outcome.accepted
    assert "york" in dict(outcome.refused)
    assert after.posterior is server.posterior
    assert after.entries is server.entries
    assert after.method == server.method  # or the next honest reply would get an exponent of 2^-40
    assert after.clients["york"].settled == server.clients["york"].settled
    assert "york" in after.idle
