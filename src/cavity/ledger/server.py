"""The server's side of the ledger: pure functions that keep the invariant, whatever the engine.

    No client's data count twice, or not at all, whatever is lost, late, repeated or reordered.

For every method with entries, `server.posterior == entries.rebuild(server.prior, server.entries)` after each function
of this file. There are two variants, and both use the same functions:

- **server-held** (the default): the server keeps one entry per client and sends it to its owner with each message.
  A client holds nothing that matters.
- **client-held** (`held_by_clients`): each client keeps its own entry, the server only their product, in one joint
  entry. A client's update stays *pending* until the server's next message says, in `settled`, whether it was accepted
  and with which exponent; only then does the client commit it.

One message per client is outstanding. A reply is accepted if it answers that message and no other, so a repeated,
abandoned or unknown reply changes nothing. A message is identified by its version and its sequence number. These pairs
only grow for one client, even if it leaves and comes back, so that both sides recognise a late message. To this end a
server writes its checkpoint after each of these functions, before it sends what depends on it, and a client
(`cavity.ledger.client`) writes what `commit` returns before it replies. Entries are kept on the host in float64,
whatever precision the clients compute in.

Each update is judged on its own first: one that makes the posterior improper is refused by name, and the others are
accepted without it, so that no client can stop the others. A client whose replies are refused `MAX_REFUSALS` times in
a row is set aside: the loop neither asks it nor waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import PyTree

from cavity.core.host import is_finite, is_proper, to_host
from cavity.core.messages import (
    JOINT,
    NEW_CLIENT,
    Acknowledgement,
    ClientInput,
    ClientRecord,
    Clients,
    Message,
    Reply,
    Report,
    ServerState,
    is_server_owned,
)
from cavity.errors import ProtocolError

if TYPE_CHECKING:
    from cavity.core import Algorithm, Entries


def open_ledger(
    algorithm: Algorithm, names: Sequence[str], seed: int = 0, *, held_by_clients: bool = False
) -> ServerState:
    """The state before the first message: t_m = 1 for all m, and q = prior (PVI, Algorithm 1, initialise).

    Args:
        algorithm: the method.
        names: of the clients, and of entries that the server owns.
        seed: the random seed.
        held_by_clients: whether the clients keep their own entries.
    """
    if JOINT in names:
        raise ProtocolError(f"no client may be called {JOINT!r}; rename it")
    prior, part, entries = to_host(algorithm.prior), algorithm.server.entries, {}
    posterior = prior
    if part is not None:
        entries = {JOINT: to_host(part.joint())} if held_by_clients else dict.fromkeys(names, to_host(part.initial()))
        posterior = part.initial_posterior(prior, prior, entries)
    return ServerState(
        version=0,
        seed=seed,
        prior=prior,
        posterior=posterior,
        entries=entries,
        clients=Clients.new(names),
        method=algorithm.server.initial_state(len(names)),
        held_by_clients=held_by_clients,
    )


def dispatch(algorithm: Algorithm, server: ServerState, names: Iterable[str]) -> tuple[ServerState, list[Message]]:
    """Start a message to each of `names`; one that is still outstanding is abandoned by it."""
    clients, records, messages = server.clients, {}, []
    without_entry = ClientInput(
        server.posterior, None, algorithm.server.shared(server)
    )  # one for all: there may be very many clients
    started: dict[int, ClientRecord] = {}  # and before their first reply they share a record
    for name in names:
        if name not in clients:
            raise ProtocolError(not_a_member(server, name))
        record, entry = records.get(name, clients[name]), server.entries.get(name)
        if id(record) not in started:
            started[id(record)] = replace(record, sequence=record.sequence + 1, waiting=server.version)
        records[name] = started[id(record)]
        messages.append(
            Message(
                client=name,
                version=server.version,
                sequence=record.sequence + 1,
                settled=record.settled,
                inputs=without_entry if entry is None else replace(without_entry, entry=entry),
            )
        )
    return replace(server, clients=clients | records), messages


def not_a_member(server: ServerState, name: str, most: int = 20) -> str:
    """The message for an unknown client name."""
    more = f" and {len(server.names) - most:,} others" if len(server.names) > most else ""
    return f"client {name!r} is not a member; the members are {', '.join(server.names[:most])}{more}"


def abandon(server: ServerState, names: Iterable[str]) -> ServerState:
    """Stop waiting for these clients: their late replies will be refused, and they are idle again."""
    waived = {name: replace(server.clients[name], waiting=None) for name in names}
    return replace(server, clients=server.clients | waived) if waived else server


@dataclass
class Outcome:
    """What became of a batch of replies: the exponent of each accepted one, the reason for each refusal."""

    accepted: dict[str, float] = field(default_factory=dict)
    refused: list[tuple[str, str]] = field(default_factory=list)


def reason_to_refuse(server: ServerState, reply: Reply) -> str | None:
    """Why this reply must not be merged, or None."""
    record = server.clients.get(reply.client)
    if record is None:
        return "not a member of this federation"
    if record.waiting is None or (reply.version, reply.sequence) != (record.waiting, record.sequence):
        return f"answers message {reply.sequence}, which is not outstanding (repeated, late or abandoned)"
    return None


def receive(
    algorithm: Algorithm,
    server: ServerState,
    replies: Iterable[Reply],
    problem_with: Callable[[PyTree], str | None] = lambda posterior: None,
) -> tuple[ServerState, Outcome]:
    """Merge the valid replies and refuse the others: the server's part of one exchange.

    Args:
        algorithm: the method.
        server: before.
        replies: of some clients.
        problem_with: why a posterior is one that clients would not answer, or None. Where the posterior of all replies
            is one, those replies are refused that make it so by themselves, and the others are merged.
    """
    replies = list(replies)
    received, outcome = _receive(algorithm, server, replies)
    if problem_with(received.posterior) is None or problem_with(server.posterior) is not None:
        return received, outcome
    alone = {reply.client: _receive(algorithm, server, [reply])[0].posterior for reply in replies}
    bad = {name: problem for name, posterior in alone.items() if (problem := problem_with(posterior)) is not None}
    if not bad:
        return received, outcome
    server = count_refusals(algorithm, abandon(server, bad), bad)
    received, outcome = _receive(algorithm, server, [reply for reply in replies if reply.client not in bad])
    outcome.refused += [(name, f"with its change alone, {problem}") for name, problem in bad.items()]
    return received, outcome


def _receive(algorithm: Algorithm, server: ServerState, replies: Iterable[Reply]) -> tuple[ServerState, Outcome]:
    outcome, admitted = Outcome(), {}
    for reply in replies:
        reason = reason_to_refuse(server, reply)
        if reason is None and reply.client in admitted:
            reason = "came twice in one batch"
        if reason is None and not is_finite(reply.update.delta):
            reason = "its change holds a NaN or an infinity"
            server = count_refusals(algorithm, abandon(server, [reply.client]), [reply.client])
        if reason is None:
            admitted[reply.client] = replace(reply, update=jax.tree.map(np.asarray, reply.update))
        else:
            outcome.refused.append((reply.client, reason))
    if not admitted:
        return server, outcome

    change = algorithm.server.absorb(server, list(admitted.values()))
    records = {}
    for name, reply in admitted.items():
        exponent = change.exponents[name]
        records[name] = replace(server.clients[name], waiting=None)
        if exponent > 0:
            settled, report = Acknowledgement(reply.sequence, exponent), _plain(reply.update.report)
            records[name] = replace(records[name], settled=settled, report=report, refusals=0)
            outcome.accepted[name] = exponent
        else:
            reason = change.reasons.get(name, "no exponent makes the posterior proper")
            outcome.refused.append((name, reason))
    server = replace(
        server,
        version=server.version + 1,
        posterior=change.posterior,
        entries=change.entries,
        method=change.method,
        clients=server.clients | records,
    )
    return count_refusals(algorithm, server, admitted.keys() - outcome.accepted.keys()), outcome


def count_refusals(algorithm: Algorithm, server: ServerState, names: Iterable[str]) -> ServerState:
    """One more refused reply of each of these clients; the server's own entries are never set aside."""
    clients = server.clients
    counted = {
        name: replace(clients[name], refusals=clients[name].refusals + 1)
        for name in names
        if name in clients and not is_server_owned(name)
    }
    return replace(server, clients=clients | counted) if counted else server


