"""One file per client: a folder of `.npz` files, each with the same arrays."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cavity.core import ClientSource
from cavity.datasets.sources.arrays import Clients, Rows, as_rows, named_arrays, one_by_one
from cavity.errors import DataError

SUFFIX = ".npz"


class ClientFiles(ClientSource):
    """The `.npz` files of a folder. The name of a client is the name of its file without `.npz`.

    Args:
        folder: with one file per client.
        arrays: names of the arrays in a file, in the order in which the model expects them.

    Raises:
        DataError: there is no such folder, or no `.npz` file in it. A file itself is read when its client is loaded.
    """

    def __init__(self, folder: str | os.PathLike[str], arrays: Sequence[str] = ("x", "y")):
        self._folder, self._arrays = Path(folder), tuple(arrays)
        if not self._folder.is_dir():
            raise DataError(f"{self._folder}: folder not found; check the path, or write one file per client")
        found = sorted(entry.name for entry in os.scandir(self._folder) if entry.name.endswith(SUFFIX))
        if not found:
            raise DataError(
                f"{self._folder}: it contains no {SUFFIX} files; `write_client_files` writes one per client"
            )
        self._names = [name.removesuffix(SUFFIX) for name in found]

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def load(self, names: Sequence[str]) -> list[Rows]:
        return [self._read(name) for name in names]

    def num_rows(self, name: str) -> int | None:
        """Number of rows from the header of the first array, without reading the rows."""
        path = self._folder / f"{name}{SUFFIX}"
        try:
            with zipfile.ZipFile(path) as archive, archive.open(f"{self._arrays[0]}.npy") as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                return read(file)[0][0]
        except (OSError, KeyError, ValueError, IndexError, zipfile.BadZipFile):
            return None  # `load` reports what is wrong

    def _read(self, name: str) -> Rows:
        path = self._folder / f"{name}{SUFFIX}"
        try:
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
                if missing := [array for array in self._arrays if array not in file.files]:
                    has = ", ".join(file.files) or "nothing"
                    raise DataError(f"{path}: array {missing[0]!r} not found (it has {has}); write the file again")
                arrays = as_rows([file[array] for array in self._arrays])
        except FileNotFoundError:
            raise DataError(f"{path}: file not found; restore it, or start without this client") from None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: it cannot be read as arrays ({error}); write the file again") from None
        named_arrays(name, arrays, self._arrays)
        return arrays


def write_client_files(
    folder: str | os.PathLike[str], clients: Clients, arrays: Sequence[str] = ("x", "y")
) -> ClientFiles:
    """Write each client to a file of its own.

    Args:
        folder: created if missing.
        clients: a mapping from name to data, or an iterable of such pairs, of which one is held in memory at a time.
        arrays: names of the arrays of a client, in their order.

    Returns:
        The source that reads these files.

    Example: `write_client_files("clients", {"leeds": (x, y)})`
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    for name, value in one_by_one(clients):
        if not name or Path(name).name != name or name.startswith("."):
            raise DataError(f"client {name!r}: this name cannot be used for a file; rename the client")
        np.savez(path / f"{name}{SUFFIX}", **named_arrays(name, value, arrays))  # pyright: ignore[reportArgumentType]
    return ClientFiles(path, arrays)
