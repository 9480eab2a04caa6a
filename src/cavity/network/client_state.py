"""What a client keeps on its disk: the latents that never leave it, with the reply that they belong to.

The state after each reply is a file of its own, written whole or not at all; the two newest are kept. A run of a study
that is begun anew has a folder of its own, so that nothing of an earlier one is taken for its own.
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
        folder: of this study and client; nobody else's.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def secret(self) -> bytes:
        """32 bytes that only this client knows, made at first use: private randomness comes from them."""
        path = self.folder / "secret"
        if not path.exists():
            private_folder(self.folder)
            write_atomically(path, secrets.token_bytes(32))
        return path.read_bytes()

    def write(self, run: str, state: ClientState) -> None:
        """Keep this state, and the one before it."""
        folder = self._folder(run)
        numbers = self._numbers(folder)
        number = numbers[-1] + 1 if numbers else 1
        write_atomically(folder / f"{number:08d}.npz", serialization.to_bytes(state))
        for old in numbers[: -(KEPT - 1)]:
            (folder / f"{old:08d}.npz").unlink(missing_ok=True)

    def read(self, run: str, types: Iterable[type] = ()) -> ClientState | None:
        """The newest state that can be read; None if there is none."""
        folder, types = self._folder(run), list(types)
        for number in reversed(self._numbers(folder)):
            path = folder / f"{number:08d}.npz"
            try:
                state = serialization.from_bytes(path.read_bytes(), types)
            except CheckpointError as error:
                logger.warning("%s: %s; taking the one before it", path, error)
                continue
            if isinstance(state, ClientState):
                return state
        return None

    def _folder(self, run: str) -> Path:
        if not _RUN.fullmatch(run):  # it came over the wire, and is to be a folder's name
            raise CheckpointError(f"a run cannot be called {run!r}")
        return self.folder / "runs" / run

    def _numbers(self, folder: Path) -> list[int]:
        found = [path.stem for path in folder.glob("*.npz")] if folder.is_dir() else []
        return sorted(int(stem) for stem in found if stem.isdigit())


class SentLog:
    """`sent.jsonl`: when, how much and what (by its digest) has left the house, one line each."""

    def __init__(self, path: Path):
        self._path = path

    def note(self, kind: str, content: bytes, **details: int | str) -> None:
        """Add a line; it is on the disk before the content may leave."""
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
