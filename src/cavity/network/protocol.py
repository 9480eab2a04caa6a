"""Messages between server and client as bytes: a header and a body, packed by `cavity.io.serialization` and signed.

    MAGIC | length of the signature | signature | length of the name | name | content

The name is that of the client that a letter is for or from, in plain text, so that its key can be looked up. The
signature is over all that comes after it, and is checked before anything but the name is read. A letter says which
study it belongs to (by its hash), which run of it (a study may be run anew from its beginning), and which client it is
for or from. One that says anything else, that is damaged, or that another key has signed, is not looked into any
further. Never pickle: `cavity.io.serialization` rebuilds components of Cavity and those that the caller names.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from cavity.core import Algorithm, Declaration
from cavity.core.messages import Message, Record, Reply, Report, record
from cavity.errors import CheckpointError, ProtocolError, printable
from cavity.io import serialization
from cavity.ledger import is_proper

MAGIC = b"cavity\x00\x02"  # the last byte is the version of the protocol
LARGEST = 1e15  # no number of a sensible change is beyond it
LARGEST_MESSAGE = 256 * 2**20  # bytes, where nobody knows better (`largest_message`)
MOST_STEPS = 10**9  # of a solver, in one answer
ROUNDING = 1e-6  # by so much per number of a change a residual, which is a divergence, may lie below zero
_FLOOR = 16 * 2**20  # bytes for all but the numbers of a change
_LENGTH, _NAME = 2, 1  # bytes that say how long the signature is, and the name

Sign = Callable[[bytes], bytes]
Verify = Callable[[bytes, bytes], bool]  # content, signature


class Kind(StrEnum):
    """What a letter is about. From the server: the first five; from a client: the others."""

    HELLO = "hello"  # who are you, and which study have you?
    SUMS = "sums"  # the sums of your columns, please
    WORK = "work"  # a message of the ledger
    NO = "no"  # you cannot take part, and why
    END = "end"  # the results
    HERE = "here"
    TOTALS = "totals"
    REPLY = "reply"
    REFUSAL = "refusal"  # I do not answer this, and why
    LEAVING = "leaving"  # withdraw me
    RECEIVED = "received"


@dataclass(frozen=True)
class Identity:
    """A study as the letters know it: its hash, and its settings in JSON, to tell where two studies differ."""

    hash: str
    settings: str


@record
class RunConfig(Record):
    """What a client needs besides the study file to build the method: the same for all, and for every round.

    Attributes:
        scaling: of the columns.
        initialising: whether this is the method's initialisation, a stage that runs before some methods.
        start: where the method starts, as found by its initialisation; None where it has none.
    """

    scaling: PyTree
    initialising: bool = False
    start: PyTree = None


@record
class Envelope(Record):
    """One message either way.

    Attributes:
        kind: a `Kind`.
        study: hash of the study.
        run: which run of it.
        client: for whom, or from whom.
        body: by kind.
    """

    kind: str
    study: str
    run: str
    client: str
    body: dict[str, PyTree]


def unsigned(content: bytes) -> bytes:
    """For connections that do not leave the machine."""
    return b""


def unverified(content: bytes, signature: bytes) -> bool:
    """The counterpart of `unsigned`."""
    return True


def largest_message(algorithm: Algorithm, num_clients: int = 1) -> int:
    """The bytes that a message of this method may have: four times its numbers, for each client, and a floor."""
    return _FLOOR + 4 * num_clients * serialization.num_bytes(
        (algorithm.prior, _entry(algorithm), algorithm.declaration.delta)
    )


def encode(envelope: Envelope, sign: Sign) -> bytes:
    """A letter as bytes, with its signature before it."""
    name = envelope.client.encode()
    if len(name) >= 2 ** (8 * _NAME):
        raise ProtocolError(f"the name of a client has {len(name)} bytes; give it a shorter one")
    content = len(name).to_bytes(_NAME, "big") + name + serialization.to_bytes(envelope)
    signature = sign(content)
    return MAGIC + len(signature).to_bytes(_LENGTH, "big") + signature + content


def claimed_client(data: bytes) -> str:
    """Whose letter it says it is, before anything of it is believed; raises ProtocolError."""
    return _parts(data)[0]


def decode(data: bytes, verify: Verify, types: Iterable[type] = (), largest: int = LARGEST_MESSAGE) -> Envelope:
    """The letter in these bytes.

    Args:
        data: as they came.
        verify: the check of the signature; nothing is read before it.
        types: classes from outside Cavity that it may hold.
        largest: how many bytes it may have.

    Raises:
        ProtocolError: it is damaged, not Cavity's, of another version, or not signed by the one it must be from.
    """
    if len(data) > largest:
        raise ProtocolError(f"it has {len(data):,} bytes, and at most {largest:,} are expected")
    name, signature, signed = _parts(data)
    if not verify(signed, signature):
        raise ProtocolError("its signature is not that of the key it should be from")
    content = memoryview(signed)[_NAME + signed[0] :]
    try:
        envelope = serialization.from_bytes(content, types, serialization.MESSAGE)
    except CheckpointError as error:
        raise ProtocolError(f"it cannot be read: {error}") from None
    if not (isinstance(envelope, Envelope) and envelope.kind in _KINDS):
        raise ProtocolError("it is not a letter of Cavity's")
    if envelope.client != name:
        raise ProtocolError("it names two clients")
    for key, kind in _BODIES.items():
        if key in envelope.body and not isinstance(envelope.body[key], kind):
            raise ProtocolError(f"its {key} is a {type(envelope.body[key]).__name__}")
    return envelope


def _parts(data: bytes) -> tuple[str, bytes, bytes]:
    """Name, signature, and what the signature is over."""
    if not data.startswith(MAGIC[:-1]):
        raise ProtocolError("it is not a letter of Cavity's")
    if not data.startswith(MAGIC):
        raise ProtocolError("it is of another version of Cavity; both sides need the same")
    start = len(MAGIC) + _LENGTH
    end = start + int.from_bytes(data[len(MAGIC) : start], "big")
    name_end = end + _NAME + int.from_bytes(data[end : end + _NAME], "big")
    if name_end >= len(data):
        raise ProtocolError("it is cut off")
    try:
        name = data[end + _NAME : name_end].decode()
    except UnicodeDecodeError:
        raise ProtocolError("its name is not text") from None
    return name, data[start:end], data[end:]


def differing_keys(ours: str, theirs: Any) -> str:
    """The keys in which two studies' settings, in JSON, differ."""
    try:
        a, b = json.loads(ours), json.loads(theirs)
        keys = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key) or (key in a) != (key in b))
    except (TypeError, ValueError, AttributeError, RecursionError):
        return "its settings cannot be read"
    if keys:
        return f"it differs in {printable(', '.join(keys))}"
    return "the settings are the same; the versions of Cavity differ"


