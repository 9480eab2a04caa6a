"""What one client's data are to a file: named arrays in a fixed order, one row each along the first axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cavity.errors import DataError

Clients = Mapping[str, Any] | Iterable[tuple[str, Any]]


def one_by_one(clients: Clients) -> Iterable[tuple[str, Any]]:
    """Names with their data, of a dict or as they come."""
    return clients.items() if isinstance(clients, Mapping) else clients  # pyright: ignore[reportReturnType]


def named_arrays(client: str, value: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    """A client's array or tuple of arrays, by name; with several names it must be a tuple in their order."""
    parts = (value,) if len(names) == 1 else value
    if not isinstance(parts, (tuple, list)) or len(parts) != len(names):
        raise DataError(f"client {client!r}: give a tuple with one array for each of {', '.join(names)}")
    arrays = {name: np.asarray(part) for name, part in zip(names, parts, strict=True)}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise DataError(f"client {client!r}: the array '{name}' holds objects; code them as numbers")
        if array.ndim == 0:
            raise DataError(f"client {client!r}: the array '{name}' is a single number; give one entry per row")
    if len({len(array) for array in arrays.values()}) > 1:
        found = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        raise DataError(f"client {client!r}: its arrays differ in their rows ({found}); they must be the same rows")
    return arrays


def as_value(arrays: Sequence[np.ndarray]) -> Any:
    """What `cavity.run` takes from a dict: a tuple of arrays, or the array alone where there is one."""
    return arrays[0] if len(arrays) == 1 else tuple(arrays)
