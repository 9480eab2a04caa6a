"""What a client keeps on its disk: its local state (latents, which are never sent), and the log of what it sent.

The state after each reply is a file of its own, written completely or not at all; the two newest are kept. Each run of
a study has its own folder, so that a restarted run does not use the state of an earlier one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from cavity.core.messages import ClientState
from cavity.errors import CheckpointError
from cavity.io import serialization
from cavity.io.checkpoints import write_atomically
from cavity.io.private_files import private_file, private_folder

logger = logging.getLogger("cavity")
KEPT = 2
_RUN = re.compile(r"[0-9a-zA-Z-]{1,64}")


class ClientStore:
    """The states of one client in one study.

    Args:
        folder: of this study and client; no other process uses it.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def secret(self) -> bytes:
        """32 bytes that only this client knows, created at first use: the source of private randomness."""
        path = self.folder / "secret"
        if not path.exists():
            private_folder(self.folder)
            write_atomically(path, secrets.token_bytes(32))
        return path.read_bytes()

    def write(self, run: str, state: ClientState) -> None:
        """Store a state; the one before it is kept too."""
        folder = self._folder(run)
        numbers = self._numbers(folder)
        number = numbers[-1] + 1 if numbers else 1
        write_atomically(folder / f"{number:08d}.npz", serialization.to_bytes(state))
        for old in numbers[: -(KEPT - 1)]:
            (folder / f"{old:08d}.npz").unlink(missing_ok=True)

    def read(self, run: str, types: Iterable[type] = ()) -> ClientState | None:
        """The newest readable state of a run; None if there is none."""
        folder, types = self._folder(run), list(types)
        for number in reversed(self._numbers(folder)):
            path = folder / f"{number:08d}.npz"
            try:
                state = serialization.from_bytes(path.read_bytes(), types)
            except CheckpointError as error:
                logger.warning("%s: %s; using the state before it", path, error)
                continue
            if isinstance(state, ClientState):
                return state
        return None

    def _folder(self, run: str) -> Path:
        if not _RUN.fullmatch(run):  # received over the network, and used as a folder's name
            raise CheckpointError(f"invalid identifier of a run: {run!r}")
        return self.folder / "runs" / run

    def _numbers(self, folder: Path) -> list[int]:
        found = [path.stem for path in folder.glob("*.npz")] if folder.is_dir() else []
        return sorted(int(stem) for stem in found if stem.isdigit())


class SentLog:
    """`sent.jsonl`: one line per message that was sent, with its time, kind, size and SHA-256."""

    def __init__(self, path: Path):
        self._path = path

    def note(self, kind: str, content: bytes, **details: int | str) -> None:
        """Add a line; it is on the disk before the content is sent.

        Args:
            kind: of the message.
            content: its bytes.
            details: more fields of the line.
        """
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "kind": kind,
            **details,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        private_folder(self._path.parent)
        with open(self._path, "a", encoding="utf-8", opener=private_file) as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
