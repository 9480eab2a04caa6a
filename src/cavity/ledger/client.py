"""The client's side of the ledger: what a client keeps, and when its update is committed.

A client writes what `commit` returns before it replies. The server's next message says what became of the update, and
`settle` commits or drops it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import PyTree

from cavity.core.host import to_host
from cavity.core.messages import ClientInput, ClientState, ClientUpdate, Message, Pending, Reply
from cavity.errors import ProtocolError
from cavity.ledger.server import entries_of

if TYPE_CHECKING:
    from cavity.core import Algorithm


def open_client(algorithm: Algorithm, data: PyTree, *, held_by_clients: bool = False) -> ClientState:
    """A client's state before its first message."""
    client, part = algorithm.client, algorithm.server.entries
    entry = to_host(part.initial()) if held_by_clients and part is not None else None
    spent = None if client.release is None else jax.tree.map(np.asarray, client.release.initial(data))
    return ClientState(local=client.initial_local(data), entry=entry, spent=spent)


def settle(algorithm: Algorithm, state: ClientState, message: Message) -> ClientState:
    """Commit the pending update with the exponent that the server gave, or drop it if the server refused it."""
    pending, settled = state.pending, message.settled
    if pending is not None and pending.sequence == settled.sequence:
        entry = state.entry
        if entry is not None:
            entry = entries_of(algorithm).merge(entry, to_host(pending.update.delta), settled.exponent)
        return replace(state, local=pending.local, entry=entry, settled=settled.sequence, pending=None)
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
    """Whether a client with local state has already answered a newer message, so that this one must be ignored.

    The server no longer waits for a reply to it, and settling by it would undo what the newer message settled. A client
    without local state answers every message; the server refuses replies that it does not need.
    """
    pending = state.pending
    if pending is None or (state.entry is None and pending.local is None and state.spent is None):
        return False
    return (message.version, message.sequence) < (pending.version, pending.sequence)


def stored_reply(state: ClientState, message: Message) -> Reply | None:
    """The stored reply to the same message, so that a repeated request takes no second step."""
    pending = state.pending
    if pending is None or (pending.version, pending.sequence) != (message.version, message.sequence):
        return None
    return Reply(message.client, pending.version, pending.sequence, pending.update)


def inputs_for(state: ClientState, message: Message) -> ClientInput:
    """The message's contents, with the client's own entry where the client keeps it."""
    return message.inputs if state.entry is None else replace(message.inputs, entry=state.entry)


def commit(
    state: ClientState, message: Message, update: ClientUpdate, local: PyTree, spent: PyTree = None
) -> tuple[ClientState, Reply]:
    """Keep the update as pending and make the reply. A client writes this state before it sends.

    The privacy budget that was spent is committed at once: it stays spent even if the reply is lost or refused.
    """
    pending = Pending(message.sequence, message.version, update, local)
    reply = Reply(message.client, message.version, message.sequence, update)
    return replace(state, pending=pending, spent=spent), reply
