"""An engine whose clients are reached through a `Transport`: sends the ledger's messages, returns checked replies.

The engine keeps no state that matters. If a message, a connection or the transport is lost, the ledger abandons the
message and asks again. A reply of wrong shapes, or with numbers out of bounds, is refused here and logged; its client
gets the reason with its next message.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import PyTree

from cavity.core import Algorithm, Engine
from cavity.core.messages import Message, Reply
from cavity.errors import ProtocolError, printable
from cavity.network.protocol import Kind, RunConfig, check_reply
from cavity.network.session import POLL_SECONDS, Session
from cavity.network.transport import Delivery, TransportLost

logger = logging.getLogger("cavity")


@dataclass
class Awaited:
    """A message without a reply so far: its client, its deadline and its content."""

    client: str
    until: float
    message: Message


@runtime_checkable
class ReplyBounds(Protocol):
    """What the study's declared ranges say about replies."""

    def problem_with(self, posterior: PyTree) -> str | None:
        """Why clients would refuse this posterior, or None."""
        ...

    def problem_with_reply(self, message: Message, reply: Reply) -> str | None:
        """Why no rows can have given this reply, or None."""
        ...


class NetworkEngine(Engine):
    """Sends messages to the clients of a `Session`, and returns the replies that pass the checks.

    Args:
        algorithm: the method.
        session: with the clients.
        run_config: sent with every message.
        least: the number of connected clients that a round needs.
        own: runs the server's own entries, for a prior outside the family.
        own_names: the names of these entries.
        bounds: on replies; None has none.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        session: Session,
        run_config: RunConfig,
        *,
        least: int = 1,
        own: Engine | None = None,
        own_names: Sequence[str] = (),
        bounds: ReplyBounds | None = None,
    ):
        self._algorithm, self._session, self._run_config, self._least = algorithm, session, run_config, least
        self._own, self._own_names, self._bounds = own, tuple(own_names), bounds
        self._queue: list[Message] = []
        self._awaited: dict[str, Awaited] = {}  # by the number of the message
        self._notices: dict[str, str] = {}
        self._refused: list[str] = []

    @property
    def interrupted(self) -> bool:
        return self._session.interrupted()

    def problem_with(self, posterior: PyTree) -> str | None:
        return None if self._bounds is None else self._bounds.problem_with(posterior)

    def available(self, names: Sequence[str]) -> list[str]:
        busy = {awaited.client for awaited in self._awaited.values()}
        others = [name for name in names if name not in self._own_names]
        least = 0 if busy else min(self._least, len(others))
        found = self._session.wait_for(others, least) | busy | set(self._own_names)
        return [name for name in names if name in found]

    def submit(self, message: Message) -> None:
        if message.client in self._own_names:
            assert self._own is not None
            self._own.submit(message)
        else:
            self._queue.append(message)

    def collect(self, num_replies: int) -> list[Reply]:
        self._send()
        # the server's own entries reply at once; they wait for the clients, or an asynchronous run would get them only
        own = [] if self._own is None else self._own.collect(num_replies)
        while self._awaited and not self.interrupted:
            try:
                if replies := self._arrived():
                    return [*own, *replies]
            except TransportLost as error:
                self._awaited = {}
                self._session.lost(error)
            self._session.sleep(POLL_SECONDS if self._awaited else 0.0)
        return own

    def tell(self, client: str, reason: str) -> None:
        self._notices[client] = reason

    def refused(self) -> list[str]:
        refused, self._refused = self._refused, []
        return refused

    def client_states(self) -> dict[str, PyTree]:
        return {} if self._own is None else self._own.client_states()

    def close(self) -> None:
        if self._own is not None:
            self._own.close()

    def _send(self) -> None:
        messages, self._queue = {message.client: message for message in self._queue}, []
        for client in messages:  # a client has one message outstanding; the new one replaces the old
            self._awaited = {number: a for number, a in self._awaited.items() if a.client != client}
        bodies = {
            name: (Kind.WORK, {"message": m, "run_config": self._run_config, "notice": self._notices.pop(name, "")})
            for name, m in messages.items()
        }
        try:
            sent = self._session.send(bodies) if bodies else {}
        except TransportLost as error:
            self._session.lost(error)
            return
        until = self._session.clock() + self._session.config.seconds
        for name, number in sent.items():
            self._awaited[number] = Awaited(name, until, messages[name])

    def _arrived(self) -> list[Reply]:
        replies, now = [], self._session.clock()
        for delivery in self._session.transport.fetch(self._awaited):
            awaited = self._awaited.pop(delivery.number, None)  # None: it has arrived before
            if awaited is not None and (reply := self.reply_of(awaited, delivery)) is not None:
                replies.append(reply)
        for number, awaited in list(self._awaited.items()):
            if now > awaited.until:
                logger.warning("client %r: no reply within %.0f s", awaited.client, self._session.config.seconds)
                self._session.notify(f"{awaited.client} has not replied in time")
                del self._awaited[number]
        return replies

    def reply_of(self, awaited: Awaited, delivery: Delivery) -> Reply | None:
        """The reply in a delivery, after all checks; None if it is refused, with the reason in the log.

        Args:
            awaited: the message that it replies to.
            delivery: as the transport returned it.
        """
        name, message = awaited.client, awaited.message
        if delivery.content is None:
            self._session.notify(f"{name} does not reply: {printable(delivery.problem)}")
            return None
        try:
            envelope = self._session.opened(name, delivery.content)
            if envelope.kind == Kind.LEAVING:
                return None
            reply = envelope.body.get("reply") if envelope.kind == Kind.REPLY else None
            checked = check_reply(self._algorithm, reply, message, self._session.config.largest)
            if self._bounds is not None and (problem := self._bounds.problem_with_reply(message, checked)):
                raise ProtocolError(problem)
            return checked
        except ProtocolError as error:
            logger.warning("client %r: its reply is refused: %s", name, error)
            self._session.notify(f"a reply of {name} is refused: {error}")
            self.tell(name, str(error))
            self._refused.append(name)
            return None
