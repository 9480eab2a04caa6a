"""The invariant of the ledger under a network that loses, delays, repeats and re-orders, and machines that crash.

    No client's data count twice, or not at all, whatever is lost, late, repeated or re-ordered, and whoever is killed.

A `Simulation` runs a seeded random schedule of events over the pure functions of `cavity.ledger`; no engine is
involved. The rules that its machines keep are those that an engine must keep:

- the server changes its state, writes its checkpoint, and only then sends what depends on it. A crash before the
  write undoes the change; a crash after it loses what was to be sent;
- a client writes what `client_ledger.commit` returns, and only then replies. A crash before the write undoes the work;
  a crash after it loses the reply. Where the server holds the factors, a client's disk may also be wiped.

The simulation keeps its own records: for each client the accepted deltas, merged once each into an initial entry; for a
method without entries, the posterior after each accepted reply was absorbed once. After every step they are compared to
what the ledger has made of the same replies.
"""

from __future__ import annotations

import contextlib
import operator
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jaxtyping
import numpy as np
from jaxtyping import PyTree

from cavity import ledger
from cavity.core import Algorithm, Data, Schedule
from cavity.core.client_data import prepare_clients
from cavity.core.messages import ClientState, Message, Reply, ServerState, is_server_owned
from cavity.core.random import name_number
from cavity.errors import ProtocolError
from cavity.io import serialization
from cavity.ledger import client as client_ledger
from cavity.simulation.drive import client_keys, private_keys, run_client
from tests.contracts.encoding import through_encoding

EVENTS = {
    "deliver": 60,
    "dispatch": 25,
    "drop": 6,
    "repeat": 8,
    "garble": 2,
    "abandon": 6,
    "server restarts": 3,
    "client wiped": 3,
    "withdraw": 3,
    "join": 5,
}


def distance(tree: PyTree, reference: PyTree) -> float:
    """The largest difference of two trees' numbers, relative to the largest number of each array (or to 1)."""
    leaves, structure = jax.tree.flatten(tree)
    others, other_structure = jax.tree.flatten(reference)
    if structure != other_structure or any(np.shape(a) != np.shape(b) for a, b in zip(leaves, others, strict=True)):
        return float("inf")
    pairs = [(np.asarray(a, float), np.asarray(b, float)) for a, b in zip(leaves, others, strict=True)]
    gaps = [np.max(np.abs(a - b)) / max(1.0, np.max(np.abs(b))) for a, b in pairs if a.size]
    return float(np.max(gaps, initial=0.0))  # a NaN stays one, and is not below any tolerance


@dataclass
class Books:
    """The simulation's own account, written whenever the server's checkpoint is.

    Attributes:
        posterior: after all accepted replies, for a method without entries.
        entries: for each member, its accepted deltas merged into an initial entry.
        local: for each client, the latents that belong to its last accepted reply, where they are known.
        accepted: the replies accepted so far.
    """

    posterior: PyTree
    entries: dict[str, PyTree]
    local: dict[str, PyTree] = field(default_factory=dict)
    accepted: set[tuple[str, int, int]] = field(default_factory=set)


