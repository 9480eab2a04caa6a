"""Messages and replies as they travel: encoded, decoded, and checked against what the method declares."""

from __future__ import annotations

from collections.abc import Callable

from cavity.core import Algorithm
from cavity.core.messages import Message, Reply
from cavity.io import serialization
from cavity.network import protocol
from cavity.network.protocol import Envelope, Kind, check_message, check_reply, decode, encode


def through_encoding(algorithm: Algorithm) -> Callable[[Message | Reply], Message | Reply]:
    """A carrier that takes every item through the real encoding and the checks of its receiver.

    A message that the client's checks refuse, or a reply that the server's checks refuse, raises ProtocolError.
    """
    entries = algorithm.server.entries
    known = (algorithm.prior, None if entries is None else entries.initial(), algorithm.declaration.delta)
    types = serialization.types_in(known)
    sent: dict[tuple[str, int, int], Message] = {}

    def carry(item: Message | Reply) -> Message | Reply:
        is_reply = isinstance(item, Reply)
        kind, name = (Kind.REPLY, "reply") if is_reply else (Kind.WORK, "message")
        content = encode(Envelope(kind.value, "hash", "run", item.client, {name: item}), protocol.unsigned)
        got = decode(content, protocol.unverified, types).body[name]
        key = (item.client, item.version, item.sequence)
        if is_reply:
            return check_reply(algorithm, got, sent[key])
        sent[key] = check_message(algorithm, got, item.client)
        return sent[key]

    return carry