def _entry(algorithm: Algorithm) -> PyTree:
    """An entry of this method; None for methods without entries."""
    part = algorithm.server.entries
    return None if part is None else part.initial()


def check_message(algorithm: Algorithm, message: Any, client: str) -> Message:
    """A message of this method, for this client; raises ProtocolError with what does not fit."""
    if not isinstance(message, Message) or message.client != client:
        raise ProtocolError("it holds no message for this client")
    _check_header(message)
    if not 0 <= message.settled.exponent < np.inf:
        raise ProtocolError("the exponent of the last reply is not a positive number")
    check_like("the posterior", message.inputs.posterior, algorithm.prior)
    if message.inputs.entry is not None:
        check_like("the entry", message.inputs.entry, _entry(algorithm))
    return message


def check_reply(algorithm: Algorithm, reply: Any, message: Message, largest: float = LARGEST) -> Reply:
    """A reply of this method to this message.

    Raises:
        ProtocolError: with what does not fit: another client's, of other shapes, not finite, beyond all measure.
    """
    if not isinstance(reply, Reply):
        raise ProtocolError("it holds no reply")
    _check_header(reply)
    if (reply.client, reply.version, reply.sequence) != (message.client, message.version, message.sequence):
        raise ProtocolError("it answers another message")
    update = reply.update
    if not isinstance(update.report, Report):
        raise ProtocolError("it holds no report")
    declared = algorithm.declaration
    check_like("its update", update.delta, declared.delta)
    numbers = [np.asarray(leaf) for leaf in jax.tree.leaves(update.delta)]
    if not all(np.isfinite(leaf).all() for leaf in numbers):
        raise ProtocolError("its change holds a NaN or an infinity")
    size = max((float(np.abs(leaf).max(initial=0.0)) for leaf in numbers), default=0.0)
    if size > largest:
        raise ProtocolError(f"its change holds a number of size {size:.1e}, and the bound is {largest:.1e}")
    least = -ROUNDING * (1 + sum(leaf.size for leaf in numbers))
    _check_report(declared, update.report, message, least, largest)
    return reply


