"""What a column seems to be: for data that are all in one place, and for the first draft of a study.

At a site of a study nothing is guessed; there the file says it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cavity.errors import DataError
from cavity.study.columns import Boolean, Category, Column, Integer, Missing, Number, Text, Unreadable, as_text


def guess_predictor(
    name: str, cells: Sequence[Any], levels: tuple[str, ...] | None, *, drop_missing: bool = False
) -> Column:
    """By the types of the cells: truth values, numbers, else a category of the levels given or seen."""
    missing = Missing.DROP if drop_missing else Missing.REFUSE
    present = _present(cells)
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

    Text with more than `most_levels` different values is taken for an identifier or free text.
    """
    probe = Number(name=name)
    present = [cell for cell in cells if not probe.is_missing(cell)]
    for column in (Boolean(name=name), Integer(name=name), Number(name=name)):
        if present and all(_reads(column, cell) for cell in set(present)):
            return column
    if len(set(present)) > most_levels:
        return Text(name=name)
    return Category(name=name, levels=(), reference="")


def seen_levels(cells: Sequence[Any]) -> tuple[str, ...]:
    """All different values as texts: numbers by size, before texts by the alphabet."""
    return tuple(sorted({as_text(cell) for cell in _present(cells)}, key=_by_size))


def _category(name: str, present: Sequence[Any], levels: tuple[str, ...] | None, missing: Missing) -> Category:
    levels = seen_levels(present) if levels is None else levels
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
