"""The run directory: a complete checkpoint, replaced atomically, and a history that people can read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from cavity.errors import CheckpointError
from cavity.io import serialization
from cavity.io.private_files import make_folder, private_file, private_folder

CHECKPOINT = "checkpoint.npz"
HISTORY = "history.jsonl"


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary file beside `path`, sync, rename: a reader sees the old content or the new one.

    Only the owner can read the file, and the folder too if it has to be made.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb", opener=private_file) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class RunDirectory:
    """Where one run keeps its state.

    Args:
        path: a folder; it is made if it does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is something to resume from."""
        return (self.path / CHECKPOINT).exists()

    def write_fit(self, name: str, state: PyTree, history: list[dict[str, Any]]) -> None:
        """Write state and history to one file, complete or not at all."""
        write_atomically(self.path / name, serialization.to_bytes({"state": state, "history": history}))

    def write(self, state: PyTree, history: list[dict[str, Any]]) -> None:
        """Replace the checkpoint; the history inside it is the truth, the readable file a copy."""
        private_folder(self.path)
        self.write_fit(CHECKPOINT, state, history)
        lines = "".join(json.dumps(record) + "\n" for record in history)
        write_atomically(self.path / HISTORY, lines.encode())

    def clear(self) -> None:
        """Forget the checkpoint; there is nothing to resume from then."""
        for name in (CHECKPOINT, HISTORY):
            (self.path / name).unlink(missing_ok=True)

    def read(self, types: Iterable[type] = (), name: str = CHECKPOINT) -> tuple[PyTree, list[dict[str, Any]]]:
        """State and history of the last checkpoint, or of a file that `write_fit` wrote."""
        path = self.path / name
        saved = read_tree(path, types)
        if not (isinstance(saved, dict) and saved.keys() == {"state", "history"} and _is_history(saved["history"])):
            raise CheckpointError(f"{path}: it is not a checkpoint of a run; delete it and start anew")
        return saved["state"], saved["history"]


def read_tree(path: Path, types: Iterable[type] = ()) -> PyTree:
    """What a file of `wire.to_bytes` holds; raises CheckpointError with the path and what to do."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file; check the path, or start the run anew") from None
    except OSError as error:
        raise CheckpointError(f"{path}: it cannot be read ({error.strerror}); start the run anew elsewhere") from None
    try:
        return serialization.from_bytes(content, types)
    except CheckpointError as error:
        raise CheckpointError(
            f"{path}: {error}. Put back a copy of this file if there is one, or delete it and start the run anew"
        ) from None


def _is_history(history: Any) -> bool:
    return isinstance(history, list) and all(isinstance(record, dict) for record in history)
