"""What travels between server and client, as bytes: a `Letter` with its header, packed by `cavity.wire` and signed.

A letter says which study it belongs to (by its hash), which run of it (a study may be run anew from its beginning), and
which client it is for or from. One that says anything else, that is damaged, or that another key has signed, is not
looked into any further. Never pickle: `cavity.wire` rebuilds components of Cavity and those that the caller names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from cavity import wire
from cavity.errors import CheckpointError, ProtocolError
from cavity.interfaces import Algorithm, RowAlgorithm
from cavity.state import Message, Record, Reply, Report, record

MAGIC = b"cavity\x00\x01"  # the last byte is the version of the protocol
LARGEST = 1e15  # no number of a sensible change is beyond it
_LENGTH = 2  # bytes that say how long the signature is

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
class Setting(Record):
    """What a client needs besides the study file to build the method: the same for all, and for every round.

    Attributes:
        scaling: of the columns.
        scouting: whether this is the search for the start, which comes before the method itself in some.
        start: where the method starts, as found by scouting; None where it does not scout.
    """

    scaling: PyTree
    scouting: bool = False
    start: PyTree = None


@record
class Letter(Record):
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


def encode(letter: Letter, sign: Sign) -> bytes:
    """A letter as bytes, with its signature before it."""
    content = wire.to_bytes(letter)
    signature = sign(content)
    return MAGIC + len(signature).to_bytes(_LENGTH, "big") + signature + content


def decode(data: bytes, verify: Verify, types: Iterable[type] = ()) -> Letter:
    """The letter in these bytes.

    Raises:
        ProtocolError: it is damaged, not Cavity's, of another version, or not signed by the one it must be from.
    """
    if not data.startswith(MAGIC[:-1]):
        raise ProtocolError("it is not a letter of Cavity's")
    if not data.startswith(MAGIC):
        raise ProtocolError("it is of another version of Cavity; both sides need the same")
    start = len(MAGIC) + _LENGTH
    length = int.from_bytes(data[len(MAGIC) : start], "big")
    signature, content = data[start : start + length], data[start + length :]
    if not verify(content, signature):
        raise ProtocolError("its signature is not that of the key it should be from")
    try:
        letter = wire.from_bytes(content, types)
    except CheckpointError as error:
        raise ProtocolError(f"it cannot be read: {error}") from None
    if not (isinstance(letter, Letter) and isinstance(letter.body, dict) and letter.kind in list(Kind)):
        raise ProtocolError("it is not a letter of Cavity's")
    if not all(isinstance(field, str) for field in (letter.kind, letter.study, letter.run, letter.client)):
        raise ProtocolError("its header is not one of Cavity's")
    return letter


def differing_keys(ours: str, theirs: Any) -> str:
    """The keys in which two studies' settings, in JSON, differ."""
    try:
        a, b = json.loads(ours), json.loads(theirs)
        keys = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key) or (key in a) != (key in b))
    except (TypeError, ValueError, AttributeError):
        return "its settings cannot be read"
    return "it differs in " + ", ".join(keys) if keys else "the settings are the same; the versions of Cavity differ"


def check_message(algorithm: Algorithm, message: Any, client: str) -> Message:
    """A message of this method, for this client; raises ProtocolError with what does not fit."""
    if not isinstance(message, Message) or message.client != client:
        raise ProtocolError("it holds no message for this client")
    _check_header(message)
    _check_like("the posterior", message.brief.posterior, algorithm.prior)
    if message.brief.row is not None:
        _check_like("the row", message.brief.row, algorithm.empty_row())
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
    answer = reply.answer
    if not isinstance(getattr(answer, "report", None), Report):
        raise ProtocolError("it holds no report")
    expected = algorithm.empty_row() if isinstance(algorithm, RowAlgorithm) else algorithm.prior
    _check_like("its change", answer.delta, expected)
    numbers = [np.asarray(leaf) for leaf in jax.tree.leaves(answer.delta)]
    if not all(np.isfinite(leaf).all() for leaf in numbers):
        raise ProtocolError("its change holds a NaN or an infinity")
    size = max((float(np.abs(leaf).max(initial=0.0)) for leaf in numbers), default=0.0)
    if size > largest:
        raise ProtocolError(f"its change holds a number of size {size:.1e}, and the bound is {largest:.1e}")
    report = [np.asarray(leaf) for leaf in (answer.report.residual, answer.report.free_energy, answer.report.steps)]
    report.append(np.asarray(answer.report.converged))
    if not all(leaf.shape == () and leaf.dtype.kind in "biuf" for leaf in report):
        raise ProtocolError("its report is not four numbers")
    if isinstance(algorithm, RowAlgorithm) and not np.isfinite(report[0]):
        raise ProtocolError("its residual is not finite")
    return reply


def _check_header(item: Message | Reply) -> None:
    if not all(type(number) is int and number >= 0 for number in (item.version, item.sequence)):
        raise ProtocolError("its version and sequence are not counts")


def _check_like(what: str, tree: PyTree, reference: PyTree) -> None:
    """The same structure, with arrays of the same shapes and kinds of numbers.

    A posterior that is the union of its factors is longer than its prior, which is a union of none.
    """
    leaves, structure = jax.tree.flatten(tree)
    expected, shape_of_all = jax.tree.flatten(reference)
    if str(structure) != str(shape_of_all):
        raise ProtocolError(f"{what} has another structure than this study's: {structure} instead of {shape_of_all}")
    for leaf, like in zip(leaves, expected, strict=True):
        mine, theirs = np.asarray(leaf), np.asarray(like)
        free = int(theirs.ndim > 1 and theirs.shape[0] == 0)  # axes of any length: the first of a union
        fits = mine.ndim == theirs.ndim and mine.shape[free:] == theirs.shape[free:]
        if not fits or mine.dtype.kind != theirs.dtype.kind:
            raise ProtocolError(
                f"{what} has an array of {mine.dtype} and shape {mine.shape} where this study's has {theirs.dtype} "
                f"and {theirs.shape}"
            )
