"""A client's worker: receives messages as bytes and returns responses as bytes.

It stays in memory with its data and its compiled functions. The transport only passes bytes to `Worker.handle`. Every
response is an `Envelope`, recorded in `sent.jsonl` before it is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import PyTree

from cavity import ledger
from cavity.core import Algorithm, Data, Engine
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
    """What runs at a client, for one `RunConfig`.

    Attributes:
        algorithm: the method.
        data: of this client.
        seed: the random seed of the study.
        keeps_factor: whether the client, and not the server, keeps its factor.
        max_messages: the number of messages that the client replies to, in all runs of the study.
        problem_with: why the client refuses a message, or None.
    """

    algorithm: Algorithm
    data: Data
    seed: int
    keeps_factor: bool = False
    max_messages: int = 1_000_000
    problem_with: Callable[[Message], str | None] = lambda message: None


@dataclass(frozen=True)
class Site:
    """A client of a study with its data.

    Attributes:
        name: in the study.
        identity: of the study.
        client_config: from a `RunConfig` to what runs.
        sums: the sums of the columns (given None), or of the formula's matrix (given the scaling of the columns).
        finish: called at the end with the results, by file name, the shared posterior and the run configuration, where
            the client needs them for results of its own.
        types: classes from outside Cavity that the study's own model may send.
        largest_message: the largest size of the server's messages, in bytes.
        fingerprint: of the rows, by a key; None does not check them.
        notes: what the client's owner should know before it takes part.
    """

    name: str
    identity: Identity
    client_config: Callable[[RunConfig], ClientConfig]
    sums: Callable[[PyTree], PyTree]
    finish: Callable[[dict[str, bytes], PyTree, RunConfig | None], None]
    types: frozenset[type] = frozenset()
    largest_message: int = LARGEST_MESSAGE
    fingerprint: Fingerprint | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Response:
    """A response before it is encoded.

    Attributes:
        kind: of the message.
        body: by name.
        details: for the log of what was sent.
    """

    kind: Kind
    body: dict[str, PyTree]
    details: dict[str, int | str]


@dataclass(frozen=True)
class _Prepared:
    """The engine and what it was built from, kept until another run or `RunConfig` comes."""

    run: str
    run_config: bytes
    config: ClientConfig
    engine: Engine


class Worker:
    """Responds to messages, one after the other.

    Args:
        site: the client.
        store: what it keeps on its disk.
        sent: the log of what it has sent.
        sign: signs what it sends.
        verify: checks what it receives.
        leaving: whether it asks to be withdrawn.
        notify: called with lines about the progress.

    Attributes:
        guard: limits what is answered.
        over: why no more messages are expected; empty while the study runs.
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
        notify: Callable[[str], None] = lambda line: None,
    ):
        self._site, self._store, self._sent = site, store, sent
        self._sign, self._verify, self._leaving, self._notify = sign, verify, leaving, notify
        self.guard = Guard(store.folder, site.identity.hash, site.fingerprint)
        self._prepared: _Prepared | None = None
        self.over = ""

    def handle(self, data: bytes) -> bytes:
        """The response to a message; there always is one."""
        run = "-"
        try:
            envelope = decode(data, self._verify, self._site.types, self._site.largest_message)
            run = envelope.run
            response = self._respond(envelope)
        except DataError as error:  # its text quotes the data, so it stays here
            logger.warning("a message is refused: %s", error)
            response = _refusal("its data cannot be used; its own log says why")
        except CavityError as error:
            logger.warning("a message is refused: %s", error)
            response = _refusal(str(error))
        except Exception as error:  # whatever it is, the server gets its type only, and the client stays up
            logger.exception("an error while handling a message")
            self._notify(f"an error while handling a message ({type(error).__name__}); the log has the details")
            response = _refusal(f"an error at the client: {type(error).__name__}")
        return self._encoded(response, run)

    def _encoded(self, response: Response, run: str) -> bytes:
        site, kind = self._site, response.kind.value
        content = encode(Envelope(kind, site.identity.hash, run, site.name, response.body), self._sign)
        self._sent.note(kind, content, **response.details)
        return content

    def _respond(self, envelope: Envelope) -> Response:
        site = self._site
        if envelope.kind == Kind.HELLO:
            if notice := envelope.body.get("notice"):
                self._notify(f"the server could not use this client's last response: {printable(notice)}")
            if envelope.study != site.identity.hash:
                differences = differing_keys(site.identity.settings, envelope.body.get("settings"))
                self._notify(f"the server has another version of the study: {differences}")
            return Response(Kind.HERE, {"settings": site.identity.settings}, {})
        if envelope.kind == Kind.NO:
            self.over = f"the server refuses this client: {printable(envelope.body.get('reason'))}"
            return Response(Kind.RECEIVED, {}, {})
        if envelope.study != site.identity.hash:
            raise ProtocolError("the server has another version of the study")
        if envelope.client != site.name:
            raise ProtocolError(f"it is for the client '{printable(envelope.client)}', and this is {site.name!r}")
        if envelope.kind == Kind.END:
            files = envelope.body.get("files", {})
            if not all(isinstance(file, np.ndarray) and file.dtype == np.uint8 for file in files.values()):
                raise ProtocolError("its files are not bytes")
            content = {name: file.tobytes() for name, file in files.items()}
            site.finish(content, envelope.body.get("posterior"), envelope.body.get("run_config"))
            self.over = "done"
            return Response(Kind.RECEIVED, {}, {})
        if self._leaving():
            self._notify("asking the server to withdraw this client")
            self.guard.leave()
            return Response(Kind.LEAVING, {}, {})
        if envelope.kind == Kind.SUMS:
            scaling = envelope.body.get("scaling")
            self.guard.remember_rows()
            self.guard.count_scaling(scaling)
            return Response(Kind.TOTALS, {"sums": site.sums(scaling)}, {})
        if envelope.kind == Kind.WORK:
            return self._work(envelope)
        raise ProtocolError(f"a client does not respond to {envelope.kind!r}")

    def _work(self, envelope: Envelope) -> Response:
        if notice := envelope.body.get("notice"):
            self._notify(f"the server has refused this client's last update: {printable(notice)}")
        run_config: RunConfig | None = envelope.body.get("run_config")
        if run_config is None:
            raise ProtocolError("it has no run configuration")
        prepared = self._prepare(envelope.run, run_config)
        config = prepared.config
        message = check_message(config.algorithm, envelope.body.get("message"), self._site.name)
        if problem := config.problem_with(message):
            self._notify(f"a message of the server is refused: {problem}")
            raise ProtocolError(problem)
        self.guard.remember_rows()
        self.guard.count(envelope.run, run_config, message, config.max_messages)
        reply = self._solved(prepared, message)
        if remark := config.algorithm.remark_on(reply.update.delta, config.data):
            self._notify(f"about to be sent: {remark}")
        stage = "initialisation: " if run_config.initialising else ""
        gap = float(np.asarray(reply.update.report.gap))
        change = "" if np.isnan(gap) else f": change {gap:.1e} nats"
        self._notify(f"{stage}sent update for round {message.version + 1}{change}")
        return Response(Kind.REPLY, {"reply": reply}, {"version": message.version, "sequence": message.sequence})

    def _solved(self, prepared: _Prepared, message: Message) -> Reply:
        """The reply, after the state that belongs to it has been written."""
        prepared.engine.submit(message)
        replies = prepared.engine.collect(1)
        if not replies:
            raise ProtocolError("it is older than a message that was answered already")
        state = prepared.engine.client_states()[self._site.name]
        if keeps_something(state):
            self._store.write(prepared.run, state)
        return replies[0]

    def _prepare(self, run: str, run_config: RunConfig) -> _Prepared:
        encoded = serialization.to_bytes(run_config)
        prepared = self._prepared
        if prepared is None or (prepared.run, prepared.run_config) != (run, encoded):
            self.guard.count_scaling(run_config.scaling)
            config, name = self._site.client_config(run_config), self._site.name
            state = None if run_config.initialising else self._store.read(run, self._site.types)
            engine = LocalEngine(
                config.algorithm,
                {name: config.data},
                seed=config.seed,
                states={} if state is None else {name: state},
                held_by_clients=config.keeps_factor,
                secret=self._store.secret(),
            )
            self._prepared = prepared = _Prepared(run, encoded, config, engine)
        return prepared


def _refusal(reason: str) -> Response:
    return Response(Kind.REFUSAL, {"reason": reason}, {})


def keeps_something(state: ClientState) -> bool:
    """Whether a client's state has something that the server does not have."""
    pending = state.pending
    kept = (state.local, state.entry, state.spent, None if pending is None else pending.local)
    return any(part is not None for part in kept)


def first_reply(site: Site, run_config: RunConfig) -> Reply:
    """The client's reply to the first message of a study, computed without sending anything."""
    config = site.client_config(run_config)
    server = ledger.open_ledger(config.algorithm, [site.name], config.seed)
    _, messages = ledger.dispatch(config.algorithm, server, [site.name])
    engine = LocalEngine(config.algorithm, {site.name: config.data}, seed=config.seed)
    engine.submit(messages[0])
    return engine.collect(1)[0]
