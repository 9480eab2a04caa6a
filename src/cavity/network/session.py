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
    Identity,
    Kind,
    Letter,
    Sign,
    Verify,
    claimed_client,
    decode,
    differing_keys,
    encode,
    unsigned,
    unverified,
)
from cavity.network.transport import Delivery, Post, PostLost

logger = logging.getLogger("cavity")

POLL = 0.2  # seconds between two looks for answers
LOOK = 1.0  # seconds between two looks at who is connected
GREETING = 60.0  # seconds that a client has to say who it is
AGAIN = 60.0  # seconds before a client that was turned away is asked again


@dataclass(frozen=True)
class Terms:
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


class Clientele:
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
        post: Post,
        terms: Terms,
        *,
        reopen: Callable[[], None] = lambda: None,
        asked: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.post, self.terms, self.asked, self.say = post, terms, asked, say
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

    def send(self, letters: Mapping[str, tuple[Kind, dict[str, Any]]]) -> dict[str, str]:
        """Client -> number of its letter, of those that could be sent."""
        encoded = {self.homes[name]: self._encoded(name, *letters[name]) for name in letters if name in self.homes}
        sent = self.post.send(encoded, self.terms.seconds)
        return {name: sent[home] for name, home in self.homes.items() if home in sent}

    def opened(self, client: str, content: bytes) -> Letter:
        """An answer of this client; raises ProtocolError where it is not."""
        if (claimed := claimed_client(content)) != client:
            raise ProtocolError(f"it comes from {client!r}, and says that it is from '{printable(claimed)}'")
        letter = self._decoded(client, content)
        if letter.kind == Kind.HERE:
            return letter
        if letter.study != self.terms.identity.hash:
            raise ProtocolError("it belongs to another version of the study")
        if letter.kind == Kind.REFUSAL:
            raise ProtocolError(f"the client does not answer: {printable(letter.body.get('reason'))}")
        if letter.run != self.terms.run:
            raise ProtocolError("it belongs to another run of the study")
        if letter.kind == Kind.LEAVING:
            self.leaving.add(client)
            self.say(f"{client} leaves the study")
        return letter

    def ask_all(self, kind: Kind, names: Sequence[str], body: dict[str, Any], seconds: float) -> dict[str, Letter]:
        """The same question to all of these; the answers that came in time."""
        found: dict[str, Letter] = {}
        try:
            awaited = {letter: name for name, letter in self.send(dict.fromkeys(names, (kind, body))).items()}
            until = self.clock() + seconds
            while awaited and self.clock() < until:
                for delivery in self.post.fetch(awaited):
                    name = awaited.pop(delivery.letter, None)
                    if name is not None and (letter := self._answer_of(name, delivery)) is not None:
                        found[name] = letter
                if awaited:
                    self.sleep(POLL)
        except PostLost as error:
            self.lost(error)
        return found

    def _answer_of(self, name: str, delivery: Delivery) -> Letter | None:
        try:
            if delivery.content is None:
                raise ProtocolError(printable(delivery.problem))
            return self.opened(name, delivery.content)
        except ProtocolError as error:
            logger.warning("client %r: %s", name, error)
            return None

    def _encoded(self, client: str, kind: Kind, body: dict[str, Any]) -> bytes:
        terms = self.terms
        return encode(Letter(kind.value, terms.identity.hash, terms.run, client, body), terms.sign)

    def _look(self) -> None:
        addresses, now = self.post.reachable(), self.clock()
        for name, home in list(self.homes.items()):
            if home not in addresses:
                del self.homes[name]
                self.say(f"{name} is gone")
        busy = {address for address, until in self._greetings.values() if now < until} | set(self.homes.values())
        busy |= {address for address, until in self._turned_away.items() if now < until}
        strangers = {address: known for address, known in addresses.items() if address not in busy}
        letters = {address: self._hello(address, known) for address, known in strangers.items()}
        for address, letter in self.post.send(letters, GREETING).items():
            self._greetings[letter] = (address, now + GREETING)
        for delivery in self.post.fetch(self._greetings):
            address, _ = self._greetings.pop(delivery.letter, ("", 0.0))
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
            letter = self._decoded(known or claimed_client(delivery.content), delivery.content)
        except ProtocolError as error:  # it may have been damaged on its way: the next look greets again
            logger.warning("a client at %s (%s) did not say who it is: %s", address, known or "unknown", error)
            self._notices[address] = str(error)
            return
        if reason := self._reason_to_refuse(known, letter):
            logger.warning("a client at %s is refused: %s", address, reason)
            self.say(f"a client is refused: {reason}")
            self._turned_away[address] = self.clock() + AGAIN
            self.post.send({address: self._encoded(known or "?", Kind.NO, {"reason": reason})}, GREETING)
            return
        self.homes[letter.client] = address
        self.say(f"{letter.client} is connected ({len(self.homes)} of {len(self.terms.clients)})")

    def _decoded(self, signer: str, content: bytes) -> Letter:
        """A letter with the signature of this client; nothing of it is read before that is checked."""
        verify = unverified if self.terms.verify is None else self.terms.verify.get(signer, _nobody)
        return decode(content, verify, self.terms.types, self.terms.largest_message)

    def _reason_to_refuse(self, known: str | None, letter: Letter) -> str | None:
        name, shown, identity = letter.client, f"'{printable(letter.client)}'", self.terms.identity
        if known is not None and name != known:
            return f"the key of {known!r} was used by {shown}"
        if letter.kind != Kind.HERE or name not in self.terms.clients:
            return f"the study has no client {shown}"
        if letter.study != identity.hash:
            differences = differing_keys(identity.settings, letter.body.get("settings"))
            return f"{shown} has another version of the study: {differences}"
        if name in self.homes:
            return f"a client {shown} is connected already; a second one is refused"
        return None


def _nobody(content: bytes, signature: bytes) -> bool:
    """A client without a key of its own is not believed."""
    return False
