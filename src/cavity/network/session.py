"""The clients of a study as a `Post` reaches them: who is there, greeting who comes, and questions to all.

A client is here when it has said who it is, with the signature of its key, and has the same study. An answer that is
damaged, of another study or run, or signed by another key, is not looked into.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cavity.errors import ProtocolError, printable
from cavity.network.protocol import (
    LARGEST,
    LARGEST_MESSAGE,
    Envelope,
    Identity,
    Kind,
    Sign,
    Verify,
    claimed_client,
    decode,
    differing_keys,
    encode,
    unsigned,
    unverified,
)
from cavity.network.transport import Delivery, PostLost, Transport

logger = logging.getLogger("cavity")

POLL = 0.2  # seconds between two looks for answers
LOOK = 1.0  # seconds between two looks at who is connected
GREETING = 60.0  # seconds that a client has to say who it is
AGAIN = 60.0  # seconds before a client that was turned away is asked again


@dataclass(frozen=True)
class SessionConfig:
    """What holds for all letters of a run, and how long to wait.

    Attributes:
        identity: of the study.
        run: which run of it.
        clients: who may take part.
        sign: for what is sent.
        verify: client -> the check of its signature; without an entry nothing is checked.
        types: classes from outside Cavity that answers may hold.
        seconds: that a client has for an answer, the time to live of a letter.
        largest: the bound on the numbers of a change.
        largest_message: the bound on the bytes of an answer.
    """

    identity: Identity
    run: str
    clients: tuple[str, ...]
    sign: Sign = unsigned
    verify: Mapping[str, Verify] | None = None
    types: frozenset[type] = frozenset()
    seconds: float = 300.0
    largest: float = LARGEST
    largest_message: int = LARGEST_MESSAGE


class Session:
    """Who is here, and letters to and from them.

    Args:
        post: carries the letters.
        terms: of the run.
        reopen: called when the post is lost.
        asked: whether something else has to be done first; waiting ends then.
        say: life signs.
        clock: seconds.
        sleep: waits.
    """

    def __init__(
        self,
        transport: Transport,
        terms: SessionConfig,
        *,
        reopen: Callable[[], None] = lambda: None,
        asked: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.transport, self.terms, self.asked, self.say = transport, terms, asked, say
        self.clock, self.sleep = clock, sleep
        self._reopen = reopen
        self.homes: dict[str, str] = {}  # client -> its address with the post, of those that are here
        self.leaving: set[str] = set()  # clients that have asked to be withdrawn
        self._greetings: dict[str, tuple[str, float]] = {}  # letter -> (address, until)
        self._turned_away: dict[str, float] = {}  # address -> until when
        self._notices: dict[str, str] = {}  # address -> why its last answer to a greeting was of no use
        self._looked = -LOOK

    def here(self) -> set[str]:
        """The clients that are connected and have this study; others are greeted on the way."""
        if self.clock() - self._looked >= LOOK:
            self._looked = self.clock()
            try:
                self._look()
            except PostLost as error:
                self.lost(error)
        return set(self.homes)

    def wait_for(self, names: Sequence[str], least: int) -> set[str]:
        """Wait until at least so many of these are here, or until something else has to be done."""
        told = None
        while len(found := self.here() & set(names)) < least and not self.asked():
            missing = [name for name in names if name not in found]
            if missing != told:
                self.say(f"{len(found)} of {len(names)} connected; waiting for {', '.join(missing)}")
                told = missing
            self.sleep(LOOK)
        return found

    def lost(self, error: PostLost) -> None:
        """Begin anew with the post; nobody is here for now."""
        self.say(f"{error}; starting it again")
        self.homes, self._greetings, self._turned_away, self._notices = {}, {}, {}, {}
        self._reopen()

    def send(self, envelopes: Mapping[str, tuple[Kind, dict[str, Any]]]) -> dict[str, str]:
        """Client -> number of its letter, of those that could be sent."""
        encoded = {self.homes[name]: self._encoded(name, *envelopes[name]) for name in envelopes if name in self.homes}
        sent = self.transport.send(encoded, self.terms.seconds)
        return {name: sent[home] for name, home in self.homes.items() if home in sent}

    def opened(self, client: str, content: bytes) -> Envelope:
        """An answer of this client; raises ProtocolError where it is not."""
        if (claimed := claimed_client(content)) != client:
            raise ProtocolError(f"it comes from {client!r}, and says that it is from '{printable(claimed)}'")
        envelope = self._decoded(client, content)
        if envelope.kind == Kind.HERE:
            return envelope
        if envelope.study != self.terms.identity.hash:
            raise ProtocolError("it belongs to another version of the study")
        if envelope.kind == Kind.REFUSAL:
            raise ProtocolError(f"the client does not answer: {printable(envelope.body.get('reason'))}")
        if envelope.run != self.terms.run:
            raise ProtocolError("it belongs to another run of the study")
        if envelope.kind == Kind.LEAVING:
            self.leaving.add(client)
            self.say(f"{client} leaves the study")
        return envelope

    def ask_all(self, kind: Kind, names: Sequence[str], body: dict[str, Any], seconds: float) -> dict[str, Envelope]:
        """The same question to all of these; the answers that came in time."""
        found: dict[str, Envelope] = {}
        try:
            awaited = {envelope: name for name, envelope in self.send(dict.fromkeys(names, (kind, body))).items()}
            until = self.clock() + seconds
            while awaited and self.clock() < until:
                for delivery in self.transport.fetch(awaited):
                    name = awaited.pop(delivery.envelope, None)
                    if name is not None and (envelope := self._answer_of(name, delivery)) is not None:
                        found[name] = envelope
                if awaited:
                    self.sleep(POLL)
        except PostLost as error:
            self.lost(error)
        return found

    def _answer_of(self, name: str, delivery: Delivery) -> Envelope | None:
        try:
            if delivery.content is None:
                raise ProtocolError(printable(delivery.problem))
            return self.opened(name, delivery.content)
        except ProtocolError as error:
            logger.warning("client %r: %s", name, error)
            return None

    def _encoded(self, client: str, kind: Kind, body: dict[str, Any]) -> bytes:
        terms = self.terms
        return encode(Envelope(kind.value, terms.identity.hash, terms.run, client, body), terms.sign)

    def _look(self) -> None:
        addresses, now = self.transport.reachable(), self.clock()
        for name, home in list(self.homes.items()):
            if home not in addresses:
                del self.homes[name]
                self.say(f"{name} is gone")
        busy = {address for address, until in self._greetings.values() if now < until} | set(self.homes.values())
        busy |= {address for address, until in self._turned_away.items() if now < until}
        strangers = {address: known for address, known in addresses.items() if address not in busy}
        envelopes = {address: self._hello(address, known) for address, known in strangers.items()}
        for address, envelope in self.transport.send(envelopes, GREETING).items():
            self._greetings[envelope] = (address, now + GREETING)
        for delivery in self.transport.fetch(self._greetings):
            address, _ = self._greetings.pop(delivery.envelope, ("", 0.0))
            if address in addresses:
                self._greeted(address, addresses[address], delivery)

    def _hello(self, address: str, known: str | None) -> bytes:
        body = {"settings": self.terms.identity.settings, "notice": self._notices.pop(address, "")}
        return self._encoded(known or "?", Kind.HELLO, body)

    def _greeted(self, address: str, known: str | None, delivery: Delivery) -> None:
        """A client has said who it is; see whether it can take part."""
        try:
            if delivery.content is None:
                raise ProtocolError(printable(delivery.problem))
            envelope = self._decoded(known or claimed_client(delivery.content), delivery.content)
        except ProtocolError as error:  # it may have been damaged on its way: the next look greets again
            logger.warning("a client at %s (%s) did not say who it is: %s", address, known or "unknown", error)
            self._notices[address] = str(error)
            return
        if reason := self._reason_to_refuse(known, envelope):
            logger.warning("a client at %s is refused: %s", address, reason)
            self.say(f"a client is refused: {reason}")
            self._turned_away[address] = self.clock() + AGAIN
            self.transport.send({address: self._encoded(known or "?", Kind.NO, {"reason": reason})}, GREETING)
            return
        self.homes[envelope.client] = address
        self.say(f"{envelope.client} is connected ({len(self.homes)} of {len(self.terms.clients)})")

    def _decoded(self, signer: str, content: bytes) -> Envelope:
        """A letter with the signature of this client; nothing of it is read before that is checked."""
        verify = unverified if self.terms.verify is None else self.terms.verify.get(signer, _noop)
        return decode(content, verify, self.terms.types, self.terms.largest_message)

    def _reason_to_refuse(self, known: str | None, envelope: Envelope) -> str | None:
        name, shown, identity = envelope.client, f"'{printable(envelope.client)}'", self.terms.identity
        if known is not None and name != known:
            return f"the key of {known!r} was used by {shown}"
        if envelope.kind != Kind.HERE or name not in self.terms.clients:
            return f"the study has no client {shown}"
        if envelope.study != identity.hash:
            differences = differing_keys(identity.settings, envelope.body.get("settings"))
            return f"{shown} has another version of the study: {differences}"
        if name in self.homes:
            return f"a client {shown} is connected already; a second one is refused"
        return None


def _noop(content: bytes, signature: bytes) -> bool:
    """A client without a key of its own is not believed."""
    return False
