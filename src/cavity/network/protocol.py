"""The protocol: messages between server and client as signed bytes, and the checks of what was received.

    MAGIC | length of the signature | signature | length of the name | name | content

The name is that of the client that a message is for or from, in plain text, so that its key can be looked up. The
signature covers everything after it, and is checked before anything but the name is read. The content is an `Envelope`
in the encoding of `cavity.io.serialization`, which is not pickle: it rebuilds components of Cavity, and classes that
the caller names.

An envelope states its study (by hash), its run (a study may be restarted) and its client. A message that is damaged,
signed by another key, or of another study, run or client is refused without looking at its body.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

import jax
import numpy as np
from jaxtyping import PyTree

from cavity.core import Algorithm, Declaration
from cavity.core.messages import Message, Record, Reply, Report, record
from cavity.core.types import Leaf
from cavity.errors import CheckpointError, ProtocolError, printable
from cavity.io import serialization
from cavity.ledger import is_proper

MAGIC = b"cavity\x00\x02"  # the last byte is the version of the protocol
LARGEST = 1e15  # bound on the size of the numbers in an update
LARGEST_MESSAGE = 256 * 2**20  # bytes, where the method is not known (`largest_message`)
MAX_STEPS = 10**9  # of a solver, in one update
ROUNDING = 1e-6  # a gap is a divergence; rounding may put it below zero by this much per number of the update
_FLOOR = 16 * 2**20  # bytes for everything but the numbers of an update
_LENGTH, _NAME = 2, 1  # bytes of the two length fields: of the signature, and of the name

Sign = Callable[[bytes], bytes]
Verify = Callable[[bytes, bytes], bool]  # content, signature


class Kind(StrEnum):
    """The kind of a message. The first five are sent by the server, the others by a client."""

    HELLO = "hello"  # asks a client for its name and its study
    SUMS = "sums"  # asks for the sums of columns
    WORK = "work"  # a message of the ledger
    NO = "no"  # the client cannot take part, and why
    END = "end"  # the results
    HERE = "here"  # the response to HELLO
    TOTALS = "totals"  # the response to SUMS
    REPLY = "reply"  # the response to WORK
    REFUSAL = "refusal"  # the client does not respond to this, and why
    LEAVING = "leaving"  # the client asks to be withdrawn
    RECEIVED = "received"  # the response to NO and END


@dataclass(frozen=True)
class Identity:
    """A study in messages: its hash, and its settings in JSON, which show where two studies differ."""

    hash: str
    settings: str


@record
class RunConfig(Record):
    """What a client needs besides the study file to build the method: the same for all clients and rounds.

    Attributes:
        scaling: of the columns; a `Scaling` of the study.
        initialising: whether this is the method's initialisation, a stage that runs before some methods.
        start: where the method starts, as found by its initialisation; None where it has none.
    """

    scaling: PyTree
    initialising: bool = False
    start: PyTree = None


@record
class Envelope(Record):
    """One message, in either direction.

    Attributes:
        kind: a `Kind`.
        study: the hash of the study.
        run: the identifier of the run.
        client: the client that it is for or from.
        body: name -> part. Which parts there are depends on the kind; their types are in `_BODY_TYPES`.
    """

    kind: str
    study: str
    run: str
    client: str
    body: dict[str, PyTree]


def unsigned(content: bytes) -> bytes:
    """The empty signature, for connections within one machine."""
    return b""


def unverified(content: bytes, signature: bytes) -> bool:
    """Accept any signature: the counterpart of `unsigned`."""
    return True


def largest_message(algorithm: Algorithm, num_clients: int = 1) -> int:
    """The largest size of a message of this method, in bytes: four times its numbers per client, plus a floor."""
    return _FLOOR + 4 * num_clients * serialization.num_bytes(
        (algorithm.prior, _entry(algorithm), algorithm.declaration.delta)
    )


def encode(envelope: Envelope, sign: Sign) -> bytes:
    """A message as signed bytes."""
    name = envelope.client.encode()
    if len(name) >= 2 ** (8 * _NAME):
        raise ProtocolError(f"the name of a client has {len(name)} bytes; choose a shorter one")
    content = len(name).to_bytes(_NAME, "big") + name + serialization.to_bytes(envelope)
    signature = sign(content)
    return MAGIC + len(signature).to_bytes(_LENGTH, "big") + signature + content


def claimed_client(data: bytes) -> str:
    """The client that a message claims to be from, before its signature is checked; raises ProtocolError."""
    return _parts(data)[0]


def decode(data: bytes, verify: Verify, types: Iterable[type] = (), largest: int = LARGEST_MESSAGE) -> Envelope:
    """The message in these bytes.

    Args:
        data: as received.
        verify: checks the signature; nothing is read before.
        types: classes from outside Cavity that the message may contain.
        largest: its largest size in bytes.

    Raises:
        ProtocolError: it is damaged, not a message of Cavity, of another version, or has a wrong signature.
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
        raise ProtocolError("it is not a message of Cavity")
    if envelope.client != name:
        raise ProtocolError("it names two clients")
    for key, part in envelope.body.items():
        if not isinstance(part, _BODY_TYPES.get(key, object)):
            raise ProtocolError(f"its {key} is a {type(part).__name__}")
    return envelope


