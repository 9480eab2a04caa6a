"""What a client remembers of a study so that nobody asks it for more than was agreed.

One file per study (by its hash), kept across runs of the study and restarts of both sides. It is written before what it
allows is sent, so that a crash can cost an answer and never gives one away. It holds

- how many messages were answered, in all runs together;
- the newest message of each run: versions and sequence numbers only grow. The same message again is no new one;
- which scalings the server has named: answers under many would tell more than the moments of the rows;
- a keyed fingerprint of the rows that were answered with, and whether the client has left since.

A client whose disk is wiped remembers nothing, and counts from zero again.
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
MAX_SCALINGS = 20  # different ones that a server may name, in all runs of a study

Fingerprint = Callable[[bytes], str]  # of the rows, by a key that never leaves the client


@dataclass(frozen=True)
class Memory:
    """What the file holds.

    Attributes:
        answered: messages in all runs.
        newest: by run, the version, sequence number and digest of its newest message.
        fingerprint: of the rows; empty before the first answer, and after leaving.
        left: whether the server was asked to withdraw this client.
        scalings: digests of those that the server has named.
    """

    answered: int = 0
    newest: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    fingerprint: str = ""
    left: bool = False
    scalings: tuple[str, ...] = ()


class Guard:
    """Decides whether a message is answered.

    Args:
        folder: of the client.
        study: the hash of the study.
        fingerprint: of this client's rows; None does not look at them.
    """

    def __init__(self, folder: Path, study: str, fingerprint: Fingerprint | None = None):
        self._folder, self._fingerprint = folder / FOLDER, fingerprint
        self._file = self._folder / f"{study}.json"
        self._memory = self._read()

    @property
    def answered(self) -> int:
        """Messages that were answered so far."""
        return self._memory.answered

    def check_rows(self) -> None:
        """Raise DataError where the rows are not those that this client has answered with."""
        known = self._memory.fingerprint
        if known and self._own_fingerprint() != known:
            raise DataError(
                "the rows are not those that this client has answered with in this study. Put the old file back; or "
                "leave (`cavity leave`, and start this client so that it tells the server), and come back with the new "
                "rows by `cavity client --rejoin`"
            )

    def remember_rows(self) -> None:
        """From now on the rows must stay the same."""
        self.check_rows()
        if self._fingerprint is not None and not self._memory.fingerprint:
            self._write(replace(self._memory, fingerprint=self._own_fingerprint()))

    def leave(self) -> None:
        """The server is being told that this client leaves: it may come back with other rows."""
        if not self._memory.left:
            self._write(replace(self._memory, fingerprint="", left=True))

    def rejoin(self) -> None:
        """Come back; raises CavityError where this client has not left."""
        if not self._memory.left:
            raise CavityError(
                "this client has not left the study; ask for it with `cavity leave`, and start the client without "
                "--rejoin so that it tells the server"
            )
        self._write(replace(self._memory, left=False))

    def count(self, run: str, setting: RunConfig, message: Message, most: int) -> None:
        """Count a message that is about to be answered; the same one again counts once.

        Args:
            run: of the study.
            setting: that came with it. A search for a start counts by itself, and may begin again at version 0.
            message: from the server.
            most: how many messages may be answered in all runs.

        Raises:
            ProtocolError: it is older than one that was answered, differs from it under the same number, or is one too
                many.
        """
        digest = hashlib.sha256(serialization.to_bytes((setting, message))).hexdigest()
        key = f"{run} start" if setting.initialising else run
        number, newest = (message.version, message.sequence), self._memory.newest.get(key)
        if newest is not None and newest == (*number, digest):
            return
        if newest is not None and not setting.initialising and number <= newest[:2]:
            raise ProtocolError(
                f"its version {number[0]} and sequence number {number[1]} do not come after {newest[0]} and "
                f"{newest[1]}, which are answered already"
            )
        if self.answered >= most:
            raise ProtocolError(
                f"this client has answered {self.answered} messages of this study, in all its runs, and no more than "
                f"{most} are agreed on; a study that needs more rounds says so in its file"
            )
        newest = self._memory.newest | {key: (*number, digest)}
        self._write(replace(self._memory, answered=self.answered + 1, newest=newest))

    def count_scaling(self, scaling: PyTree) -> None:
        """Count a scaling before it is looked at; the same again counts once. Raises ProtocolError for one too many."""
        digest = hashlib.sha256(serialization.to_bytes(scaling)).hexdigest()
        if digest in self._memory.scalings:
            return
        if len(self._memory.scalings) >= MAX_SCALINGS:
            raise ProtocolError(f"this client has seen {MAX_SCALINGS} scalings of this study, and answers no other")
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
                f"{self._file}: it cannot be read, so it is not known how many messages were answered; put back a copy"
            ) from None

    def _write(self, memory: Memory) -> None:
        self._put(self._file, json.dumps(asdict(memory)).encode())
        self._memory = memory

    def _put(self, file: Path, content: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(file, content)
        file.chmod(0o600)
