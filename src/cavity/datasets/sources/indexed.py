"""The rows of all clients in one file per array, with an index of the first row of each client; read by memory map.

A folder has one `.npy` file per array, and `index.json` with the names of the clients and the first row of each. The
index is written last. If it is missing, writing was interrupted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from cavity.core import ClientSource
from cavity.datasets.sources.arrays import Clients, Rows, as_rows, named_arrays, one_by_one
from cavity.errors import DataError

INDEX = "index.json"
AGAIN = "write it again with `write_indexed_clients`"


class IndexedClients(ClientSource):
    """Clients in one file per array. Only the rows of the clients that are loaded are read.

    Args:
        folder: written by `write_indexed_clients`.

    Raises:
        DataError: a file is missing or damaged, or the index and the rows do not agree.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self._folder = Path(folder)
        if not self._folder.is_dir():
            raise DataError(f"{self._folder}: folder not found; check the path, or {AGAIN}")
        arrays, self._names, self._offsets = self._index()
        self._arrays = [self._mapped(name) for name in arrays]
        self._places = {name: place for place, name in enumerate(self._names)}

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def load(self, names: Sequence[str]) -> list[Rows]:
        return [as_rows([np.array(array[rows]) for array in self._arrays]) for rows in map(self._rows, names)]

    def num_rows(self, name: str) -> int:
        rows = self._rows(name)
        return rows.stop - rows.start

    def _rows(self, name: str) -> slice:
        if name not in self._places:
            raise DataError(f"{self._folder / INDEX}: client {name!r} not found; {AGAIN}")
        place = self._places[name]
        return slice(int(self._offsets[place]), int(self._offsets[place + 1]))

    def _index(self) -> tuple[list[str], list[str], np.ndarray]:
        path = self._folder / INDEX
        try:
            index = json.loads(path.read_bytes())
            arrays, names, offsets = index["arrays"], index["names"], np.array(index["offsets"], np.int64)
        except FileNotFoundError:
            raise DataError(f"{path}: index not found, because writing was interrupted; {AGAIN}") from None
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise DataError(
                f"{path}: the index cannot be read ({error}), because it is damaged or cut off; {AGAIN}"
            ) from None
        if set(map(type, names)) != {str}:
            raise DataError(f"{path}: the index names no clients; {AGAIN}")
        if offsets.shape != (len(names) + 1,) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise DataError(
                f"{path}: the index has {len(names)} clients and {offsets.size} offsets; there must be one more offset "
                f"than clients, starting at 0 and never decreasing; {AGAIN}"
            )
        return arrays, names, offsets

    def _mapped(self, name: str) -> np.ndarray:
        path = self._folder / f"{name}.npy"
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise DataError(f"{path}: file not found, but the index names it; {AGAIN}") from None
        except (ValueError, EOFError, OSError) as error:
            raise DataError(f"{path}: it cannot be read as an array ({error}); {AGAIN}") from None
        if len(array) != self._offsets[-1]:
            raise DataError(f"{path}: it has {len(array):,} rows, and the index {self._offsets[-1]:,}; {AGAIN}")
        return array


def write_indexed_clients(
    folder: str | os.PathLike[str], clients: Clients, arrays: Sequence[str] = ("x", "y")
) -> IndexedClients:
    """Write all clients to one file per array. Arguments as in `write_client_files`.

    Example: `write_indexed_clients("clients", ((name, load(name)) for name in names))`
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / INDEX).unlink(missing_ok=True)
    names: dict[str, None] = {}
    offsets, growing = [0], [_Growing(path / f"{name}.npy") for name in arrays]
    try:
        for name, value in one_by_one(clients):
            if name in names:
                raise DataError(f"client {name!r} appears twice; every client needs a name of its own")
            parts = named_arrays(name, value, arrays)
            for file, part in zip(growing, parts.values(), strict=True):
                file.append(name, part)
            names[name] = None
            offsets.append(growing[0].num_rows)
    finally:
        for file in growing:
            file.close()
    if not names:
        raise DataError(f"{path}: there are no clients to write; give at least one name with its data")
    (path / INDEX).write_text(json.dumps({"arrays": list(arrays), "names": list(names), "offsets": offsets}))
    return IndexedClients(path)


class _Growing:
    """A `.npy` file to which rows are appended. The header of numpy has room for the final number of rows."""

    def __init__(self, path: Path):
        self.num_rows = 0
        self._path = path
        self._file: IO[bytes] = open(path, "wb")  # noqa: SIM115 (it stays open until all clients are written)
        self._like: np.ndarray | None = None

    def append(self, client: str, rows: np.ndarray) -> None:
        if self._like is None:
            self._like = rows[:0]
            self._header()
        if (rows.shape[1:], rows.dtype) != (self._like.shape[1:], self._like.dtype):
            raise DataError(
                f"client {client!r}: rows of shape {rows.shape[1:]} and type {rows.dtype} for {self._path.name}, but "
                f"earlier clients have {self._like.shape[1:]} and {self._like.dtype}; give all clients the same "
                "columns and type"
            )
        self._file.write(np.ascontiguousarray(rows).data)
        self.num_rows += len(rows)

    def close(self) -> None:
        """Write the number of rows into the header, and close the file."""
        if self._like is not None:
            self._file.seek(0)
            self._header()
        self._file.close()

    def _header(self) -> None:
        assert self._like is not None
        header = np.lib.format.header_data_from_array_1_0(self._like)
        header["fortran_order"], header["shape"] = False, (self.num_rows, *self._like.shape[1:])
        np.lib.format.write_array_header_1_0(self._file, header)
