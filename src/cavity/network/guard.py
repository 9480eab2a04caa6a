"""The guard of a client: its record of a study, so that it never sends more than was agreed.

There is one file per study (by its hash), kept over all runs of the study and restarts of both sides. It is written
before the update that it allows is sent: a crash can cost an update, but never allows an extra one. It contains

- how many messages were answered, in all runs together;
- the newest message of each run: versions and sequence numbers only grow. The same message again counts once;
- which scalings the server has sent: updates under many scalings would reveal more than the moments of the rows;
- a keyed fingerprint of the rows that were used, and whether the client has left since.

A client whose disk was erased has no record, and counts from zero again.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from jaxtyping import PyTree

from cavity.core.messages import Message
from cavity.errors import CavityError, CheckpointError, DataError, ProtocolError
from cavity.io import serialization
from cavity.io.checkpoints import write_atomically
from cavity.network.protocol import RunConfig

FOLDER, KEY = "guard", "key"
MAX_SCALINGS = 20  # different ones that a server may send, in all runs of a study

Fingerprint = Callable[[bytes], str]  # of the rows, by a key that is never sent


@dataclass(frozen=True)
class Memory:
    """The contents of the file.

    Attributes:
        answered: the number of messages answered, in all runs.
        newest: run -> version, sequence number and digest of its newest message.
        fingerprint: of the rows; empty before the first update, and after leaving.
        left: whether the server was asked to withdraw this client.
        scalings: digests of those that the server has sent.
    """

    answered: int = 0
    newest: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    fingerprint: str = ""
    left: bool = False
    scalings: tuple[str, ...] = ()


def write_privately(file: Path, content: bytes) -> None:
    """Write a file that only its owner can read, in a folder that only they can open."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(file, content)
    file.chmod(0o600)


class Guard:
    """Decides whether a message is answered.

    Args:
        folder: of the client.
        study: the hash of the study.
        fingerprint: of this client's rows; None does not check them.
        write: writes a file that only its owner can read.
    """

    def __init__(
        self,
        folder: Path,
        study: str,
        fingerprint: Fingerprint | None = None,
        *,
        write: Callable[[Path, bytes], None] = write_privately,
    ):
        self._folder, self._fingerprint, self._put = folder / FOLDER, fingerprint, write
        self._file = self._folder / f"{study}.json"
        self._memory = self._read()

    @property
    def answered(self) -> int:
        """The number of messages that were answered so far."""
        return self._memory.answered

    def check_rows(self) -> None:
        """Raise DataError if the rows are not those that this client has used before in this study."""
        known = self._memory.fingerprint
        if known and self._own_fingerprint() != known:
            raise DataError(
                "the rows have changed since this client's first update in this study. Restore the old file; or leave "
                "the study (`cavity leave`, then start this client once so that it informs the server) and return "
                "with the new rows: `cavity client --rejoin`"
            )

    def remember_rows(self) -> None:
        """Store the fingerprint of the rows: from now on they must stay the same."""
        self.check_rows()
        if self._fingerprint is not None and not self._memory.fingerprint:
            self._write(replace(self._memory, fingerprint=self._own_fingerprint()))

    def leave(self) -> None:
        """Record that this client leaves: it may return with other rows."""
        if not self._memory.left:
            self._write(replace(self._memory, fingerprint="", left=True))

    def rejoin(self) -> None:
        """Return to the study; raises CavityError if this client has not left."""
        if not self._memory.left:
            raise CavityError(
                "this client has not left the study; run `cavity leave`, then start the client without --rejoin so "
                "that it informs the server"
            )
        self._write(replace(self._memory, left=False))

    def count(self, run: str, run_config: RunConfig, message: Message, limit: int) -> None:
        """Count a message that is about to be answered; the same one again counts once.

        Args:
            run: of the study.
            run_config: received with it. An initialisation is counted by itself, and may start at version 0 again.
            message: from the server.
            limit: the number of messages that may be answered in all runs.

        Raises:
            ProtocolError: it is older than one that was answered, has the same number as another message, or exceeds
                the limit.
        """
        digest = hashlib.sha256(serialization.to_bytes((run_config, message))).hexdigest()
        key = f"{run} start" if run_config.initialising else run
        number, newest = (message.version, message.sequence), self._memory.newest.get(key)
        if newest is not None and newest == (*number, digest):
            return
        if newest is not None and not run_config.initialising and number <= newest[:2]:
            raise ProtocolError(
                f"its version {number[0]} and sequence number {number[1]} do not come after {newest[0]} and "
                f"{newest[1]}, which were answered already"
            )
        if self.answered >= limit:
            raise ProtocolError(
                f"this client has answered {self.answered} messages in all runs of this study, and the limit is "
                f"{limit}; if more rounds are needed, agree on a study file with a larger `rounds`"
            )
        newest = self._memory.newest | {key: (*number, digest)}
        self._write(replace(self._memory, answered=self.answered + 1, newest=newest))

    def count_scaling(self, scaling: PyTree) -> None:
        """Count a scaling before it is used; the same one again counts once. Raises ProtocolError above the limit."""
        digest = hashlib.sha256(serialization.to_bytes(scaling)).hexdigest()
        if digest in self._memory.scalings:
            return
        if len(self._memory.scalings) >= MAX_SCALINGS:
            raise ProtocolError(f"this client has received {MAX_SCALINGS} scalings of this study, and accepts no other")
        self._write(replace(self._memory, scalings=(*self._memory.scalings, digest)))

    def _own_fingerprint(self) -> str:
        assert self._fingerprint is not None
        file = self._folder / KEY
        if not file.exists():
            self._put(file, secrets.token_bytes(32))
        return self._fingerprint(file.read_bytes())

    def _read(self) -> Memory:
        if not self._file.exists():
            return Memory()
        try:
            values = json.loads(self._file.read_text())
            newest = {run: (int(v), int(s), str(digest)) for run, (v, s, digest) in values["newest"].items()}
            scalings = tuple(map(str, values["scalings"]))
            return Memory(int(values["answered"]), newest, str(values["fingerprint"]), bool(values["left"]), scalings)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise CheckpointError(
                f"{self._file}: cannot be read, so the number of answered messages is unknown; restore it from a backup"
            ) from None

    def _write(self, memory: Memory) -> None:
        self._put(self._file, json.dumps(asdict(memory)).encode())
        self._memory = memory
