"""Files in the folders of servers and clients besides results: the lock, the status, and requests of commands."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cavity.errors import CavityError
from cavity.io.checkpoints import write_atomically
from cavity.io.private_files import private_file, private_folder

STATUS, REQUESTS, LOCK, LEAVE = "status.json", "requests", "lock", "leave"
STOP, WITHDRAW = "stop", "withdraw-"


@contextmanager
def only_one(folder: Path, who: str) -> Iterator[None]:
    """Lock a folder. The lock ends with the process, however that ends.

    Args:
        folder: created if missing.
        who: names the process in the error.

    Raises:
        CavityError: another process has locked the folder.
    """
    private_folder(folder)
    with open(folder / LOCK, "w", opener=private_file) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CavityError(f"{folder}: {who} is already running; stop it first") from None
        yield


def is_running(folder: Path) -> bool:
    """Whether a process has locked this folder."""
    try:
        with open(folder / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


Value = str | int | float | list[str]  # of one field of the status


def write_status(folder: Path, **values: Value) -> None:
    """Write what `cavity status` shows."""
    values |= {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "pid": os.getpid()}
    write_atomically(folder / STATUS, (json.dumps(values, indent=2) + "\n").encode())


def read_status(folder: Path) -> dict[str, Value]:
    """The last status; raises CavityError if there is none."""
    try:
        return json.loads((folder / STATUS).read_text())
    except (FileNotFoundError, ValueError):
        raise CavityError(f"{folder}: no run found; give its folder with --output") from None


class Requests:
    """Requests to a server: files that a command creates, and that the server removes when it is done."""

    def __init__(self, folder: Path):
        self._folder = folder / REQUESTS

    def put(self, request: str) -> None:
        """Add a request."""
        private_folder(self._folder)
        open(self._folder / request, "a", opener=private_file).close()

    def pending(self) -> list[str]:
        """The names of all requests."""
        return sorted(path.name for path in self._folder.iterdir()) if self._folder.is_dir() else []

    def done(self, request: str) -> None:
        """Remove a request."""
        (self._folder / request).unlink(missing_ok=True)
