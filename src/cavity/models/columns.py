"""A silo's data as named columns of numbers, and its units."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cavity.errors import DataError
from cavity.interfaces import Data


def table(value: Any, example: Mapping[str, np.ndarray], unit: str | None, missing: Sequence[str]) -> dict[str, Any]:
    """A silo's columns as numeric arrays with the names and shapes of the example, or a DataError."""
    given = as_mapping(value)
    wanted = [*example, *([] if unit is None or unit in example else [unit])]
    if lacking := [name for name in wanted if name not in given]:
        raise DataError(f"there is no column '{lacking[0]}'; the data have {', '.join(map(str, given))}")
    if surplus := [str(name) for name in given if name not in wanted]:
        raise DataError(f"the model knows no column '{surplus[0]}'; it has {', '.join(wanted)}")
    columns: dict[str, Any] = {}
    for name, like in example.items():
        if name == unit:
            columns[name] = np.zeros(len(labels_of(value, name)), np.int32)  # numbered by the caller
            continue
        columns[name] = _column(name, given[name], like, may_be_missing=name in missing)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"its columns differ in their numbers of rows: {lengths}")
    return columns


def _column(name: str, values: Any, like: np.ndarray, *, may_be_missing: bool) -> np.ndarray:
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise DataError(f"the column '{name}' holds something other than numbers; code it as numbers first") from None
    if array.shape[1:] != like.shape[1:]:
        raise DataError(f"a row of column '{name}' has the shape {array.shape[1:]}, not {like.shape[1:]}")
    bad = ~np.isfinite(array)
    if bad.any() and not (may_be_missing and np.isnan(array[bad]).all()):
        rows = ", ".join(map(str, np.unique(np.nonzero(bad)[0])[:10]))
        raise DataError(
            f"the column '{name}' has {int(bad.sum())} missing or infinite values (rows {rows}); drop these rows, or "
            "let the model mask them and name the column in `missing`"
        )
    if np.issubdtype(like.dtype, np.integer):
        if bad.any() or (array != np.round(array)).any():
            raise DataError(f"the column '{name}' must hold whole numbers, as the example does")
        return array.astype(like.dtype)
    return array


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Columns by name, from a dict or a table."""
    if isinstance(value, Mapping):
        return value
    if hasattr(value, "columns"):
        return {str(name): np.asarray(value[name]) for name in value.columns}
    raise DataError(f"data must be a dict of columns or a table, not a {type(value).__name__}")


def labels_of(value: Any, unit: str) -> list[Any]:
    """The unit of each row, as the data name it."""
    given = as_mapping(value)
    if unit not in given:
        raise DataError(f"there is no column '{unit}'; the data have {', '.join(map(str, given))}")
    return np.asarray(given[unit]).tolist()


def units_of(labels: Sequence[Any] | None, count: int) -> Data:
    """The units of a silo; a label is known by 64 bits of its hash, for the randomness that belongs to it."""
    numbers = None
    if labels is not None:
        digests = [hashlib.blake2b(repr(label).encode(), digest_size=8).digest() for label in labels]
        numbers = np.frombuffer(b"".join(digests), np.uint32).reshape(-1, 2)
    return Data(numbers, np.ones(count), np.asarray(count))
