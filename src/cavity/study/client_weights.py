"""Weights and offsets of rows, and levels that must occur, for data frames in one process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from cavity.core.client_data import Weighted
from cavity.errors import DataError, StudyError
from cavity.study.building import absent_level
from cavity.study.columns import Column, Missing, Number
from cavity.study.encoding import FormulaEncoding, offset_values
from cavity.study.formula import Formula
from cavity.study.rows import Rows, row_weights, with_weight
from cavity.study.table import Table

Weights = Mapping[str, Float[np.ndarray, " n"] | None]  # by client; None is 1 for every row


def weight_column(
    name: str | None, formula: Formula, tables: Mapping[str, Table], missing: Missing
) -> tuple[Column, ...]:
    """The column of weights, if there is one. Raises DataError.

    Args:
        name: of the column, or None.
        formula: which must not use it.
        tables: of all clients.
        missing: what to do about missing weights.
    """
    if name is None:
        return ()
    if name in formula.columns:
        raise StudyError(f"the column '{name}' of weights is also in the formula; remove it there")
    for client, table in tables.items():
        if name not in table.columns:
            raise DataError(f"client {client!r}: column '{name}' not found; it has {', '.join(table.columns)}")
    return (Number(name=name, missing=missing, range=(0.0, math.inf)),)


def rows_with_weight(name: str | None, rows: Mapping[str, Rows]) -> tuple[dict[str, Rows], Weights]:
    """The rows of every client whose weight is not 0, and their weights. Raises DataError.

    Args:
        name: of the column of weights, or None.
        rows: by client.
    """
    found = {}
    for client, own in rows.items():
        try:
            found[client] = with_weight(own, name)
        except DataError as error:
            raise DataError(f"client {client!r}: {error}") from None
    return found, {client: row_weights(own, name) for client, own in found.items()}


def weighted_rows(
    encoding: FormulaEncoding, tables: Mapping[str, Table], rows: Mapping[str, Rows], weights: Weights
) -> dict[str, Weighted]:
    """The rows of every client with their weights.

    Args:
        encoding: from rows to features and outcomes.
        tables: of all clients.
        rows: that were read from them.
        weights: of these rows.
    """
    read = encoding.grouped if encoding.parsed.groups else encoding.encoded
    return {client: Weighted(read(own, tables[client].counted_as), weights[client]) for client, own in rows.items()}


def refuse_absent_levels(outcome: tuple[Column, ...], rows: Mapping[str, Rows]) -> None:
    """Raise DataError if a level of the outcome occurs at no client.

    Args:
        outcome: its columns.
        rows: by client.
    """
    for column in outcome:
        seen = {value for own in rows.values() for value in own.values[column.name].tolist()}
        for i, level in enumerate(column.level_names):
            if i not in seen:
                raise DataError(absent_level(f"{column.name}[{level}]"))


def without_offset(formula: Formula, tables: Mapping[str, Table], rows: Mapping[str, Rows]) -> Mapping[str, Rows]:
    """The rows with the offset subtracted from the outcome.

    Args:
        formula: with offsets, or none.
        tables: of all clients.
        rows: that were read from them.
    """
    if not formula.offsets:
        return rows
    found, name = {}, formula.outcomes[0]
    for client, own in rows.items():
        try:
            offset = offset_values(formula, own, tables[client].counted_as)
        except DataError as error:
            raise DataError(f"client {client!r}: {error}") from None
        found[client] = replace(own, values=own.values | {name: own.values[name] - offset})
    return found
