"""The data of one client in a file: named arrays in a fixed order, with rows along the first axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import PyTree

from cavity.errors import DataError

Clients = Mapping[str, PyTree] | Iterable[tuple[str, PyTree]]
Rows = np.ndarray | tuple[np.ndarray, ...]


def one_by_one(clients: Clients) -> Iterable[tuple[str, PyTree]]:
    """Names with their data, from a mapping or from an iterable of pairs."""
    return clients.items() if isinstance(clients, Mapping) else clients  # pyright: ignore[reportReturnType]


def named_arrays(client: str, value: PyTree, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of a client by name.

    Args:
        client: its name, for error messages.
        value: an array if there is one name, otherwise a tuple of arrays in the order of the names.
        names: of the arrays.

    Raises:
        DataError: there are more or fewer arrays than names, or they do not have the same number of rows.
    """
    match (value,) if len(names) == 1 else value:
        case tuple() | list() as parts if len(parts) == len(names):
            arrays = {name: np.asarray(part) for name, part in zip(names, parts, strict=True)}
        case _:
            raise DataError(f"client {client!r}: give a tuple with one array for each of {', '.join(names)}")
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise DataError(f"client {client!r}: the array '{name}' holds objects; code them as numbers")
        if array.ndim == 0:
            raise DataError(f"client {client!r}: the array '{name}' is a single number; give one entry per row")
    if len({len(array) for array in arrays.values()}) > 1:
        found = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        raise DataError(f"client {client!r}: its arrays have different numbers of rows ({found}); give the same rows")
    return arrays


def as_rows(arrays: Sequence[np.ndarray]) -> Rows:
    """The data of a client as `cavity.run` expects them: a tuple of arrays, or the array itself if there is one."""
    return arrays[0] if len(arrays) == 1 else tuple(arrays)
