"""What the folders of servers and clients hold beside results, for the commands that look at them."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cavity.errors import CavityError
from cavity.io.checkpoints import write_atomically
from cavity.io.private_files import private_file, private_folder

STATUS, REQUESTS, LOCK, LEAVE = "status.json", "requests", "lock", "leave"
STOP, WITHDRAW = "stop", "withdraw-"


@contextmanager
def only_one(folder: Path, who: str) -> Iterator[None]:
    """Raise CavityError where another process has this folder; the lock goes with the process, however it ends."""
    private_folder(folder)
    with open(folder / LOCK, "w", opener=private_file) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CavityError(f"{folder}: {who} is running already; stop that one first") from None
        yield


def is_running(folder: Path) -> bool:
    """Whether a process has this folder now."""
    try:
        with open(folder / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def write_status(folder: Path, **values: Any) -> None:
    """What `cavity status` tells."""
    values |= {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "pid": os.getpid()}
    write_atomically(folder / STATUS, (json.dumps(values, indent=2) + "\n").encode())


def read_status(folder: Path) -> dict[str, Any]:
    """The last status; raises CavityError where there is none."""
    try:
        return json.loads((folder / STATUS).read_text())
    except (FileNotFoundError, ValueError):
        raise CavityError(f"{folder}: nothing has run here; give the folder with --output") from None


class Requests:
    """What a server is asked to do, as files that another command writes and the server removes when it is done."""

    def __init__(self, folder: Path):
        self._folder = folder / REQUESTS

    def put(self, request: str) -> None:
        """Ask."""
        private_folder(self._folder)
        open(self._folder / request, "a", opener=private_file).close()

    def pending(self) -> list[str]:
        """All that is asked for."""
        return sorted(path.name for path in self._folder.iterdir()) if self._folder.is_dir() else []

    def done(self, request: str) -> None:
        """It has been seen to."""
        (self._folder / request).unlink(missing_ok=True)
