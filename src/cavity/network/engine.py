"""Clients behind a `Post` as an engine: messages of the ledger out, and the replies that are fit for it in.

The engine keeps nothing that matters. What it loses (a letter, a connection, the post itself) costs time: the ledger
abandons the message and asks again. An answer of the wrong shapes or beyond all measure is refused here, logged, and
its client told with its next message.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from cavity.core import Algorithm, Engine
from cavity.core.messages import Message, Reply
from cavity.errors import ProtocolError, printable
from cavity.network.protocol import Kind, RunConfig, check_reply
from cavity.network.session import POLL, Session
from cavity.network.transport import Delivery, PostLost

logger = logging.getLogger("cavity")


@dataclass
class Awaited:
    """A letter under way: to whom, until when, and the message in it."""

    client: str
    until: float
    message: Message


@runtime_checkable
class ReplyBounds(Protocol):
    """What the study's ranges say about replies."""

    def problem_with(self, posterior: Any) -> str | None:
        """Why clients would not answer this posterior, or None."""
        ...

    def problem_with_reply(self, message: Message, reply: Reply) -> str | None:
        """Why no rows can have given this reply, or None."""
        ...


class NetworkEngine(Engine):
    """Sends messages to a `Clientele`, and gives the ledger the replies that are fit for it.

    Args:
        algorithm: both halves of the method.
        clientele: the clients.
        setting: that goes with every message.
        least: how many clients must be here for work to go on.
        own: answers for the server's own row, of a prior outside the family.
        own_names: whose rows those are.
        bounds: on what replies ask for; None has none.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        session: Session,
        setting: RunConfig,
        *,
        least: int = 1,
        own: Engine | None = None,
        own_names: Sequence[str] = (),
        bounds: ReplyBounds | None = None,
    ):
        self._algorithm, self._clientele, self._setting, self._least = algorithm, session, setting, least
        self._own, self._own_names, self._bounds = own, tuple(own_names), bounds
        self._queue: list[Message] = []
        self._awaited: dict[str, Awaited] = {}
        self._notices: dict[str, str] = {}
        self._refused: list[str] = []

    @property
    def interrupted(self) -> bool:
        return self._clientele.asked()

    def problem_with(self, posterior: Any) -> str | None:
        return None if self._bounds is None else self._bounds.problem_with(posterior)

    def available(self, names: Sequence[str]) -> list[str]:
        busy = {awaited.client for awaited in self._awaited.values()}
        others = [name for name in names if name not in self._own_names]
        least = 0 if busy else min(self._least, len(others))
        here = self._clientele.wait_for(others, least) | busy | set(self._own_names)
        return [name for name in names if name in here]

    def submit(self, message: Message) -> None:
        if message.client in self._own_names:
            assert self._own is not None
            self._own.submit(message)
        else:
            self._queue.append(message)

    def collect(self, num_replies: int) -> list[Reply]:
        self._send()
        # the server's own row answers at once: it waits for the others, or an asynchronous run would hear it alone
        own = [] if self._own is None else self._own.collect(num_replies)
        while self._awaited and not self.interrupted:
            try:
                if replies := self._arrived():
                    return [*own, *replies]
            except PostLost as error:
                self._awaited = {}
                self._clientele.lost(error)
            self._clientele.sleep(POLL if self._awaited else 0.0)
        return own

    def tell(self, client: str, reason: str) -> None:
        self._notices[client] = reason

    def refused(self) -> list[str]:
        refused, self._refused = self._refused, []
        return refused

    def client_states(self) -> dict[str, Any]:
        return {} if self._own is None else self._own.client_states()

    def close(self) -> None:
        if self._own is not None:
            self._own.close()

    def _send(self) -> None:
        messages, self._queue = {message.client: message for message in self._queue}, []
        for client in messages:  # a client has one message outstanding; the new one abandons the old
            self._awaited = {envelope: a for envelope, a in self._awaited.items() if a.client != client}
        bodies = {
            name: (Kind.WORK, {"message": m, "setting": self._setting, "notice": self._notices.pop(name, "")})
            for name, m in messages.items()
        }
        try:
            sent = self._clientele.send(bodies) if bodies else {}
        except PostLost as error:
            self._clientele.lost(error)
            return
        until = self._clientele.clock() + self._clientele.terms.seconds
        for name, envelope in sent.items():
            self._awaited[envelope] = Awaited(name, until, messages[name])

    def _arrived(self) -> list[Reply]:
        replies, now = [], self._clientele.clock()
        for delivery in self._clientele.transport.fetch(self._awaited):
            awaited = self._awaited.pop(delivery.envelope, None)  # None: it came before
            if awaited is not None and (reply := self._reply_of(awaited, delivery)) is not None:
                replies.append(reply)
        for envelope, awaited in list(self._awaited.items()):
            if now > awaited.until:
                logger.warning("client %r: no answer within %.0f s", awaited.client, self._clientele.terms.seconds)
                self._clientele.say(f"{awaited.client} has not answered in time")
                del self._awaited[envelope]
        return replies

    def _reply_of(self, awaited: Awaited, delivery: Delivery) -> Reply | None:
        name, message = awaited.client, awaited.message
        if delivery.content is None:
            self._clientele.say(f"{name} does not answer: {printable(delivery.problem)}")
            return None
        try:
            envelope = self._clientele.opened(name, delivery.content)
            if envelope.kind == Kind.LEAVING:
                return None
            reply = envelope.body.get("reply") if envelope.kind == Kind.REPLY else None
            checked = check_reply(self._algorithm, reply, message, self._clientele.terms.largest)
            if self._bounds is not None and (problem := self._bounds.problem_with_reply(message, checked)):
                raise ProtocolError(problem)
            return checked
        except ProtocolError as error:
            logger.warning("client %r: its answer is refused: %s", name, error)
            self._clientele.say(f"an answer of {name} is refused: {error}")
            self.tell(name, str(error))
            self._refused.append(name)
            return None
