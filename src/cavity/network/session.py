"""The session of a study's server with its clients: who is connected, and messages to and from them.

A client is connected after it has sent its name, with the signature of its key, and the hash of the same study. A
response that is damaged, of another study or run, or signed by another key is refused without reading its body.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import PyTree

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
from cavity.network.transport import Delivery, Transport, TransportLost

logger = logging.getLogger("cavity")

POLL_SECONDS = 0.2  # between two checks for responses
LOOK_SECONDS = 1.0  # between two checks of who is connected
GREETING_SECONDS = 60.0  # that a client has to send its name
RETRY_SECONDS = 60.0  # before a refused client is asked again


@dataclass(frozen=True)
class SessionConfig:
    """What is common to all messages of a run, and how long to wait.

    Attributes:
        identity: of the study.
        run: the identifier of the run.
        clients: the clients that may take part.
        sign: signs what is sent.
        verify: client -> the check of its signature; None checks nothing.
        types: classes from outside Cavity that responses may contain.
        seconds: time to live of a message: how long a client has to respond.
        largest: bound on the numbers of an update.
        largest_message: bound on the size of a response in bytes.
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
    """The connected clients, and messages to and from them.

    Args:
        transport: carries the messages.
        config: of the run.
        reopen: called when the transport is lost.
        interrupted: whether something else has to be done first; waiting ends then.
        notify: called with lines about the progress.
        clock: the time in seconds.
        sleep: waits for so many seconds.

    Attributes:
        addresses: client -> its address in the transport, for those that are connected.
        leaving: the clients that have asked to be withdrawn.
    """

    def __init__(
        self,
        transport: Transport,
        config: SessionConfig,
        *,
        reopen: Callable[[], None] = lambda: None,
        interrupted: Callable[[], bool] = lambda: False,
        notify: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.transport, self.config, self.interrupted, self.notify = transport, config, interrupted, notify
        self.clock, self.sleep = clock, sleep
        self._reopen = reopen
        self.addresses: dict[str, str] = {}
        self.leaving: set[str] = set()
        self._greetings: dict[str, tuple[str, float]] = {}  # number of a message -> (address, deadline)
        self._refused: dict[str, float] = {}  # address -> when it is asked again
        self._notices: dict[str, str] = {}  # address -> why its last response to a greeting could not be used
        self._looked = -LOOK_SECONDS

    def connected(self) -> set[str]:
        """The clients that are connected and have this study; new ones are greeted."""
        if self.clock() - self._looked >= LOOK_SECONDS:
            self._looked = self.clock()
            try:
                self._look()
            except TransportLost as error:
                self.lost(error)
        return set(self.addresses)

    def wait_for(self, names: Sequence[str], least: int) -> set[str]:
        """Wait until at least so many of these clients are connected, or until interrupted."""
        last = None
        while len(found := self.connected() & set(names)) < least and not self.interrupted():
            missing = [name for name in names if name not in found]
            if missing != last:
                self.notify(f"{len(found)} of {len(names)} connected; waiting for {', '.join(missing)}")
                last = missing
            self.sleep(LOOK_SECONDS)
        return found

    def lost(self, error: TransportLost) -> None:
        """Open the transport again; no client is connected for now."""
        self.notify(f"{error}; restarting it")
        self.addresses, self._greetings, self._refused, self._notices = {}, {}, {}, {}
        self._reopen()

    def send(self, bodies: Mapping[str, tuple[Kind, dict[str, PyTree]]]) -> dict[str, str]:
        """Send a message to each of these clients; client -> its number, for those that could be sent."""
        encoded = {
            self.addresses[name]: self._encoded(name, *bodies[name]) for name in bodies if name in self.addresses
        }
        sent = self.transport.send(encoded, self.config.seconds)
        return {name: sent[address] for name, address in self.addresses.items() if address in sent}

    def opened(self, client: str, content: bytes) -> Envelope:
        """A response of this client; raises ProtocolError if it is not one."""
        if (claimed := claimed_client(content)) != client:
            raise ProtocolError(f"it comes from {client!r}, but names the client '{printable(claimed)}'")
        envelope = self._decoded(client, content)
        if envelope.kind == Kind.HERE:
            return envelope
        if envelope.study != self.config.identity.hash:
            raise ProtocolError("it belongs to another version of the study")
        if envelope.kind == Kind.REFUSAL:
            raise ProtocolError(f"the client refuses: {printable(envelope.body.get('reason'))}")
        if envelope.run != self.config.run:
            raise ProtocolError("it belongs to another run of the study")
        if envelope.kind == Kind.LEAVING:
            self.leaving.add(client)
            self.notify(f"{client} leaves the study")
        return envelope

    def ask_all(self, kind: Kind, names: Sequence[str], body: dict[str, PyTree], seconds: float) -> dict[str, Envelope]:
        """Send the same message to all of these clients; the responses that came in time, by client."""
        found: dict[str, Envelope] = {}
        try:
            awaited = {number: name for name, number in self.send(dict.fromkeys(names, (kind, body))).items()}
            deadline = self.clock() + seconds
            while awaited and self.clock() < deadline:
                for delivery in self.transport.fetch(awaited):
                    name = awaited.pop(delivery.number, None)
                    if name is not None and (envelope := self.response_of(name, delivery)) is not None:
                        found[name] = envelope
                if awaited:
                    self.sleep(POLL_SECONDS)
        except TransportLost as error:
            self.lost(error)
        return found

    def response_of(self, name: str, delivery: Delivery) -> Envelope | None:
        """The response of a client in a delivery; None if it is refused, with the reason in the log."""
        try:
            if delivery.content is None:
                raise ProtocolError(printable(delivery.problem))
            return self.opened(name, delivery.content)
        except ProtocolError as error:
            logger.warning("client %r: %s", name, error)
            return None

    def greeted(self, address: str, known: str | None, delivery: Delivery) -> None:
        """Connect a client that has responded to a greeting, or refuse it.

        Args:
            address: of the client.
            known: its name, if the transport knows it by its key.
            delivery: its response.
        """
        try:
            if delivery.content is None:
                raise ProtocolError(printable(delivery.problem))
            envelope = self._decoded(known or claimed_client(delivery.content), delivery.content)
        except ProtocolError as error:  # it may have been damaged on its way: it is greeted again
            logger.warning("a client at %s (%s) sent no valid greeting: %s", address, known or "unknown", error)
            self._notices[address] = str(error)
            return
        if reason := self._reason_to_refuse(known, envelope):
            logger.warning("a client at %s is refused: %s", address, reason)
            self.notify(f"a client is refused: {reason}")
            self._refused[address] = self.clock() + RETRY_SECONDS
            self.transport.send({address: self._encoded(known or "?", Kind.NO, {"reason": reason})}, GREETING_SECONDS)
            return
        self.addresses[envelope.client] = address
        self.notify(f"{envelope.client} is connected ({len(self.addresses)} of {len(self.config.clients)})")

    def _encoded(self, client: str, kind: Kind, body: dict[str, PyTree]) -> bytes:
        config = self.config
        return encode(Envelope(kind.value, config.identity.hash, config.run, client, body), config.sign)

    def _look(self) -> None:
        reachable, now = self.transport.reachable(), self.clock()
        for name, address in list(self.addresses.items()):
            if address not in reachable:
                del self.addresses[name]
                self.notify(f"{name} is disconnected")
        busy = {address for address, until in self._greetings.values() if now < until} | set(self.addresses.values())
        busy |= {address for address, until in self._refused.items() if now < until}
        new = {address: known for address, known in reachable.items() if address not in busy}
        greetings = {address: self._hello(address, known) for address, known in new.items()}
        for address, number in self.transport.send(greetings, GREETING_SECONDS).items():
            self._greetings[number] = (address, now + GREETING_SECONDS)
        for delivery in self.transport.fetch(self._greetings):
            address, _ = self._greetings.pop(delivery.number, ("", 0.0))
            if address in reachable:
                self.greeted(address, reachable[address], delivery)

    def _hello(self, address: str, known: str | None) -> bytes:
        body = {"settings": self.config.identity.settings, "notice": self._notices.pop(address, "")}
        return self._encoded(known or "?", Kind.HELLO, body)

    def _decoded(self, signer: str, content: bytes) -> Envelope:
        """A message with the signature of this client, which is checked before anything is read."""
        verify = unverified if self.config.verify is None else self.config.verify.get(signer, _never)
        return decode(content, verify, self.config.types, self.config.largest_message)

    def _reason_to_refuse(self, known: str | None, envelope: Envelope) -> str | None:
        name, shown, identity = envelope.client, f"'{printable(envelope.client)}'", self.config.identity
        if known is not None and name != known:
            return f"the key of {known!r} was used by {shown}"
        if envelope.kind != Kind.HERE or name not in self.config.clients:
            return f"the study has no client {shown}"
        if envelope.study != identity.hash:
            differences = differing_keys(identity.settings, envelope.body.get("settings"))
            return f"{shown} has another version of the study: {differences}"
        if name in self.addresses:
            return f"a client {shown} is already connected; a second one is refused"
        return None


def _never(content: bytes, signature: bytes) -> bool:
    """The check for a client without a key: no signature is valid."""
    return False