class World:
    """What all schedules share: the method, the data, the compiled client half, and the undisturbed answers.

    Args:
        algorithm: the method.
        clients: name -> data, as `cavity.run` takes them.
        held_by_clients: the variant of the ledger.
        schedule: who is sent a message; None is anybody.
        canonical: a posterior in a form that does not depend on the order of its factors.
        rest: undisturbed rounds have come to rest when the posterior moves by less than this, relatively.
        max_rounds: within which they must.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        clients: Mapping[str, PyTree],
        *,
        held_by_clients: bool = False,
        schedule: Schedule | None = None,
        canonical: Callable[[Any], PyTree] = lambda posterior: posterior,
        rest: float = 1e-11,
        max_rounds: int = 200,
    ):
        self.algorithm, self.held_by_clients, self.schedule = algorithm, held_by_clients, schedule
        self.data: dict[str, Data] = prepare_clients(algorithm.model, clients)  # pyright: ignore[reportAttributeAccessIssue]
        self.names = tuple(self.data)
        self.canonical, self.rest, self.max_rounds = canonical, rest, max_rounds
        entries = algorithm.server.entries
        self.empty = None if entries is None else ledger.to_host(entries.initial())
        self._numbers, self._rest = eqx.partition(algorithm, eqx.is_array)
        self._answers: dict[frozenset[str], PyTree] = {}

    @cached_property
    def _half(self) -> Callable[..., Any]:
        @jax.jit
        def half(
            numbers: PyTree, header: tuple, inputs: PyTree, local: PyTree, data: Data, private: Any, spent: PyTree
        ) -> Any:
            seed, *rest = header
            key = client_keys(seed, *(number[None] for number in rest))[0]
            return run_client(eqx.combine(numbers, self._rest).client, key, inputs, local, data, private, spent)

        return half

    def update(self, message: Message, state: ClientState) -> tuple[Any, PyTree, PyTree]:
        """The client's half, with the same randomness as in any engine."""
        numbers = (0, message.version, message.sequence, name_number(message.client))
        header = tuple(np.asarray(number, np.uint32) for number in numbers)
        inputs = client_ledger.inputs_for(state, message)
        release, data = self.algorithm.client.release, self.data[message.client]
        private = None if release is None else private_keys(message.client.encode(), [message])[0]
        found = self._half(self._numbers, header, inputs, state.local, data, private, state.spent)
        return jax.tree.map(np.asarray, found)

    def undisturbed(self, members: Iterable[str]) -> PyTree:
        """Where rounds without a fault come to rest, from the prior."""
        members = frozenset(members)
        if members not in self._answers:
            names = [name for name in self.names if name in members]
            calm = Simulation(self, names)
            calm.settle_down()
            self._answers[members] = self.canonical(calm.server.posterior)
        return self._answers[members]


