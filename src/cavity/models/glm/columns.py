"""A client's data as named numeric columns, and its units."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from jaxtyping import PyTree

from cavity.core import Data
from cavity.errors import CavityError, DataError


def example_columns(
    example: PyTree, function: Callable[..., object], unit: str | None, num_units: str | None
) -> dict[str, np.ndarray]:
    """The columns of an example, units numbered; or a CavityError, if the model cannot be called with them."""
    given, parameters = as_mapping(example), inspect.signature(function).parameters
    if unit is not None and unit not in given:
        raise CavityError(f"the example has no column {unit!r} of units; it has {', '.join(given)}")
    if num_units is not None and num_units not in parameters:
        raise CavityError(f"the model has no argument {num_units!r}; it has {', '.join(parameters)}")
    if num_units is not None and (unit is None or unit not in parameters):
        raise CavityError(
            "`num_units` goes with a column `unit` that the model takes; where rows are units, their number is known"
        )
    by_itself = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for name, parameter in parameters.items():
        needed = parameter.default is inspect.Parameter.empty and parameter.kind not in by_itself
        if needed and name not in given and name != num_units:
            raise CavityError(
                f"the model takes {name!r}, which is no column of the example; name it as `num_units`, or bind it "
                "with functools.partial"
            )
    columns = {}
    for name, values in given.items():
        if name == unit and unit not in parameters:
            continue
        array = np.asarray(values)
        if name == unit:
            array = np.unique(array, return_inverse=True)[1]
        if array.dtype.kind not in "biuf":
            raise CavityError(f"the column {name!r} of the example holds no numbers")
        single = array.dtype == np.float32  # large columns of a network stay in single precision
        columns[name] = array.astype({"b": bool, "f": np.float32 if single else float}.get(array.dtype.kind, np.int32))
    lengths = {name: np.shape(column)[:1] for name, column in columns.items()}
    if len(set(lengths.values())) != 1 or set(lengths.values()) & {(), (0,)}:
        raise CavityError(f"the columns of the example need the same number of rows, at least one; they have {lengths}")
    return columns


def table(
    value: PyTree, example: Mapping[str, np.ndarray], unit: str | None, missing: Sequence[str]
) -> dict[str, np.ndarray]:
    """A client's columns as numeric arrays with the names and shapes of the example, or a DataError."""
    given = as_mapping(value)
    wanted = [*example, *([] if unit is None or unit in example else [unit])]
    if lacking := [name for name in wanted if name not in given]:
        raise DataError(f"column '{lacking[0]}' not found; the data have {', '.join(map(str, given))}")
    if surplus := [str(name) for name in given if name not in wanted]:
        raise DataError(f"the model has no column '{surplus[0]}'; its columns are {', '.join(wanted)}")
    columns: dict[str, np.ndarray] = {}
    for name, like in example.items():
        if name == unit:
            columns[name] = np.zeros(len(labels_of(value, name)), np.int32)  # numbered by the caller
            continue
        columns[name] = _column(name, given[name], like, may_be_missing=name in missing)
    lengths = {name: len(column) for name, column in columns.items()}
    if unit is not None:
        lengths[unit] = len(labels_of(value, unit))
    if len(set(lengths.values())) > 1:
        raise DataError(f"its columns differ in their numbers of rows: {lengths}")
    return columns


def _column(name: str, values: PyTree, like: np.ndarray, *, may_be_missing: bool) -> np.ndarray:
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise DataError(f"the column '{name}' holds something other than numbers; code it as numbers first") from None
    if array.ndim == 0:
        raise DataError(f"the column '{name}' is a single number; give one per row")
    if array.shape[1:] != like.shape[1:]:
        raise DataError(f"a row of column '{name}' has the shape {array.shape[1:]}, not {like.shape[1:]}")
    bad = ~np.isfinite(array)
    if bad.any() and not (may_be_missing and np.isnan(array[bad]).all()):
        rows = ", ".join(map(str, np.unique(np.nonzero(bad)[0])[:10]))
        raise DataError(
            f"the column '{name}' has {int(bad.sum())} missing or infinite values (rows {rows}); drop these rows, or "
            "let the model mask them and name the column in `missing`"
        )
    if like.dtype.kind == "f":
        return array.astype(like.dtype)
    if like.dtype.kind == "b":
        allowed, what = np.isin(array, (0, 1)), "0 or 1"
    else:
        allowed, what = (array == np.round(array)) & (np.abs(array) < 2.0**31), "whole numbers of 32 bits"
    if not allowed.all():
        raise DataError(f"the column '{name}' must hold {what}, as the example does")
    return array.astype(like.dtype)


def as_mapping(value: PyTree) -> Mapping[str, PyTree]:
    """Columns by name, from a dict or a table."""
    if isinstance(value, Mapping):
        return value
    if hasattr(value, "columns"):
        return {str(name): np.asarray(value[name]) for name in value.columns}
    raise DataError(f"data must be a dict of columns or a table, not a {type(value).__name__}")


def labels_of(value: PyTree, unit: str) -> list[Hashable]:
    """The unit of each row, as the data name it."""
    given = as_mapping(value)
    if unit not in given:
        raise DataError(f"column '{unit}' not found; the data have {', '.join(map(str, given))}")
    labels = np.asarray(given[unit])
    if labels.ndim != 1:
        raise DataError(f"the column '{unit}' of units must hold one label per row; it has the shape {labels.shape}")
    if unnamed := [i for i, label in enumerate(labels.tolist()) if label is None or label != label]:
        raise DataError(f"the column '{unit}' names no unit in {len(unnamed)} rows (rows {str(unnamed[:10])[1:-1]})")
    return labels.tolist()


def units_of(labels: Sequence[Hashable] | None, count: int) -> Data:
    """The units of a client. A unit's random numbers depend on 64 bits of the hash of its label."""
    numbers = None
    if labels is not None:
        digests = [hashlib.blake2b(repr(label).encode(), digest_size=8).digest() for label in labels]
        numbers = np.frombuffer(b"".join(digests), np.uint32).reshape(-1, 2)
    return Data(numbers, np.ones(count), np.asarray(count))
