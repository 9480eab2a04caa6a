"""From raw columns to features: levels as 0/1 columns, numbers in units of the training rows' spread, missing values.

Means and standard deviations are those of the training rows alone, so that test rows do not leak into the features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from cavity_experiments.sources.reading import Table

T = TypeVar("T", bound=Table)


def encoded(
    raw: Mapping[str, np.ndarray], numeric: Sequence[str], categorical: Sequence[str], training_rows: np.ndarray | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Standardised numeric columns, then a 0/1 column for each level of the others; and their names.

    Levels are those of the whole table, so that the columns do not depend on a split.
    """
    columns = list(numeric)
    numbers = np.column_stack([raw[column].astype(np.float64) for column in numeric])
    blocks = [standardise(numbers, training_rows)]
    for column in categorical:
        levels, codes = np.unique(raw[column], return_inverse=True)
        blocks.append(np.eye(len(levels))[codes])
        columns += [f"{column}={level}" for level in levels]
    return np.hstack(blocks), tuple(columns)


def standardise(numeric: np.ndarray, training_rows: np.ndarray | None) -> np.ndarray:
    """Columns minus the mean, over the standard deviation (divisor n), of the training rows; of all rows if None."""
    rows = _training(len(numeric), training_rows)
    mean, scale = numeric[rows].mean(axis=0), numeric[rows].std(axis=0)
    if np.any(scale == 0):
        raise ValueError(f"numeric columns {np.flatnonzero(scale == 0).tolist()} are constant in training_rows")
    return (numeric - mean) / scale


def imputed(table: T, training_rows: np.ndarray | None = None) -> T:
    """A table without missing values, and in units of the training rows' spread.

    A missing value becomes the mean of its column over the training rows that have it, and for every column with
    missing values anywhere in the table a 0/1 column `<column> missing` is added. Columns that are not 0/1 in the
    training rows are then standardised by them.

    Args:
        table: with NaN for what is missing, such as `heart_disease()` or `pima()`.
        training_rows: Row indices (or a boolean mask) whose statistics are used. All rows if None.
    """
    rows = _training(len(table.x), training_rows)
    missing = np.isnan(table.x)
    if np.any(missing[rows].all(axis=0)):
        without = [table.columns[j] for j in np.flatnonzero(missing[rows].all(axis=0))]
        raise ValueError(f"columns {', '.join(without)} have no value in training_rows; leave them out")
    filled = np.where(missing, np.nanmean(table.x[rows], axis=0), table.x)
    is_number = ~np.all(((table.x == 0) | (table.x == 1) | missing)[rows], axis=0)
    filled[:, is_number] = standardise(filled[:, is_number], rows)
    holes = np.flatnonzero(missing.any(axis=0))
    columns = (*table.columns, *(f"{table.columns[j]} missing" for j in holes))
    return replace(table, x=np.hstack([filled, missing[:, holes].astype(np.float64)]), columns=columns)


def _training(num_rows: int, training_rows: np.ndarray | None) -> np.ndarray:
    rows = np.arange(num_rows) if training_rows is None else np.arange(num_rows)[np.asarray(training_rows)]
    if len(np.unique(rows)) != len(rows):
        raise ValueError("training_rows repeats rows; pass distinct row indices, or a mask of booleans")
    if len(rows) < 2:
        raise ValueError(f"training_rows has {len(rows)} rows; at least two are needed to standardise")
    return rows