class Simulation:
    """One schedule of events.

    Args:
        world: what does not change from schedule to schedule.
        names: the members at the start.
        seed: of the events.
        crash_rate: the probability that a machine crashes at a point where it may.
        through_wire: whether states are written and read as bytes, as in a file.
        invariant_tolerance: to which the books must agree with the ledger.
        carry: what becomes of a message or a reply on its way.
    """

    def __init__(
        self,
        world: World,
        names: Iterable[str],
        *,
        seed: int = 0,
        crash_rate: float = 0.0,
        through_wire: bool = False,
        invariant_tolerance: float = 1e-9,
        carry: Callable[[Any], Any] = lambda item: item,
    ):
        self.world, self.algorithm = world, world.algorithm
        self.has_rows = world.algorithm.server.entries is not None
        self.random, self.crash_rate = random.Random(seed), crash_rate
        self.through_wire, self.tolerance, self.carry = through_wire, invariant_tolerance, carry
        self.seen, self.log = Counter(), []
        names = list(names)
        self.server = self._rescheduled(
            ledger.open_ledger(self.algorithm, names, held_by_clients=world.held_by_clients)
        )
        self.checkpoint = self._written(self.server)
        self.disks = {name: self._new_disk(name) for name in names}
        self.books = Books(self.server.posterior, dict.fromkeys(names, world.empty))
        self.network: list[Message | Reply] = []
        self._watched: list[Any] = []
        self.lives = Counter()  # how often a client's disk has been wiped
        self.kept: dict[tuple[str, int, int], tuple[int, PyTree]] = {}  # reply -> (life, latents written with it)

    def play(self, num_steps: int) -> None:
        """So many random events, and a look at the books after each."""
        for _ in range(num_steps):
            possible = self._possible()
            (event,) = self.random.choices(possible, [EVENTS[event] for event in possible])
            getattr(self, "_" + event.replace(" ", "_"))()
            self._note(event)
            self.check_books()

    def _possible(self) -> list[str]:
        held_by_clients, members = self.world.held_by_clients, self.server.names
        impossible = {
            "deliver": not self.network,
            "drop": not self.network,
            "repeat": not self.network,
            "garble": not any(isinstance(item, Reply) for item in self.network),
            "abandon": len(self.server.idle) == len(members),
            "client wiped": held_by_clients,  # there the disk is the only copy of the factor
            "withdraw": held_by_clients or not self.has_rows or len(members) < 2,
            "join": len(members) == len(self.world.names),
        }
        return [event for event in EVENTS if not impossible.get(event)]

    def _dispatch(self) -> None:
        server = self.server
        if self.world.schedule is not None:
            rng = np.random.default_rng(self.random.getrandbits(32))
            plan, state = self.world.schedule.next(rng, server.schedule, server.gaps, server.idle)
            server, chosen = replace(server, schedule=state), plan.start
        else:
            # mostly to idle clients, at times over the head of an outstanding message
            names = (self.random.random() < 0.8 and server.idle) or server.names
            chosen = self.random.sample(names, self.random.randint(1, len(names)))
        server, messages = ledger.dispatch(self.algorithm, server, chosen)
        if self._write(server):
            self._send(messages)

    def _deliver(self) -> None:
        item = self._pick()
        if isinstance(item, Message):
            return self._client_works(self.carry(item))
        # the server may find several replies in its box, repeats included
        replies, left = [item], []
        for other in self.network:
            (replies if isinstance(other, Reply) and self.random.random() < 0.2 else left).append(other)
        self.network = left
        received = []
        for reply in replies:
            try:
                received.append(self.carry(reply))
            except ProtocolError:  # as the network does: refused before the ledger sees it
                self.seen["reply refused"] += 1
        return self._server_receives(received)

    def _drop(self) -> None:
        self._pick()

    def _repeat(self) -> None:
        self.network.append(self.random.choice(self.network))

    def _garble(self) -> None:
        """A client's arithmetic fails: its change arrives as NaN."""
        reply = self.random.choice([item for item in self.network if isinstance(item, Reply)])
        delta = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), reply.update.delta)
        self.network.append(replace(reply, update=replace(reply.update, delta=delta)))

    def _abandon(self) -> None:
        waiting = [name for name in self.server.names if name not in self.server.idle]
        self._write(ledger.abandon(self.server, [self.random.choice(waiting)]))

    def _server_restarts(self) -> None:
        self.server = self._read(self.checkpoint)
        if self.random.random() < 0.5:
            self.network = [item for item in self.network if isinstance(item, Message)]
        if self.random.random() < 0.5:
            self._write(ledger.abandon(self.server, self.server.names))

    def _client_wiped(self) -> None:
        self._wipe(self.random.choice(self.world.names))

    def _withdraw(self) -> None:
        before, name = self.server, self.random.choice(self.server.names)
        server = self._rescheduled(ledger.withdraw(self.algorithm, before, name))
        if self._write(server):
            del self.books.entries[name]
            kept = self.algorithm.server.entries.remaining(
                before, {other: before.entries[other] for other in server.entries}
            )
            if not eqx.tree_equal(server.entries, kept):
                self._note("rows emptied")  # without this client the product was improper
                self.books.entries = dict.fromkeys(self.books.entries, self.world.empty)
            else:
                self.books.entries = self.algorithm.server.entries.remaining(before, self.books.entries)
            self.books.local.pop(name, None)

    def _join(self) -> None:
        name = self.random.choice([name for name in self.world.names if name not in self.server.names])
        if self._write(self._rescheduled(ledger.join(self.algorithm, self.server, name))):
            self.books.entries[name] = self.world.empty
            if name not in self.disks or self.random.random() < 0.5:
                self._wipe(name)  # a new machine; otherwise it comes back with what it kept

    def _server_receives(self, replies: list[Reply]) -> None:
        before = self.server
        server, outcome = ledger.receive(self.algorithm, before, replies)
        self.seen["reply refused"] += len(outcome.refused)
        if not self._write(server):
            return
        accepted = []
        for name, exponent in outcome.accepted.items():
            record = before.clients[name]
            outstanding = (name, record.waiting, record.sequence)
            fitting = [r for r in replies if (r.client, r.version, r.sequence) == outstanding]
            self._expect(bool(fitting), f"accepted a reply of {name!r} that answers no outstanding message")
            self._expect(outstanding not in self.books.accepted, f"accepted a reply of {name!r} twice")
            update = ledger.to_host(fitting[0].update)
            accepted.append(replace(fitting[0], update=update))
            self.books.accepted.add(outstanding)
            if self.has_rows:
                entries = self.algorithm.server.entries
                self.books.entries[name] = entries.merge(self.books.entries[name], update.delta, exponent)
            life, local = self.kept[outstanding]
            if life == self.lives[name]:
                self.books.local[name] = local
            self._note("reply accepted")
        if accepted and not self.has_rows:
            alone = replace(before, posterior=self.books.posterior)
            self.books.posterior = self.algorithm.server.absorb(alone, accepted).posterior

    def _client_works(self, message: Message) -> None:
        name = message.client
        state = self.disks[name]
        if client_ledger.is_stale(state, message):
            self._note("message overtaken")
            return
        reply = client_ledger.stored_reply(state, message)
        if reply is None:
            state = client_ledger.settle(self.algorithm, state, message)
            record = self.server.clients.get(name)
            if name in self.books.local and record is not None and record.sequence == message.sequence:
                self._expect(
                    distance(state.local, self.books.local[name]) == 0.0,
                    f"client {name!r} works on latents that do not belong to its last accepted reply",
                )
            update, local, spent = self.world.update(message, state)
            state, reply = client_ledger.commit(state, message, update, local, spent)
            if self._crashes("client before its write"):
                return
            self.disks[name] = self._read(self._written(state))
            self.kept[name, reply.version, reply.sequence] = (self.lives[name], local)
        else:
            self._note("stored reply")
        if not self._crashes("client after its write"):
            self.network.append(reply)

    def _write(self, server: ServerState) -> bool:
        """The server's checkpoint, and whether it was written; after a crash the old one is in force."""
        if self._crashes("server before its write"):
            self.server = self._read(self.checkpoint)
            return False
        self.server = server
        self.checkpoint = self._written(server)
        return True

    def _send(self, messages: list[Message]) -> None:
        if self._crashes("server after its write"):
            self.server = self._read(self.checkpoint)
        else:
            self.network += messages

    def _rescheduled(self, server: ServerState) -> ServerState:
        schedule = self.world.schedule
        return server if schedule is None else replace(server, schedule=schedule.init(server.names))

    def _wipe(self, name: str) -> None:
        self.disks[name] = self._new_disk(name)
        self.books.local.pop(name, None)
        self.lives[name] += 1

    def _new_disk(self, name: str) -> ClientState:
        return client_ledger.open_client(
            self.algorithm, self.world.data[name], held_by_clients=self.world.held_by_clients
        )

    def _written(self, state: PyTree) -> Any:
        return (serialization.to_bytes(state), serialization.types_in(state)) if self.through_wire else state

    def _read(self, written: Any) -> Any:
        return serialization.from_bytes(*written) if self.through_wire else written

    def _crashes(self, where: str) -> bool:
        crashed = self.random.random() < self.crash_rate
        if crashed:
            self._note(f"crash: {where}")
        return crashed

    def _pick(self) -> Message | Reply:
        return self.network.pop(self.random.randrange(len(self.network)))

    def _note(self, what: str) -> None:
        self.seen[what] += 1
        self.log.append(what)

    def check_books(self) -> None:
        """The invariant, as it stands in `cavity.ledger`; where nothing has changed since the last look, it holds."""
        watched = [
            self.server.posterior,
            *self.server.entries.values(),
            *self.books.entries.values(),
            *self.disks.values(),
        ]
        if len(watched) == len(self._watched) and all(map(operator.is_, watched, self._watched)):
            return
        self._watched = watched
        rows = self._rows()
        clients = {name: row for name, row in rows.items() if not is_server_owned(name)}
        self._expect(clients.keys() == self.books.entries.keys(), "the ledger has other members than the books")
        for name, row in clients.items():
            gap = distance(row, self.books.entries[name])
            self._expect(gap <= self.tolerance, f"the row of {name!r} is {gap:.1e} from its accepted replies")
        if self.has_rows:
            expected = self.algorithm.server.entries.rebuild(self.server.prior, list(rows.values()))
        else:
            expected = self.books.posterior
        gap = distance(self.server.posterior, expected)
        self._expect(gap <= self.tolerance, f"the posterior is {gap:.1e} from what was accepted")

    def _rows(self) -> dict[str, PyTree]:
        """Each client's entry: the server's, or the client's own with updates that are not yet committed."""
        if not self.world.held_by_clients:
            # a method without entries has clients, but the ledger has nothing of theirs
            return self.server.entries if self.world.empty is not None else dict.fromkeys(self.server.names)
        rows = {}
        for name, record in self.server.clients.items():
            state, settled = self.disks[name], record.settled
            rows[name] = state.entry
            if state.pending is not None and state.pending.sequence == settled.sequence:
                delta = ledger.to_host(state.pending.update.delta)
                rows[name] = self.algorithm.server.entries.merge(state.entry, delta, settled.exponent)
        return rows

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise AssertionError(f"{otherwise}, after: {', '.join(self.log[-12:])}")

    def heal(self, settle: bool = True) -> None:
        """The network delivers all that it still holds, in any order, and from then on nothing fails."""
        self.crash_rate = 0.0
        while self.network:
            self._deliver()
            self.check_books()
        if settle:
            self.settle_down()
            self.check_books()

    def check_end(self, tolerance: float) -> None:
        """The posterior is where the same members would have come without a fault."""
        gap = distance(self.world.canonical(self.server.posterior), self.world.undisturbed(self.server.names))
        self._expect(gap <= tolerance, f"after healing the posterior is {gap:.1e} from the undisturbed one")

    def settle_down(self) -> None:
        """Undisturbed rounds until the posterior moves no more."""
        for _ in range(self.world.max_rounds):
            before = self.world.canonical(self.server.posterior)
            server, messages = ledger.dispatch(self.algorithm, self.server, self.server.names)
            self._write(server)
            for message in messages:
                self._client_works(message)
            replies, self.network = self.network, []
            self._server_receives([item for item in replies if isinstance(item, Reply)])
            if distance(self.world.canonical(self.server.posterior), before) < self.world.rest:
                return
        raise AssertionError(f"undisturbed rounds did not come to rest within {self.world.max_rounds}")


