"""The records that are sent between server and clients, and those that each side keeps: pytrees and plain numbers only.

A `Message` goes from the server to one client, and a `Reply` comes back. The ledger checks their headers (client,
version, sequence). Their contents (`ClientInput`, `ClientUpdate`) are pytrees of arrays with the same structure for
every client, so that an engine can stack them and run many clients as one program.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar, dataclass_transform

import jax
import numpy as np
from jaxtyping import PyTree

T = TypeVar("T")
MAX_REFUSALS = 20  # replies of one client in a row that are refused; then it is set aside


class Record:
    """Base of the records of the ledger. There are as many as clients, and each is made in a microsecond."""

    __slots__ = ()


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots that is a pytree; an equinox module takes fifty times as long to make."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True, slots=True)(cls))


@record
class Report(Record):
    """What a client reports about one local solve, beside its update. Scalars, in nats where they are energies.

    Attributes:
        gap: KL(tilted : posterior), how far this client's data would still move the posterior; zero at a fixed point.
        free_energy: the local free energy E_q[log p(y_m | theta) / t_m(theta)] at the posterior received
            (PVI, property 2.2); NaN where the algorithm does not define it.
        steps: iterations of the solver.
        converged: 1 if the tolerance ended the solve, 0 if the step limit did.
    """

    gap: PyTree
    free_energy: PyTree
    steps: PyTree
    converged: PyTree


@record
class ClientInput(Record):
    """The contents of a message: all that a client part sees besides its own data and local state.

    Attributes:
        posterior: the server's posterior at the message's version.
        entry: this client's entry of the ledger (its accepted factor, with the method's per-client state).
        shared: what else the algorithm sends to all clients (hyperparameters, an average factor).
    """

    posterior: PyTree
    entry: PyTree
    shared: PyTree = None


@record
class ClientUpdate(Record):
    """The contents of a reply: the change of the posterior that the client asks for, and its report."""

    delta: PyTree
    report: Report


@record
class Stacked(Record):
    """Several trees of equal shapes as one tree with a leading axis; it can be used as a sequence of them."""

    tree: PyTree

    def __len__(self) -> int:
        return jax.tree.leaves(self.tree)[0].shape[0]

    def __getitem__(self, index: int) -> PyTree:
        if index >= len(self):
            raise IndexError(index)
        return jax.tree.map(lambda leaf: leaf[index], self.tree)


@record
class Acknowledgement(Record):
    """What became of a client's last accepted reply: its sequence number, and the exponent that it was given."""

    sequence: int = 0
    exponent: float = 0.0


@record
class Message(Record):
    """From the server to one client. `settled` is the client's last accepted reply."""

    client: str
    version: int
    sequence: int
    settled: Acknowledgement
    inputs: ClientInput


@record
class Reply(Record):
    """From a client to the server: exactly what is sent."""

    client: str
    version: int
    sequence: int
    update: ClientUpdate


@record
class Pending(Record):
    """An update that a client has sent, before the server says whether it was accepted."""

    sequence: int
    version: int
    update: ClientUpdate
    local: PyTree


@record
class ClientState(Record):
    """What stays at a client between messages. For most methods it can be lost without harm.

    Attributes:
        local: latent variables that never leave the client (None for most methods).
        entry: the client's own factor, in the client-held variant of the ledger only.
        settled: the sequence number of the last reply known to be accepted.
        pending: the last update, until the server says what became of it.
        spent: what has been spent of a privacy budget. It is stored with every update, and a refusal does not undo it.
    """

    local: PyTree = None
    entry: PyTree = None
    settled: int = 0
    pending: Pending | None = None
    spent: PyTree = None


@record
class ClientRecord(Record):
    """The server's bookkeeping of one client, beside its entry.

    Attributes:
        sequence: the number of the last message sent to it.
        waiting: the version of the message that is outstanding, or None.
        settled: its last accepted reply.
        report: the report that came with it.
        refusals: how many of its replies were refused since.
    """

    sequence: int = 0
    waiting: int | None = None
    settled: Acknowledgement = Acknowledgement()
    report: Report | None = None
    refusals: int = 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Roster(Record):
    """The names of all clients, in the order in which they joined; server states share it until that changes.

    There may be hundreds of thousands, so the names are visited once and not in every round.
    """

    names: tuple[str, ...] = field(metadata={"static": True})

    @cached_property
    def members(self) -> frozenset[str]:
        """The same without an order, to look a name up."""
        return frozenset(self.names)