def _parts(data: bytes) -> tuple[str, bytes, bytes]:
    """The name, the signature, and the bytes that are signed."""
    if not data.startswith(MAGIC[:-1]):
        raise ProtocolError("it is not a message of Cavity")
    if not data.startswith(MAGIC):
        raise ProtocolError("it is from another version of Cavity; install the same version on both sides")
    start = len(MAGIC) + _LENGTH
    end = start + int.from_bytes(data[len(MAGIC) : start], "big")
    name_end = end + _NAME + int.from_bytes(data[end : end + _NAME], "big")
    if name_end >= len(data):
        raise ProtocolError("it is incomplete")
    try:
        name = data[end + _NAME : name_end].decode()
    except UnicodeDecodeError:
        raise ProtocolError("its name is not text") from None
    return name, data[start:end], data[end:]


def differing_keys(ours: str, theirs: str | None) -> str:
    """The keys in which the settings of two studies, in JSON, differ."""
    try:
        a, b = json.loads(ours), json.loads(theirs or "")
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


def check_message(algorithm: Algorithm, message: Message | None, client: str) -> Message:
    """Check that a message is one of this method for this client.

    Args:
        algorithm: the study's method.
        message: from the server; None if the envelope has none.
        client: its receiver.

    Raises:
        ProtocolError: with what is wrong.
    """
    if message is None or message.client != client:
        raise ProtocolError("it contains no message for this client")
    _check_header(message)
    if not 0 <= message.settled.exponent < np.inf:
        raise ProtocolError("the exponent of the last reply is not a positive number")
    check_like("the posterior", message.inputs.posterior, algorithm.prior)
    if message.inputs.entry is not None:
        check_like("the entry", message.inputs.entry, _entry(algorithm))
    return message


def check_reply(algorithm: Algorithm, reply: Reply | None, message: Message, largest: float = LARGEST) -> Reply:
    """Check that a reply is one of this method to this message, before the ledger sees it.

    Args:
        algorithm: the study's method, which declares what a client may send.
        reply: from a client; None if the envelope has none.
        message: that it replies to.
        largest: bound on the size of every number in it.

    Raises:
        ProtocolError: with what is wrong: another client, other shapes, a number that is not finite or too large.
    """
    if reply is None:
        raise ProtocolError("it contains no reply")
    _check_header(reply)
    if (reply.client, reply.version, reply.sequence) != (message.client, message.version, message.sequence):
        raise ProtocolError("it replies to another message")
    update, declared = reply.update, algorithm.declaration
    check_like("its update", update.delta, declared.delta)
    numbers = [np.asarray(leaf) for leaf in jax.tree.leaves(update.delta)]
    if not all(np.isfinite(leaf).all() for leaf in numbers):
        raise ProtocolError("its update contains a NaN or an infinity")
    size = max((float(np.abs(leaf).max(initial=0.0)) for leaf in numbers), default=0.0)
    if size > largest:
        raise ProtocolError(f"its update contains a number of size {size:.1e}; the bound is {largest:.1e}")
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
    if not (0 <= steps <= MAX_STEPS and steps == int(steps)):
        raise ProtocolError(f"its number of steps is {steps:.3g}; it must be a count")
    if converged not in (0.0, 1.0):
        raise ProtocolError(f"its convergence is {converged:.3g}; it must be 0 or 1")


