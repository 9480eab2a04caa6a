"""The ledger and its invariant: pure functions of server and client state that every engine inherits.

    No client's data count twice, or not at all, whatever is lost, late, repeated or re-ordered.

For every method with entries, `server.posterior == algorithm.rebuild(server.prior, entries)` after each function of
this file. There are two variants, and both run through the same functions:

- **server-held** (the default): the server keeps one entry per client, and a message brings it to its owner.
  A client holds nothing that matters.
- **client-held** (`held_by_clients`): each client keeps its own entry, the server only their product, in one
  joint entry. A client's answer stays *pending* until the server's next message says, in `settled`, whether it
  was accepted and with which exponent; only then the client commits it.

One message per client is outstanding. A reply is accepted if it answers that message and no other, so a
repeated, abandoned or unknown one changes nothing. A message is known by its version and its sequence number: the
pairs of one client's messages only ever grow, even if it leaves and comes back, so that either side can tell a late
one. For this a server writes its checkpoint after each of these functions and before it sends what depends on it, and
a client (`client_ledger.py`) writes what `commit` returns before it replies. Rows live on the host in float64, whatever
precision the clients compute in.

A reply that makes the posterior improper is judged on its own: it is refused by name, and those of the others are
merged without it. So no client can keep the others from going on. One whose replies are refused `MAX_REFUSALS` times in
a entry is set aside: the loop asks it no more, and does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from cavity.core.host import is_finite, is_floating, is_proper, to_host
from cavity.core.messages import (
    NEW_CLIENT,
    Acknowledgement,
    ClientInput,
    ClientRecord,
    Clients,
    Message,
    Reply,
    Report,
    ServerState,
)
from cavity.errors import ProtocolError

if TYPE_CHECKING:
    from cavity.core import Algorithm, CombiningAlgorithm, EntryAlgorithm

JOINT = "*"  # the name under which the client-held variant keeps the product of all factors
LARGE = 100_000  # numbers in an answer from which on a program stacks them; for fewer it would take longer to start
MAX_HALVINGS = 40  # 2^-40 of a delta is nothing: a product that is still improper then is refused
HALVINGS_ALONE = 10  # of the exponent of one reply by itself; one that is improper with the posterior still is refused


def open_ledger(
    algorithm: Algorithm, names: Sequence[str], seed: int = 0, *, held_by_clients: bool = False
) -> ServerState:
    """The state before the first message: t_m = 1 for all m, and q = prior (PVI, Algorithm 1, initialise)."""
    for name in {JOINT} | algorithm.reserved_names:
        if name in names:
            raise ProtocolError(f"no client may be called {name!r}; rename it")
    if held_by_clients and not getattr(algorithm, "entries_multiply", True):
        raise ProtocolError(
            "entries that hold more than a factor (an optimiser's memory), or that are replaced and not multiplied, "
            "cannot be kept by the clients; let the server hold them"
        )
    empty = to_host(algorithm.initial_entry())
    entries = {} if empty is None else {JOINT: empty} if held_by_clients else dict.fromkeys(names, empty)
    prior = to_host(algorithm.prior)
    return ServerState(
        version=0,
        seed=seed,
        prior=prior,
        posterior=_with_places(algorithm, prior, prior, entries),
        entries=entries,
        clients=Clients.new(names),
        method=algorithm.initial_method(len(names)),
        held_by_clients=held_by_clients,
    )


def _with_places(algorithm: Algorithm, prior: PyTree, posterior: PyTree, entries: dict[str, PyTree]) -> PyTree:
    """The posterior with its empty entries: they do not change a product, but a union has a place for each."""
    if not entries or getattr(algorithm, "entries_multiply", True):
        return posterior
    return algorithm.rebuild(prior, list(entries.values()))  # pyright: ignore[reportAttributeAccessIssue]


def dispatch(algorithm: Algorithm, server: ServerState, names: Iterable[str]) -> tuple[ServerState, list[Message]]:
    """Start a message to each of `names`; one that is still outstanding is abandoned by it."""
    clients, records, messages = server.clients, {}, []
    without_entry = ClientInput(
        server.posterior, None, algorithm.shared(server)
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
    """What to tell somebody who names a client that is not there."""
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


@dataclass
class Change:
    """What an algorithm makes of the accepted replies; `exponents` is 0 for one that it could not use."""

    posterior: PyTree
    entries: dict[str, PyTree]
    method: PyTree
    exponents: dict[str, float]
    reasons: dict[str, str] = field(default_factory=dict)


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
    """Merge what may be merged, refuse the rest; the server's half of one exchange.

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
            update = to_host(reply.update) if algorithm.absorbs_in_double else jax.tree.map(np.asarray, reply.update)
            admitted[reply.client] = replace(reply, update=update)
        else:
            outcome.refused.append((reply.client, reason))
    if not admitted:
        return server, outcome

    change = algorithm.absorb(server, list(admitted.values()))
    records = {}
    for name, reply in admitted.items():
        exponent = change.exponents[name]
        records[name] = replace(server.clients[name], waiting=None)
        if exponent > 0:
            settled, report = Acknowledgement(reply.sequence, exponent), _plain(reply.update.report)
            records[name] = replace(records[name], settled=settled, report=report, refusals=0)
            outcome.accepted[name] = exponent
        else:
            reason = change.reasons.get(name, "no exponent makes its product with the rest proper")
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
        if name in clients and name not in algorithm.owned
    }
    return replace(server, clients=clients | counted) if counted else server


