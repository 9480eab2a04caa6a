"""Columns of numbers out of whatever a user brings, or a DataError that names the column and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cavity.errors import DataError


def numeric_matrix(x: Any, features: Sequence[str]) -> np.ndarray:
    """`x` as finite floats [n, p] with one column per feature, or a DataError that names the column."""
    array = np.asarray(x)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != len(features):
        columns = array.shape[1] if array.ndim == 2 else f"shape {array.shape}"
        raise DataError(
            f"x has {columns} columns, but the model has {len(features)} features "
            f"({', '.join(features[:6])}{', ...' if len(features) > 6 else ''}); the intercept is added for you"
        )
    return np.stack([finite_column(array[:, j], f"column '{name}'") for j, name in enumerate(features)], axis=1)


def numeric_vector(y: Any) -> np.ndarray:
    """`y` as finite floats [n], or a DataError."""
    array = np.asarray(y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"y must have one outcome per row; it has the shape {array.shape}")
    return finite_column(array, "the outcome y")


def finite_column(values: np.ndarray, label: str) -> np.ndarray:
    """One column as finite floats, or a DataError that says what it holds instead."""
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError):
        example = next(v for v in values.tolist() if not _is_number(v))
        raise DataError(
            f"{label} holds text such as {example!r}; code it as numbers (one 0/1 column per level) first"
        ) from None
    bad = ~np.isfinite(numbers)
    if bad.any():
        rows = ", ".join(map(str, np.flatnonzero(bad)[:10]))
        raise DataError(
            f"{label} has {int(bad.sum())} missing or infinite values (rows {rows}); "
            "drop these rows or impute them before joining"
        )
    return numbers


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
