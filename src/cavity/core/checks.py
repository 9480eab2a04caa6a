"""Numeric columns from the data that users bring, or a DataError that names the column and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import PyTree

from cavity.errors import DataError


def numeric_matrix(x: PyTree, features: Sequence[str]) -> np.ndarray:
    """`x` as finite floats [n, p] with one column per feature.

    The columns of a table (pandas, polars) are found by name. They are taken by position where the table has no
    names, or where the model has the default names x1, x2, ...

    Raises:
        DataError: naming the column and the remedy.
    """
    given = tuple(features) != tuple(f"x{j}" for j in range(1, len(features) + 1))
    if given and any(isinstance(name, str) for name in getattr(x, "columns", ())):
        for name in features:
            if name not in x.columns:
                raise DataError(f"column '{name}' not found; the table has {', '.join(map(str, x.columns))}")
        x = x[list(features)]
    try:
        array = np.asarray(x)
    except ValueError:
        raise DataError("x is not a table: give one row per example, all with one number per feature") from None
    if array.ndim == 1:
        array = array[:, None]
    if array.shape[:1] == (0,):
        return np.zeros((0, len(features)))
    if array.ndim != 2 or array.shape[1] != len(features):
        found = f"{array.shape[1]} columns" if array.ndim == 2 else f"the shape {array.shape}"
        raise DataError(
            f"x has {found}, but the model has {len(features)} features "
            f"({', '.join(features[:6])}{', ...' if len(features) > 6 else ''}); the intercept is added for you"
        )
    columns = [finite_column(array[:, j], f"column '{name}'") for j, name in enumerate(features)]
    return np.stack(columns, axis=1) if columns else np.zeros((len(array), 0))  # an intercept alone


def numeric_vector(y: PyTree) -> np.ndarray:
    """`y` as finite floats [n], or a DataError."""
    try:
        array = np.asarray(y)
    except ValueError:
        raise DataError("y must have one outcome per row; some of its entries are lists") from None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"y must have one outcome per row; it has the shape {array.shape}")
    return finite_column(array, "the outcome y")


def numeric_outcomes(y: PyTree, num_columns: int) -> np.ndarray:
    """`y` as finite floats, [n] or with several columns [n, num_columns], or a DataError."""
    if num_columns == 1:
        return numeric_vector(y)
    array = np.asarray(y)
    if array.ndim != 2 or array.shape[1] != num_columns:
        raise DataError(f"y must have {num_columns} numbers per row; it has the shape {array.shape}")
    return np.stack([finite_column(each, f"column {j} of the outcome") for j, each in enumerate(array.T, 1)], axis=1)


def network_rows(value: PyTree, num_features: int) -> tuple[np.ndarray, np.ndarray]:
    """A pair (x, y) for a network: features in single precision, outcomes as numbers, or a DataError."""
    features, outcomes = pair(value, "a network needs a pair (x, y)")
    return same_rows(network_features(features, num_features), numeric_vector(outcomes))


def pair(value: PyTree, message: str) -> tuple[PyTree, PyTree]:
    """The two entries of a tuple or list of length 2; otherwise a DataError with this message."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return value[0], value[1]
    raise DataError(message)


def same_rows(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features and outcomes, which must have the same number of rows; otherwise a DataError."""
    if len(x) != len(y):
        raise DataError(f"x has {len(x)} rows and y has {len(y)}; they must be the same rows in the same order")
    return x, y


def feature_names(features: int | Sequence[str]) -> tuple[str, ...]:
    """The names of the features: as they are given, or x1, x2, ... where their number is given."""
    if isinstance(features, int):
        return tuple(f"x{j}" for j in range(1, features + 1))
    return tuple(features)


def network_features(x: PyTree, num_features: int) -> np.ndarray:
    """Rows of features in single precision, or a DataError."""
    x = np.asarray(x)
    if x.ndim != 2 or x.shape[1] != num_features:
        raise DataError(f"x has the shape {x.shape}, but the first layer takes {num_features} features")
    if not (np.issubdtype(x.dtype, np.number) and np.isfinite(x).all()):
        raise DataError("x holds text, missing or infinite values; code or impute them before joining")
    return x.astype(np.float32)


def finite_column(values: np.ndarray, label: str) -> np.ndarray:
    """One column as finite floats, or a DataError that says what it holds instead."""
    if values.dtype.kind in "mM":
        values = values.astype(str)  # numpy would turn a date into a number of nanoseconds
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError):
        known = [np.nan if _is_missing(value) else value for value in values.tolist()]
        text = [value for value in known if not _is_number(value)]
        if text:
            raise DataError(
                f"{label} holds text such as {text[0]!r}; code it as numbers (one 0/1 column per level) first"
            ) from None
        numbers = np.array(known, np.float64)
    bad = ~np.isfinite(numbers)
    if bad.any():
        rows = ", ".join(map(str, np.flatnonzero(bad)[:10]))
        raise DataError(
            f"{label} has {int(bad.sum())} missing or infinite values (rows {rows}); "
            "drop these rows or impute them before joining"
        )
    return numbers


def _is_missing(value: PyTree) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType")  # those of pandas, which is optional


def _is_number(value: PyTree) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