def readmit(server: ServerState) -> ServerState:
    """Ask those again that were set aside."""
    again = {name: replace(server.clients[name], refusals=0) for name in server.clients.set_aside}
    return replace(server, clients=server.clients | again) if again else server


def _plain(report: Report) -> Report:
    """In Python's own numbers, which take a quarter of the memory of arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).item(), report)


def absorb_into_entries(algorithm: EntryAlgorithm, server: ServerState, replies: Sequence[Reply]) -> Change:
    """Entry <- merge(entry, delta, exponent) for each reply, and q <- rebuild(prior, entries).

    The algorithm's damping proposes the exponents. Where the product is improper, replies that make it so by themselves
    are refused, and the exponents of the others are halved together until it is proper. This takes few halvings: with
    M replies of which each is proper by itself, 1 / M of all exponents gives the geometric mean of M proper posteriors.
    A posterior that was improper already (under an improper prior, before enough clients have spoken) may stay so.
    """
    gaps = dict(server.gaps) | {reply.client: float(reply.update.report.gap) for reply in replies}
    with jax.enable_x64(True):
        exponents, method = algorithm.damping.choose(
            server.method,
            gaps=np.array(list(gaps.values())),
            staleness=np.array([server.version - reply.version for reply in replies]),
        )
    exponents, method = to_host((exponents, method))
    for halvings in range(MAX_HALVINGS):
        entries, posterior = _merged(algorithm, server, replies, exponents)
        if is_proper(posterior) or not is_proper(server.posterior):
            break
        if halvings == 0 and (bad := _improper_alone(algorithm, server, replies, exponents)):
            return without(bad, server, replies, lambda others: absorb_into_entries(algorithm, server, others))
        exponents, method = exponents / 2, algorithm.damping.backed_off(method)
    else:
        entries, posterior, method, exponents = server.entries, server.posterior, server.method, np.zeros(len(replies))
    chosen = {reply.client: float(exponent) for reply, exponent in zip(replies, exponents, strict=True)}
    return Change(posterior, entries, method, chosen)


def _merged(
    algorithm: EntryAlgorithm, server: ServerState, replies: Sequence[Reply], exponents: Sequence[float] | np.ndarray
) -> tuple[dict[str, PyTree], PyTree]:
    """The entries with these replies, and the posterior of them."""
    entries = dict(server.entries)
    for reply, exponent in zip(replies, exponents, strict=True):
        key = JOINT if server.held_by_clients else reply.client
        entries[key] = algorithm.merge(entries[key], reply.update.delta, exponent)
    return entries, algorithm.rebuild(server.prior, list(entries.values()))


def _improper_alone(
    algorithm: EntryAlgorithm, server: ServerState, replies: Sequence[Reply], exponents: Sequence[float] | np.ndarray
) -> dict[str, str]:
    """Those whose reply makes the posterior improper by itself, with the reason.

    A stale reply, or one of a method whose changes are no quotient of proper distributions, may need a smaller one.
    """

    def is_usable(reply: Reply, exponent: Any) -> bool:
        halvings = algorithm.halvings_alone if reply.version == server.version else HALVINGS_ALONE
        tries = (_merged(algorithm, server, [reply], [exponent / 2**k])[1] for k in range(halvings + 1))
        return any(is_proper(posterior) for posterior in tries)

    bad = [reply.client for reply, e in zip(replies, exponents, strict=True) if not is_usable(reply, e)]
    return dict.fromkeys(bad, "its change alone makes the posterior improper")


def without(
    bad: dict[str, str], server: ServerState, replies: Sequence[Reply], absorb: Callable[[Sequence[Reply]], Change]
) -> Change:
    """What `absorb` makes of the replies without the bad ones, which are refused for the reasons given."""
    others = [reply for reply in replies if reply.client not in bad]
    change = absorb(others) if others else Change(server.posterior, server.entries, server.method, {})
    return replace(change, exponents=change.exponents | dict.fromkeys(bad, 0.0), reasons=change.reasons | bad)


def exchange_of(algorithm: CombiningAlgorithm, server: ServerState) -> PyTree:
    """What everybody is told in a round, from the seed and the version."""
    with jax.enable_x64(True):
        drawn = _jitted_exchange(algorithm, np.uint32(server.seed), np.uint32(server.version), server.method)
    return jax.tree.map(np.asarray, drawn)


@eqx.filter_jit
def _jitted_exchange(algorithm: CombiningAlgorithm, seed: Any, version: Any, method: PyTree) -> PyTree:
    return algorithm.exchange(seed, version, method)


@eqx.filter_jit
def _jitted_combine(
    algorithm: CombiningAlgorithm, posterior: Any, method: Any, exchange: PyTree, updates: Any, share: Any
) -> tuple[Any, Any]:
    # here, and not before: answers of millions of weights would be copied together, and in double
    if isinstance(updates, tuple):
        updates = jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *updates)
    double = jax.tree.map(lambda leaf: leaf.astype(np.float64) if is_floating(leaf) else leaf, updates)
    return algorithm.combine(posterior, method, exchange, double, share)


def absorb_together(algorithm: CombiningAlgorithm, server: ServerState, replies: Sequence[Reply]) -> Change:
    """The next posterior of all these replies, in float64; those that make it infinite by themselves are refused."""
    updates: Any = tuple(reply.update for reply in replies)
    if sum(np.size(leaf) for leaf in jax.tree.leaves(updates[0])) < LARGE:
        updates = jax.tree.map(lambda *leaves: np.stack(leaves), *updates)
    share = np.float64(len(replies) / len(server.clients))
    exchange = exchange_of(algorithm, server)
    with jax.enable_x64(True):
        combined = _jitted_combine(algorithm, server.posterior, server.method, exchange, updates, share)
    posterior, method = to_host(combined)
    usable = is_finite((posterior, method))
    if not usable and len(replies) > 1:
        alone = {reply.client: absorb_together(algorithm, server, [reply]).exponents for reply in replies}
        bad = [name for name, exponents in alone.items() if not exponents[name]]
        bad = dict.fromkeys(bad, "its change alone makes the posterior infinite")
        if bad:
            return without(bad, server, replies, lambda others: absorb_together(algorithm, server, others))
    if not usable:
        posterior, method = server.posterior, server.method
    return Change(posterior, server.entries, method, {reply.client: float(usable) for reply in replies})


def free_energy(server: ServerState, posterior: PyTree) -> float:
    """sum_m F_m(q) + log Z_q, the global free energy at a fixed point (PVI, property 2.2 a), in nats.

    Exact at every synchronous round for the posterior that the clients answered, since q = prior * factors always;
    in a sequential one the local terms are a pass apart. NaN before every client has replied once, and under an
    improper prior, whose constant is anything.
    """
    if len(server.clients.told) < len(server.clients) or not hasattr(type(posterior), "log_partition"):
        return float("nan")
    reports = [record.report for record in server.clients.values()]
    if any(report is None for report in reports):
        return float("nan")
    with jax.enable_x64(True):
        log_z = float(posterior.log_partition - server.prior.log_partition)
    if not np.isfinite(log_z):
        return float("nan")
    return sum(float(report.free_energy) for report in reports if report is not None) + log_z


def withdraw(algorithm: EntryAlgorithm, server: ServerState, name: str) -> ServerState:
    """Forget a client: drop its entry and rebuild. The others must then refine to convergence."""
    if name not in server.clients:
        raise ProtocolError(not_a_member(server, name))
    if server.held_by_clients:
        raise ProtocolError(
            f"client {name!r} keeps its own factor, so the server cannot take it out; "
            "run the study again without this client, or with the factors held by the server"
        )
    entries = algorithm.remaining(server, {key: entry for key, entry in server.entries.items() if key != name})
    return rebuilt(algorithm, replace(server, entries=entries, clients=server.clients.without(name)))


def rebuilt(algorithm: EntryAlgorithm, server: ServerState) -> ServerState:
    """The posterior anew from prior and entries, with the method's state (damping) as at the start.

    Without one factor the product of the others may be improper (they were fitted beside it). Then all entries
    are emptied: a worse start for the refinement, never a wrong end.
    """
    entries, posterior = server.entries, algorithm.rebuild(server.prior, list(server.entries.values()))
    if not is_proper(posterior):
        entries = dict.fromkeys(entries, to_host(algorithm.initial_entry()))
        posterior = algorithm.rebuild(server.prior, list(entries.values()))
        server = abandon(server, server.clients.waiting)  # what is outstanding would change entries that are no more
    method = algorithm.initial_method(len(server.clients))
    return replace(server, version=server.version + 1, posterior=posterior, entries=entries, method=method)


def join(algorithm: Algorithm, server: ServerState, name: str) -> ServerState:
    """Add a client with an empty entry; the posterior does not change until it replies."""
    if name in {JOINT} | algorithm.reserved_names:
        raise ProtocolError(f"no client may be called {name!r}; rename it")
    if name in server.clients:
        raise ProtocolError(f"client {name!r} is a member already; a second one needs another name")
    entries, empty = server.entries, to_host(algorithm.initial_entry())
    if empty is not None and not server.held_by_clients:
        entries = entries | {name: empty}
    posterior = _with_places(algorithm, server.prior, server.posterior, entries)
    return replace(server, posterior=posterior, entries=entries, clients=server.clients | {name: NEW_CLIENT})