@contextlib.contextmanager
def types_unchecked() -> Iterator[None]:
    """Without the checks of types and shapes, which take two thirds of the time of a schedule."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def check_survives_faults(
    algorithm: Algorithm,
    clients: Mapping[str, PyTree],
    num_schedules: int,
    *,
    held_by_clients: bool = False,
    schedule: Schedule | None = None,
    first_seed: int = 0,
    num_steps: int = 20,
    crash_rate: float = 0.05,
    tolerance: float = 1e-8,
    canonical: Callable[[Any], PyTree] = lambda posterior: posterior,
    rest: float = 1e-11,
    max_rounds: int = 200,
    carry: Callable[[Any], Any] | None = None,
    comes_to_rest: bool = True,
) -> Counter:
    """Play random schedules of faults; the invariant holds after every step, and the end is the undisturbed one.

    Args:
        algorithm: any method; its clients may keep latents, its rows may differ in shape, or there are none.
        clients: name -> data. One of them joins late, and any may leave and come back (server-held).
        num_schedules: how many seeds to play.
        held_by_clients: the variant of the ledger.
        schedule: who is sent a message; None is anybody.
        first_seed: of the first schedule; a failure names its seed.
        num_steps: events per schedule.
        crash_rate: the probability that a machine crashes at a point where it may.
        tolerance: to which the healed posterior must be the undisturbed one.
        canonical: a posterior in a form that does not depend on the order of its factors.
        rest: undisturbed rounds have come to rest when the posterior moves by less than this, relatively.
        max_rounds: within which they must.
        carry: what becomes of a message or a reply on its way; None takes it through the real encoding, where the
            receiver checks it against what the method declares.
        comes_to_rest: whether undisturbed rounds end at one posterior; not so for methods with noise.

    Returns:
        How often each kind of event happened, so that a test can see that its faults did.
    """
    world = World(
        algorithm,
        clients,
        held_by_clients=held_by_clients,
        schedule=schedule,
        canonical=canonical,
        rest=rest,
        max_rounds=max_rounds,
    )
    carry = through_encoding(algorithm) if carry is None else carry
    seen = Counter()
    for seed in range(first_seed, first_seed + num_schedules):
        simulation = Simulation(
            world, world.names[:-1], seed=seed, crash_rate=crash_rate, through_wire=seed % 10 == 0, carry=carry
        )
        try:
            # the first schedules check types too; the others have the same
            with contextlib.nullcontext() if seed < first_seed + 3 else types_unchecked():
                simulation.play(num_steps)
                simulation.heal(comes_to_rest)
                if comes_to_rest:
                    simulation.check_end(tolerance)
        except Exception as error:
            error.add_note(f"schedule with seed {seed}, held_by_clients={held_by_clients}")
            raise
        seen += simulation.seen
    return seen