def _number(value: PyTree) -> float:
    """A scalar of a report. A client may send anything, so its type is checked before it is used."""
    plain = type(value) in (bool, int, float) or (
        isinstance(value, Leaf) and value.shape == () and value.dtype.kind in "biuf"
    )
    try:
        if plain:
            return float(value)
    except OverflowError:  # an integer with very many digits
        pass
    raise ProtocolError("its report is not four numbers")


def _check_header(item: Message | Reply) -> None:
    if not all(type(number) is int and 0 <= number < 2**32 for number in (item.version, item.sequence)):
        raise ProtocolError("its version and sequence are not counts")


def check_like(what: str, tree: PyTree, reference: PyTree, static: bool = False) -> None:
    """Check that a tree has the structure of a reference, with arrays of the same shapes and kinds of numbers.

    An array of the reference with more than one axis, of which the first has length 0, stands for any length of that
    axis: the posterior of a method whose factors are united is longer than its prior, a union of none.

    Args:
        what: names the tree in the error.
        tree: received.
        reference: as it should be.
        static: whether values must be equal too.

    Raises:
        ProtocolError: with what differs.
    """
    if not static and isinstance(reference, _NUMBERS):
        _check_array(what, tree, np.asarray(reference))
        return
    same = type(tree) is type(reference)
    match reference:
        case str():  # an enumeration of strings arrives as a plain string
            same, pairs = type(tree) in (str, type(reference)) and tree == reference, []
        case dict():
            same = same and tree.keys() == reference.keys()
            pairs = [(tree[key], reference[key], static) for key in reference] if same else []
        case tuple() | list():
            same = same and len(tree) == len(reference)
            pairs = [(mine, like, static) for mine, like in zip(tree, reference, strict=True)] if same else []
        case _ if dataclasses.is_dataclass(reference):
            pairs = [
                (
                    getattr(tree, field.name),
                    getattr(reference, field.name),
                    static or field.metadata.get("static", False),
                )
                for field in (dataclasses.fields(reference) if same else ())
            ]
        case _:
            same, pairs = same and (reference is None or np.array_equal(tree, reference)), []
    if not same:
        raise _other_structure(what, tree, f"a {type(reference).__name__}")
    for mine, like, fixed in pairs:
        check_like(what, mine, like, fixed)


def _check_array(what: str, leaf: PyTree, like: np.ndarray) -> None:
    if not isinstance(leaf, _NUMBERS):
        raise _other_structure(what, leaf, "an array")
    mine = np.asarray(leaf)
    free = int(like.ndim > 1 and like.shape[0] == 0)  # axes of any length
    same = mine.ndim == like.ndim and mine.shape[free:] == like.shape[free:]
    if not same or mine.dtype.kind != like.dtype.kind:
        raise ProtocolError(
            f"{what} has an array of {mine.dtype} and shape {mine.shape} where this study has {like.dtype} and "
            f"{like.shape}"
        )


def _other_structure(what: str, tree: PyTree, expected: str) -> ProtocolError:
    return ProtocolError(f"{what} has another structure than in this study: a {type(tree).__name__} for {expected}")


_NUMBERS = Leaf | float | int
_KINDS = frozenset(kind.value for kind in Kind)
_BODY_TYPES: dict[str, type] = {
    "reply": Reply,
    "message": Message,
    "run_config": RunConfig,
    "notice": str,
    "reason": str,
    "settings": str,
    "files": dict,
}
