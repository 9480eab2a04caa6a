"""One file per client: a folder of `.npz` files, each with the same arrays."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cavity.core import ClientSource
from cavity.datasets.sources.arrays import Clients, as_value, named_arrays, one_by_one
from cavity.errors import DataError

SUFFIX = ".npz"


class ClientFiles(ClientSource):
    """The `.npz` files of a folder; a client's name is that of its file, without the ending.

    Args:
        folder: with one file per client.
        arrays: the names of the arrays in a file, in the order in which the model takes them.

    Raises:
        DataError: where there is no such folder, or no such file in it. A file is looked into when its client works.
    """

    def __init__(self, folder: str | os.PathLike[str], arrays: Sequence[str] = ("x", "y")):
        self._folder, self._arrays = Path(folder), tuple(arrays)
        if not self._folder.is_dir():
            raise DataError(f"{self._folder}: there is no such folder; check the path, or write one client per file")
        found = sorted(entry.name for entry in os.scandir(self._folder) if entry.name.endswith(SUFFIX))
        if not found:
            raise DataError(f"{self._folder}: it holds no {SUFFIX} files; `write_client_files` writes one per client")
        self._names = [name.removesuffix(SUFFIX) for name in found]

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def load(self, names: Sequence[str]) -> list[Any]:
        return [self._read(name) for name in names]

    def num_rows(self, name: str) -> int | None:
        """From the header of its first array, without reading the rows."""
        path = self._folder / f"{name}{SUFFIX}"
        try:
            with zipfile.ZipFile(path) as archive, archive.open(f"{self._arrays[0]}.npy") as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                return read(file)[0][0]
        except (OSError, KeyError, ValueError, IndexError, zipfile.BadZipFile):
            return None  # `load` says what is wrong

    def _read(self, name: str) -> Any:
        path = self._folder / f"{name}{SUFFIX}"
        try:
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
                if missing := [array for array in self._arrays if array not in file.files]:
                    has = ", ".join(file.files) or "nothing"
                    raise DataError(f"{path}: it lacks the array {missing[0]!r} (it has {has}); write it again")
                arrays = as_value([file[array] for array in self._arrays])
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such file any more; put it back, or start without it") from None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: it cannot be read as arrays ({error}); write it again") from None
        named_arrays(name, arrays, self._arrays)
        return arrays


def write_client_files(
    folder: str | os.PathLike[str],
    clients: Clients,
    arrays: Sequence[str] = ("x", "y"),
) -> ClientFiles:
    """Write each client to a file of its own; given as (name, data) one after the other, one is held at a time.

    Example: `write_client_files("clients", {"leeds": (x, y)})`
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    for name, value in one_by_one(clients):
        if not name or Path(name).name != name or name.startswith("."):
            raise DataError(f"client {name!r}: this cannot be the name of a file; rename the client")
        np.savez(path / f"{name}{SUFFIX}", **named_arrays(name, value, arrays))  # pyright: ignore[reportArgumentType]
    return ClientFiles(path, arrays)
