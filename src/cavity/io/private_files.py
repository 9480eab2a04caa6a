"""Files and folders for their owner's eyes alone, whatever the umask: 0600 and 0700."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cavity.errors import CavityError

FOLDER, FILE = 0o700, 0o600


def private_folder(path: Path) -> None:
    """Make a folder that only its owner can enter, or close an existing one to others.

    Raises:
        CavityError: it belongs to another user, or is one that everybody writes to.
    """
    if make_folder(path):
        return
    found = path.stat()
    if found.st_mode & stat.S_IWOTH:
        raise CavityError(f"{path}: every user can write to this folder; give one of your own (or: chmod 700 {path})")
    if stat.S_IMODE(found.st_mode) & 0o077:
        try:
            path.chmod(FOLDER)
        except OSError:
            raise CavityError(
                f"{path}: other users can read this folder, and it cannot be closed to them (it is not yours); "
                "give a folder of your own"
            ) from None


def make_folder(path: Path) -> bool:
    """Make a private folder where there is none; whether it was made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(FOLDER)
    except FileExistsError:
        if path.is_dir():
            return False
        raise CavityError(f"{path}: this is a file, and a folder is needed; give another path") from None
    path.chmod(FOLDER)  # the umask may have taken bits away
    return True


def private_file(path: str, flags: int) -> int:
    """For `open(..., opener=private_file)`: the file is the owner's alone before anything is written to it."""
    descriptor = os.open(path, flags, FILE)
    os.fchmod(descriptor, FILE)
    return descriptor
