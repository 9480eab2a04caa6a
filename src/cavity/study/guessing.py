"""What a column seems to be: for data that are all in one place, and for the first draft of a study.

At a site of a study nothing is guessed; there the file says it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cavity.errors import DataError
from cavity.study.columns import (
    DATE_REMEDY,
    Boolean,
    Category,
    Column,
    Integer,
    Missing,
    Number,
    Text,
    Unreadable,
    as_text,
    is_date,
)

FEW_LEVELS = 20  # so many are plausible in any number of rows


def guess_predictor(
    name: str, cells: Sequence[Any], levels: tuple[str, ...] | None, *, drop_missing: bool = False
) -> Column:
    """By the types of the cells: truth values, numbers, else a category of the levels given or seen."""
    missing = Missing.DROP if drop_missing else Missing.REFUSE
    present = _present(cells)
    _refuse_dates(name, present, levels)
    if levels is None and present and all(isinstance(cell, bool) for cell in present):
        return Boolean(name=name, missing=missing)
    if levels is None and all(isinstance(cell, (int, float)) for cell in present):
        return Number(name=name, missing=missing)
    return _category(name, present, levels, missing)


def guess_outcome(
    name: str, cells: Sequence[Any], kind: str, levels: tuple[str, ...] | None, *, drop_missing: bool = False
) -> Column:
    """By what the regression needs, and the types of the cells."""
    missing = Missing.DROP if drop_missing else Missing.REFUSE
    present = _present(cells)
    _refuse_dates(name, present, levels)
    numeric = all(isinstance(cell, (int, float)) for cell in present)
    if kind == "linear":
        return Number(name=name, missing=missing)
    if kind == "poisson":
        return Integer(name=name, missing=missing, range=(0.0, math.inf))
    if kind == "logistic" and levels is None and numeric:
        return Integer(name=name, missing=missing, range=(0.0, 1.0))
    return _category(name, present, levels, missing)


def guess_from_text(name: str, cells: Sequence[str], *, most_levels: int) -> Column:
    """By the texts of a CSV file. A category has no levels: what a file holds is not what was agreed.

    Text with more than `most_levels` different values is taken for an identifier or free text; so are dates.
    """
    probe = Number(name=name)
    present = [cell for cell in cells if not probe.is_missing(cell)]
    for column in (Boolean(name=name), Integer(name=name), Number(name=name)):
        if present and all(_reads(column, cell) for cell in set(present)):
            return column
    if len(set(present)) > most_levels or holds_dates(cells):
        return Text(name=name)
    return Category(name=name, levels=(), reference="")


def holds_dates(cells: Sequence[Any]) -> bool:
    """Whether any of the values is a date."""
    return any(is_date(cell) for cell in cells)


def seen_levels(cells: Sequence[Any]) -> tuple[str, ...]:
    """All different values as texts: numbers by size, before texts by the alphabet."""
    return tuple(sorted({as_text(cell) for cell in _present(cells)}, key=_by_size))


def _refuse_dates(name: str, present: Sequence[Any], levels: tuple[str, ...] | None) -> None:
    if levels is None and holds_dates(present):
        raise DataError(f"column '{name}' holds dates, which no regression takes as they are: {DATE_REMEDY}")


def _category(name: str, present: Sequence[Any], levels: tuple[str, ...] | None, missing: Missing) -> Category:
    if levels is None:
        levels = seen_levels(present)
        if len(levels) > max(FEW_LEVELS, len(present) / 2):
            raise DataError(
                f"column '{name}' has {len(levels)} different texts in {len(present)} rows, like an identifier: leave "
                "it out of the formula, or give its levels if it is a category"
            )
    if len(set(levels)) < max(2, len(levels)):
        raise DataError(f"column '{name}' needs at least two different levels; it has {', '.join(levels) or 'none'}")
    return Category(name=name, levels=levels, reference=levels[0], missing=missing)


def _present(cells: Sequence[Any]) -> list[Any]:
    probe = Text(name="")
    return [cell for cell in cells if not probe.is_missing(cell)]


def _reads(column: Column, cell: str) -> bool:
    try:
        column.value(cell)
    except Unreadable:
        return False
    return True


def _by_size(text: str) -> tuple[bool, float, str]:
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text
