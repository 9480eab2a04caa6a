"""A client's half on a network: resident, with its data and compiled functions; bytes in, bytes out.

Whatever carries the letters only passes bytes to `answer`. All that leaves is a `Letter`, noted in `sent.jsonl` before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavity import ledger
from cavity.core import Algorithm, Data
from cavity.core.messages import ClientState, Message, Reply
from cavity.errors import CavityError, DataError, ProtocolError, printable
from cavity.io import serialization
from cavity.network.client_state import ClientStore, SentLog
from cavity.network.guard import Fingerprint, Guard
from cavity.network.protocol import (
    LARGEST_MESSAGE,
    Envelope,
    Identity,
    Kind,
    RunConfig,
    Sign,
    Verify,
    check_message,
    decode,
    differing_keys,
    encode,
    unsigned,
    unverified,
)
from cavity.simulation.local import LocalEngine

logger = logging.getLogger("cavity")


@dataclass(frozen=True)
class ClientConfig:
    """What a client half is made of, for one setting.

    Attributes:
        algorithm: both halves of the method.
        data: this client's.
        seed: of all randomness.
        keeps_factor: whether the client, and not the server, keeps its factor.
        max_messages: that are answered, in all runs of the study.
        problem_with: why a message is not answered, or None.
    """

    algorithm: Algorithm
    data: Data
    seed: int
    keeps_factor: bool = False
    max_messages: int = 1_000_000
    problem_with: Callable[[Message], str | None] = lambda message: None


@dataclass(frozen=True)
class Site:
    """A client as the study and its own machine know it.

    Attributes:
        name: in the study.
        identity: of the study.
        half: from a setting to what runs.
        sums: of the columns, or, given their scaling, of the formula's matrix, where the study asks for them.
        finish: called with the results by file name.
        types: classes from outside Cavity that the study's own model may send.
        largest_message: how many bytes the server's messages may have.
        fingerprint: of the rows, by a key.
        notes: what the client's owner should know before it takes part.
    """

    name: str
    identity: Identity
    half: Callable[[RunConfig], ClientConfig]
    sums: Callable[[Any], Any]
    finish: Callable[[dict[str, bytes]], None]
    types: frozenset[type] = frozenset()
    largest_message: int = LARGEST_MESSAGE
    fingerprint: Fingerprint | None = None
    notes: tuple[str, ...] = ()


class Worker:
    """Answers letters, one after the other.

    Args:
        site: who answers.
        store: what it keeps.
        sent: what it has sent.
        sign: for what it sends.
        verify: for what it gets.
        leaving: whether it wants to be withdrawn.
        say: life signs.
    """

    def __init__(
        self,
        site: Site,
        store: ClientStore,
        sent: SentLog,
        *,
        sign: Sign = unsigned,
        verify: Verify = unverified,
        leaving: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda line: None,
    ):
        self._site, self._store, self._sent = site, store, sent
        self._sign, self._verify, self._leaving, self._say = sign, verify, leaving, say
        self.guard = Guard(store.folder, site.identity.hash, site.fingerprint)
        self._at: tuple[str, bytes] | None = None  # the run and the setting that the engine below was made for
        self._engine: LocalEngine | None = None
        self.over = ""  # why no more letters are to be expected

    def handle(self, data: bytes) -> bytes:
        """The answer to a letter; there always is one."""
        run = "-"
        try:
            envelope = decode(data, self._verify, self._site.types, self._site.largest_message)
            run = envelope.run
            kind, body, details = self._reply_to(envelope)
        except CavityError as error:
            # what is wrong with the data quotes them, so it is told here and not there
            told = "its data cannot be used; its own log says why" if isinstance(error, DataError) else str(error)
            logger.warning("a letter is not answered: %s", error)
            kind, body, details = Kind.REFUSAL, {"reason": told}, {}
        except Exception as error:  # whatever it is, the server hears no more than its kind, and others go on
            logger.exception("a letter could not be answered")
            self._say(f"a letter could not be answered ({type(error).__name__}); the log has the details")
            kind, body, details = Kind.REFUSAL, {"reason": f"a fault there: {type(error).__name__}"}, {}
        return self._sealed(kind, body, run, **details)

    def _sealed(self, kind: Kind, body: dict[str, Any], run: str, **details: int | str) -> bytes:
        site = self._site
        content = encode(Envelope(kind.value, site.identity.hash, run, site.name, body), self._sign)
        self._sent.note(kind.value, content, **details)
        return content

    def _reply_to(self, envelope: Envelope) -> tuple[Kind, dict[str, Any], dict[str, int | str]]:
        site = self._site
        if envelope.kind == Kind.HELLO:
            if notice := envelope.body.get("notice"):
                self._say(f"the server could not use this client's last answer: {printable(notice)}")
            if envelope.study != site.identity.hash:
                differences = differing_keys(site.identity.settings, envelope.body.get("settings"))
                self._say(f"the server has another version of the study: {differences}")
            return Kind.HERE, {"settings": site.identity.settings}, {}
        if envelope.kind == Kind.NO:
            self.over = f"the server refuses this client: {printable(envelope.body.get('reason'))}"
            return Kind.RECEIVED, {}, {}
        if envelope.study != site.identity.hash:
            raise ProtocolError("the server has another version of the study")
        if envelope.client != site.name:
            raise ProtocolError(f"it is for the client '{printable(envelope.client)}', and this is {site.name!r}")
        if envelope.kind == Kind.END:
            files = envelope.body.get("files", {})
            if not all(isinstance(file, np.ndarray) and file.dtype == np.uint8 for file in files.values()):
                raise ProtocolError("its files are not bytes")
            site.finish({name: file.tobytes() for name, file in files.items()})
            self.over = "done"
            return Kind.RECEIVED, {}, {}
        if self._leaving():
            self._say("asking the server to withdraw this client")
            self.guard.leave()
            return Kind.LEAVING, {}, {}
        if envelope.kind == Kind.SUMS:
            self.guard.remember_rows()
            self.guard.count_scaling(envelope.body.get("scaling"))
            return Kind.TOTALS, {"sums": site.sums(envelope.body.get("scaling"))}, {}
        if envelope.kind == Kind.WORK:
            return self._work(envelope)
        raise ProtocolError(f"a client does not answer {envelope.kind!r}")

    def _work(self, envelope: Envelope) -> tuple[Kind, dict[str, Any], dict[str, int | str]]:
        if notice := envelope.body.get("notice"):
            self._say(f"the server has refused this client's last reply: {printable(notice)}")
        half = self._half(envelope.run, envelope.body.get("setting"))
        message = check_message(half.algorithm, envelope.body.get("message"), self._site.name)
        if problem := half.problem_with(message):
            self._say(f"a message of the server is refused: {problem}")
            raise ProtocolError(problem)
        self.guard.remember_rows()
        self.guard.count(envelope.run, envelope.body["setting"], message, half.max_messages)
        reply = self._answered(envelope.run, message)
        if remark := half.algorithm.remark_on(reply.update.delta, half.data):
            self._say(f"about to be sent: {remark}")
        what = "searching for a start" if envelope.body["setting"].initialising else "answered"
        self._say(f"{what}: version {message.version}, residual {float(np.asarray(reply.update.report.gap)):.1e}")
        return Kind.REPLY, {"reply": reply}, {"version": message.version, "sequence": message.sequence}

    def _answered(self, run: str, message: Any) -> Reply:
        """The reply, after what belongs to it has been written."""
        assert self._engine is not None
        self._engine.submit(message)
        replies = self._engine.collect(1)
        if not replies:
            raise ProtocolError("it was overtaken by a newer message, which is answered already")
        state = self._engine.client_states()[self._site.name]
        if keeps_something(state):
            self._store.write(run, state)
        return replies[0]

    def _half(self, run: str, setting: Any) -> ClientConfig:
        if not isinstance(setting, RunConfig):
            raise ProtocolError("it does not say with what setting to work")
        at = (run, serialization.to_bytes(setting))
        if self._at != at:
            self.guard.count_scaling(setting.scaling)
            half = self._site.half(setting)
            name, keeping = self._site.name, not setting.initialising
            state = self._store.read(run, self._site.types) if keeping else None
            states = {} if state is None else {name: state}
            self._engine = LocalEngine(
                half.algorithm,
                {name: half.data},
                seed=half.seed,
                states=states,
                held_by_clients=half.keeps_factor,
                secret=self._store.secret(),
            )
            self._at, self._made = at, half
        return self._made


def keeps_something(state: ClientState) -> bool:
    """Whether a client's state holds what the server does not have."""
    pending = state.pending
    kept = (state.local, state.entry, state.spent, None if pending is None else pending.local)
    return any(part is not None for part in kept)


def first_reply(site: Site, setting: RunConfig) -> Reply:
    """What a client would answer to the first message of a study; for a look at it before anything is sent."""
    half = site.half(setting)
    server = ledger.open_ledger(half.algorithm, [site.name], half.seed)
    _, messages = ledger.dispatch(half.algorithm, server, [site.name])
    engine = LocalEngine(half.algorithm, {site.name: half.data}, seed=half.seed)
    engine.submit(messages[0])
    return engine.collect(1)[0]
