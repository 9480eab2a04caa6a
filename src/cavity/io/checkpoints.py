"""The directory of a run: a complete checkpoint, replaced atomically, and a history that people can read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from jaxtyping import PyTree

from cavity.core import Distribution
from cavity.errors import CheckpointError
from cavity.io import archive, serialization
from cavity.io.private_files import make_folder, private_file, private_folder

CHECKPOINT = "checkpoint.npz"
HISTORY = "history.jsonl"
POSTERIOR_ARRAYS = {"names", "mean", "covariance"}  # of the posterior of a regression, for other programs

History = list[dict[str, PyTree]]


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary file beside `path`, sync and rename: a reader sees the old content or the new content.

    Only the owner can read the file. If the folder does not exist, it is created with the same protection.

    Args:
        path: of the file.
        content: what to write.
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
    """The folder in which a run keeps its state.

    Args:
        path: of the folder; created if missing.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return (self.path / CHECKPOINT).exists()

    def write_fit(self, name: str, state: PyTree, history: History) -> None:
        """Write state and history to one file, completely or not at all.

        Args:
            name: of the file in this folder.
            state: the tree to store.
            history: one record per round.
        """
        write_atomically(self.path / name, serialization.to_bytes({"state": state, "history": history}))

    def write(self, state: PyTree, history: History) -> None:
        """Replace the checkpoint. It contains the history that a resume reads; the history file is a copy to look at.

        Args:
            state: the tree to store.
            history: one record per round.
        """
        private_folder(self.path)
        self.write_fit(CHECKPOINT, state, history)
        lines = "".join(json.dumps(record) + "\n" for record in history)
        write_atomically(self.path / HISTORY, lines.encode())

    def clear(self) -> None:
        """Delete the checkpoint and the history."""
        for name in (CHECKPOINT, HISTORY):
            (self.path / name).unlink(missing_ok=True)

    def read(self, types: Iterable[type] = (), name: str = CHECKPOINT) -> tuple[PyTree, History]:
        """State and history from the checkpoint, or from a file that `write_fit` wrote.

        Args:
            types: classes from outside Cavity that the file may hold.
            name: of the file in this folder.

        Raises:
            CheckpointError: there is no such file, or it holds something else.
        """
        path = self.path / name
        match read_tree(path, types):
            case {"state": state, "history": list(history), **others} if not others and _are_dicts(history):
                return state, history
            case Distribution() as posterior:
                raise CheckpointError(
                    f"{path}: this file holds a posterior (a {type(posterior).__name__}) and not a fit. {_advice(path)}"
                )
            case _:
                raise CheckpointError(f"{path}: this is not a checkpoint of a run; delete it and restart the run")


def read_tree(path: Path, types: Iterable[type] = ()) -> PyTree:
    """The tree in a file that `serialization.to_bytes` wrote.

    Args:
        path: of the file.
        types: classes from outside Cavity that it may hold.

    Raises:
        CheckpointError: with the path, the reason and what to do.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: file not found; check the path, or restart the run") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); restart the run in another folder") from None
    if _is_posterior_for_others(content):
        raise CheckpointError(
            f"{path}: this file holds the posterior of a regression as arrays (names, mean, covariance) and not a fit. "
            f"Read it with numpy.load. {_advice(path)}"
        )
    try:
        return serialization.from_bytes(content, types)
    except CheckpointError as error:
        raise CheckpointError(
            f"{path}: {error}. Restore a copy of this file if you have one, or delete it and restart the run"
        ) from None


def _is_posterior_for_others(content: bytes) -> bool:
    """Whether this is a `posterior.npz` as a study writes it: ordinary arrays, without a manifest."""
    if serialization.is_sealed(content):
        return False
    try:
        return archive.entries(content, len(POSTERIOR_ARRAYS)).keys() == POSTERIOR_ARRAYS
    except CheckpointError:
        return False


def _advice(path: Path) -> str:
    """Where the fit is that belongs to a posterior."""
    if (path.parent / CHECKPOINT).exists():
        return f"The fit is in the same folder: cavity.load({str(path.parent)!r})"
    return f"The fit is in the folder of its run, in {CHECKPOINT}: give cavity.load that folder"


def _are_dicts(records: list[PyTree]) -> bool:
    return all(isinstance(record, dict) for record in records)