def readmit(server: ServerState) -> ServerState:
    """Ask the clients again that were set aside."""
    again = {name: replace(server.clients[name], refusals=0) for name in server.clients.set_aside}
    return replace(server, clients=server.clients | again) if again else server


def _plain(report: Report) -> Report:
    """A report with plain Python numbers, which take a quarter of the memory of arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).item(), report)


def withdraw(algorithm: Algorithm, server: ServerState, name: str) -> ServerState:
    """Drop a client's entry and rebuild the posterior. The other clients must then refine to convergence."""
    if name not in server.clients:
        raise ProtocolError(not_a_member(server, name))
    if server.held_by_clients:
        raise ProtocolError(
            f"client {name!r} keeps its own factor, so the server cannot remove it; run the study again without this "
            "client, or with the factors held by the server"
        )
    part = entries_of(algorithm)
    entries = part.remaining(server, {key: entry for key, entry in server.entries.items() if key != name})
    return rebuilt(algorithm, replace(server, entries=entries, clients=server.clients.without(name)))


def entries_of(algorithm: Algorithm) -> Entries:
    """The method's entries, or a ProtocolError where it has none."""
    part = algorithm.server.entries
    if part is None:
        raise ProtocolError(f"{type(algorithm).__name__} keeps no entry per client; run it again without the client")
    return part


def rebuilt(algorithm: Algorithm, server: ServerState) -> ServerState:
    """The posterior recomputed from prior and entries, with the method's state (damping) as at the start.

    Without one factor the product of the others may be improper, since they were fitted beside it. Then all entries
    are reset: a worse start for the refinement, but the same end.
    """
    part = entries_of(algorithm)
    entries, posterior = server.entries, part.rebuild(server.prior, list(server.entries.values()))
    if not is_proper(posterior):
        entries = dict.fromkeys(entries, to_host(part.initial()))
        posterior = part.rebuild(server.prior, list(entries.values()))
        server = abandon(server, server.clients.waiting)  # outstanding updates would change entries that are gone
    method = algorithm.server.initial_state(len(server.clients))
    return replace(server, version=server.version + 1, posterior=posterior, entries=entries, method=method)


def join(algorithm: Algorithm, server: ServerState, name: str) -> ServerState:
    """Add a client with an initial entry. The posterior does not change until it replies."""
    if name == JOINT or is_server_owned(name):
        raise ProtocolError(f"no client may be called {name!r}; rename it")
    if name in server.clients:
        raise ProtocolError(f"client {name!r} is a member already; a second one needs another name")
    entries, posterior, part = server.entries, server.posterior, algorithm.server.entries
    if part is not None and not server.held_by_clients:
        entries = entries | {name: to_host(part.initial())}
        posterior = part.initial_posterior(server.prior, posterior, entries)
    return replace(server, posterior=posterior, entries=entries, clients=server.clients | {name: NEW_CLIENT})
