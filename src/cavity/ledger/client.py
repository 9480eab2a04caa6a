"""The client's side of the ledger: what it keeps, and when what it answered becomes its own.

A client writes what `commit` returns before it replies, and learns by the server's next message, in `settle`, what
became of its answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxtyping import PyTree

from cavity.core.messages import ClientInput, ClientState, Message, Pending, Reply
from cavity.errors import ProtocolError
from cavity.ledger import to_host

if TYPE_CHECKING:
    from cavity.core import Algorithm


def open_client(algorithm: Algorithm, data: PyTree, *, held_by_clients: bool = False) -> ClientState:
    """A client's state before its first message."""
    entry = to_host(algorithm.initial_entry()) if held_by_clients else None
    return ClientState(local=algorithm.initial_local(data), entry=entry)


def settle(algorithm: Algorithm, state: ClientState, message: Message) -> ClientState:
    """Learn the fate of the pending answer: commit it with the exponent that the server gave, or drop it."""
    pending, settled = state.pending, message.settled
    if pending is not None and pending.sequence == settled.sequence:
        entry = state.entry
        if entry is not None:
            entry = algorithm.merge(entry, to_host(pending.update.delta), settled.exponent)
        return ClientState(local=pending.local, entry=entry, settled=settled.sequence)
    if state.entry is not None and state.settled != settled.sequence:
        raise ProtocolError(
            f"client {message.client!r}: the server accepted its reply {settled.sequence}, but the factor kept "
            f"here is of reply {state.settled}. Restore this client's state from its last backup, or run the "
            "study again with the factors held by the server"
        )
    return replace(state, settled=settled.sequence, pending=None)


def settled_local(state: ClientState, sequence: int) -> PyTree:
    """What a client keeps after its last accepted reply, whose number the server says."""
    pending = state.pending
    return pending.local if pending is not None and pending.sequence == sequence else state.local


def is_stale(state: ClientState, message: Message) -> bool:
    """Whether a client that keeps something has answered a newer message: then this one is to be ignored.

    It was overtaken on its way. The server waits for it no more, and to settle by it would undo what the newer one
    settled. A client that keeps nothing answers whatever comes; the server refuses what it does not want.
    """
    pending = state.pending
    if pending is None or (state.entry is None and pending.local is None):
        return False
    return (message.version, message.sequence) < (pending.version, pending.sequence)


def stored_reply(state: ClientState, message: Message) -> Reply | None:
    """The reply already given to this very message, so that a repeated request takes no second step."""
    pending = state.pending
    if pending is None or (pending.version, pending.sequence) != (message.version, message.sequence):
        return None
    return Reply(message.client, pending.version, pending.sequence, pending.update)


def inputs_for(state: ClientState, message: Message) -> ClientInput:
    """The message's contents, with the client's own entry where the client keeps it."""
    return message.inputs if state.entry is None else replace(message.inputs, entry=state.entry)


def commit(state: ClientState, message: Message, update: Any, local: PyTree) -> tuple[ClientState, Reply]:
    """Keep the answer as pending and make the reply; a client writes this state before it sends."""
    pending = Pending(message.sequence, message.version, update, local)
    return replace(state, pending=pending), Reply(message.client, message.version, message.sequence, update)