@record
class Clients(Record, Mapping[str, ClientRecord]):
    """The bookkeeping of all clients: an immutable mapping; `|` gives another one.

    Clients that have never been sent a message share one record. So the cost of a change grows with the number of
    clients that have been sent a message, not with the number of all clients.

    Attributes:
        roster: the names of all clients.
        records: those of the clients that have been sent a message.
    """

    roster: Roster
    records: dict[str, ClientRecord]

    @classmethod
    def of(cls, records: Mapping[str, ClientRecord]) -> "Clients":
        """These clients, with these records."""
        return cls(Roster(tuple(records)), dict(records))

    @classmethod
    def new(cls, names: Iterable[str]) -> "Clients":
        """Clients that have never been sent a message."""
        return cls(Roster(tuple(dict.fromkeys(names))), {})

    def __getitem__(self, name: str) -> ClientRecord:
        found = self.records.get(name)
        if found is None and name not in self.roster.members:
            raise KeyError(name)
        return NEW_CLIENT if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(self.roster.names)

    def __len__(self) -> int:
        return len(self.roster.names)

    def __or__(self, records: Mapping[str, ClientRecord]) -> "Clients":
        newcomers = [name for name in records if name not in self.records and name not in self.roster.members]
        roster = Roster((*self.roster.names, *newcomers)) if newcomers else self.roster
        return Clients(roster, {**self.records, **records})

    def without(self, name: str) -> "Clients":
        """All but one."""
        names = tuple(other for other in self.roster.names if other != name)
        return Clients(Roster(names), {key: record for key, record in self.records.items() if key != name})

    @property
    def waiting(self) -> tuple[str, ...]:
        """Those with a message outstanding."""
        return tuple(name for name, record in self.records.items() if record.waiting is not None)

    @property
    def set_aside(self) -> tuple[str, ...]:
        """The clients that are no longer asked, since too many of their replies in a row were refused."""
        return tuple(name for name, record in self.records.items() if record.refusals >= MAX_REFUSALS)


NEW_CLIENT = ClientRecord()
JOINT = "*"  # the name under which the client-held variant keeps the product of all factors


def is_server_owned(name: str) -> bool:
    """Whether an entry of this name is the server's own, such as a prior outside the family: "(prior)".

    Nothing is sent for it. Names in parentheses are reserved for such entries, and "*" for the joint entry.
    """
    return name.startswith("(")


@dataclass
class Change:
    """What an algorithm makes of accepted replies.

    Attributes:
        posterior: the next one.
        entries: the next ones.
        method: the algorithm's next own state.
        exponents: of each reply; 0 for one that cannot be used.
        reasons: why not, where there is more to say than that the posterior would be improper.
    """

    posterior: PyTree
    entries: dict[str, PyTree]
    method: PyTree
    exponents: dict[str, float]
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Gaps(Mapping[str, float]):
    """The last gap of each client that is not set aside; infinite before its first reply."""

    clients: Clients

    def __getitem__(self, name: str) -> float:
        report = self.clients[name].report
        return float("inf") if report is None else float(report.gap)

    def __iter__(self) -> Iterator[str]:
        return iter(active(self.clients))

    def __len__(self) -> int:
        return len(self.clients) - len(self.clients.set_aside)

    @property
    def largest(self) -> float:
        """The largest gap of all clients; NaN if one of them is NaN."""
        if len(self.clients.records) < len(self.clients):
            return float("inf")
        return float(np.max(list(self.values()))) if len(self) else float("inf")


def active(clients: Clients) -> tuple[str, ...]:
    """The clients that are not set aside, in order."""
    aside = set(clients.set_aside)
    return tuple(name for name in clients.roster.names if name not in aside) if aside else clients.roster.names


@record
class ServerState(Record):
    """The server's complete state: a resumed run is bit for bit the run that was not interrupted.

    Attributes:
        version: counts the changes of the posterior.
        seed: the random seed; randomness follows from it, the version and the client's name.
        prior: a member of the family.
        posterior: always `rebuild(prior, entries)`, for methods with entries.
        entries: client name -> entry; in the client-held variant a single joint entry under `JOINT`; empty for methods
            without entries.
        clients: client name -> bookkeeping, in the order in which they joined.
        method: the algorithm's own state (damping, optimiser).
        schedule: the schedule's own state.
        held_by_clients: whether the clients, and not the server, keep the factors.
    """

    version: int
    seed: int
    prior: PyTree
    posterior: PyTree
    entries: dict[str, PyTree]
    clients: Clients
    method: PyTree = None
    schedule: PyTree = None
    held_by_clients: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The members of the federation, in the order in which they joined."""
        return self.clients.roster.names

    @property
    def active(self) -> tuple[str, ...]:
        """The members that are not set aside."""
        return active(self.clients)

    @property
    def idle(self) -> tuple[str, ...]:
        """The clients with no message outstanding."""
        waiting = set(self.clients.waiting)
        return tuple(name for name in self.names if name not in waiting) if waiting else self.names

    @property
    def gaps(self) -> Gaps:
        """The last gap of each client that is not set aside; infinite before its first reply."""
        return Gaps(self.clients)