def _check_report(declared: Declaration, report: Report, message: Message, least: float, largest: float) -> None:
    """Check every number of a report against what the method declares.

    A gap may be infinite where the posterior received is improper (a flat prior, before enough clients have replied).
    """
    gap, free_energy, steps, converged = (
        _number(value) for value in (report.gap, report.free_energy, report.steps, report.converged)
    )
    if gap == np.inf and declared.gap and not is_proper(message.inputs.posterior):
        gap = 0.0
    if not (least <= gap <= largest or (np.isnan(gap) and not declared.gap)):
        allowed = "" if declared.gap else ", or NaN"
        raise ProtocolError(f"its gap is {gap:.3g}; it must be finite and not negative{allowed}")
    if not (abs(free_energy) <= largest or (np.isnan(free_energy) and not declared.bound)):
        allowed = "" if declared.bound else ", or NaN"
        raise ProtocolError(f"its free energy is {free_energy:.3g}; it must be finite{allowed}")
    if not (0 <= steps <= MOST_STEPS and steps == int(steps)):
        raise ProtocolError(f"its number of steps is {steps:.3g}; it must be a count")
    if converged not in (0.0, 1.0):
        raise ProtocolError(f"its mark of convergence is {converged:.3g}; it must be 0 or 1")


def _number(value: Any) -> float:
    plain = type(value) in (bool, int, float) or (
        isinstance(value, (np.ndarray, np.generic, jax.Array)) and value.shape == () and value.dtype.kind in "biuf"
    )
    try:
        if plain:
            return float(value)
    except OverflowError:  # an integer of very many digits
        pass
    raise ProtocolError("its report is not four numbers")


def _check_header(item: Message | Reply) -> None:
    if not all(type(number) is int and 0 <= number < 2**32 for number in (item.version, item.sequence)):
        raise ProtocolError("its version and sequence are not counts")


def check_like(what: str, tree: Any, reference: Any, static: bool = False) -> None:
    """The same structure, with arrays of the same shapes and kinds of numbers.

    A posterior that is the union of its factors is longer than its prior, which is a union of none.

    Args:
        what: for the message.
        tree: from a peer.
        reference: as it should be.
        static: whether values must be equal too.
    """
    if not static and isinstance(reference, (np.ndarray, np.generic, jax.Array, float, int)):
        _check_array(what, tree, np.asarray(reference))
        return
    fits = isinstance(tree, str) if isinstance(reference, str) else type(tree) is type(reference)
    if fits and isinstance(reference, (eqx.Module, Record)):
        for field in dataclasses.fields(reference):  # pyright: ignore[reportArgumentType]
            fixed = static or field.metadata.get("static", False)
            check_like(what, getattr(tree, field.name), getattr(reference, field.name), fixed)
        return
    if isinstance(reference, dict):
        fits = fits and tree.keys() == reference.keys()
        pairs = [(tree[key], reference[key]) for key in reference] if fits else []
    elif isinstance(reference, (tuple, list)):
        fits = fits and len(tree) == len(reference)
        pairs = list(zip(tree, reference, strict=True)) if fits else []
    else:
        pairs = []
        fits = fits and (reference is None or np.array_equal(tree, reference))
    if not fits:
        raise ProtocolError(f"{what} has another structure than this study's: {_shown(tree)} for {_shown(reference)}")
    for child, like in pairs:
        check_like(what, child, like, static)


def _check_array(what: str, leaf: Any, like: np.ndarray) -> None:
    if not isinstance(leaf, (np.ndarray, np.generic, jax.Array, float, int)):
        raise ProtocolError(f"{what} has another structure than this study's: {_shown(leaf)} for an array")
    mine = np.asarray(leaf)
    free = int(like.ndim > 1 and like.shape[0] == 0)  # axes of any length: the first of a union
    fits = mine.ndim == like.ndim and mine.shape[free:] == like.shape[free:]
    if not fits or mine.dtype.kind != like.dtype.kind:
        raise ProtocolError(
            f"{what} has an array of {mine.dtype} and shape {mine.shape} where this study's has {like.dtype} "
            f"and {like.shape}"
        )


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}"


_KINDS = frozenset(kind.value for kind in Kind)
_BODIES = {"reply": Reply, "message": Message, "setting": RunConfig, "notice": str, "reason": str, "settings": str}
_BODIES |= {"files": dict}
