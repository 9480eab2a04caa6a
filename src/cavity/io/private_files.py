"""Files and folders that only their owner can read, whatever the umask: modes 0600 and 0700."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cavity.errors import CavityError

FOLDER, FILE = 0o700, 0o600


def private_folder(path: Path) -> None:
    """Create a folder that only its owner can enter, or remove the access of others to an existing one.

    Args:
        path: of the folder.

    Raises:
        CavityError: it belongs to another user, or every user can write to it.
    """
    if make_folder(path):
        return
    found = path.stat()
    if found.st_mode & stat.S_IWOTH:
        raise CavityError(f"{path}: every user can write to this folder; use one of your own (or: chmod 700 {path})")
    if stat.S_IMODE(found.st_mode) & 0o077:
        try:
            path.chmod(FOLDER)
        except OSError:
            raise CavityError(
                f"{path}: other users can read this folder, and you cannot change that because it is not yours; "
                "use a folder of your own"
            ) from None


def make_folder(path: Path) -> bool:
    """Create a private folder if there is none.

    Args:
        path: of the folder.

    Returns:
        Whether it was created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(FOLDER)
    except FileExistsError:
        if path.is_dir():
            return False
        raise CavityError(f"{path}: this is a file, and a folder is needed; use another path") from None
    path.chmod(FOLDER)  # the umask may have removed bits
    return True


def private_file(path: str, flags: int) -> int:
    """For `open(..., opener=private_file)`: only the owner can read the file, before anything is written to it."""
    descriptor = os.open(path, flags, FILE)
    os.fchmod(descriptor, FILE)
    return descriptor
