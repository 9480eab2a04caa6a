"""The type of a column from its cells: for data in Python, and for the first draft of a study.

At a site of a study nothing is guessed; the study file declares every column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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
FEW_ROWS = 10  # in fewer, nothing can be concluded from repeated or different values
ID_WORDS = frozenset({"id", "ids", "identifier", "uid", "uuid", "pid", "mrn"})  # in the name of a column
PERSON_WORDS = frozenset({"participant", "patient", "person", "record", "subject"})
KEY_WORDS = PERSON_WORDS | frozenset({"case", "index", "key", "no", "nr", "num", "number", "row"})
LARGE_KEY = 1_000_000  # whole numbers from here that are all different are identifiers
# Words for a missing value, in lower case, that no family's outcome and no number has.
UNKNOWN_TEXT = frozenset(
    {"?", "??", "--", "missing", "nk", "not available", "not done", "not known", "not recorded", "unk", "unknown"}
)


@dataclass(frozen=True)
class RawColumn:
    """A column of data in Python that no study describes.

    Attributes:
        name: of the column.
        cells: of all clients.
        levels: if they are given, the reference first.
        missing: what to do about missing values.
    """

    name: str
    cells: Sequence[object]
    levels: tuple[str, ...] | None = None
    missing: Missing = Missing.REFUSE

    def __post_init__(self) -> None:
        if self.levels is None and holds_dates(self.present):
            raise DataError(f"column '{self.name}' holds dates, which no regression can use: {DATE_REMEDY}")

    @cached_property
    def present(self) -> list[object]:
        """The cells that are not missing."""
        return _present(self.cells)

    @property
    def is_numeric(self) -> bool:
        """Whether all cells are numbers or truth values."""
        return all(isinstance(cell, (int, float)) for cell in self.present)

    @property
    def is_boolean(self) -> bool:
        """Whether all cells are truth values, and there are some."""
        return bool(self.present) and all(isinstance(cell, bool) for cell in self.present)

    @property
    def has_numbers(self) -> bool:
        """Whether any cell is a number, or a text that can be read as one."""
        return any(_reads(Number(name=self.name), cell) for cell in self.present)

    def category(self) -> Category:
        """A category of the levels given, or of those that occur. Raises DataError."""
        levels = self.levels
        if levels is None:
            levels = seen_levels(self.present)
            if len(levels) > max(FEW_LEVELS, len(self.present) / 2):
                if self.has_numbers:
                    text = next(level for level in levels if not _reads(Number(name=""), level) or level is levels[-1])
                    raise DataError(
                        f"column '{self.name}' has numbers, but also texts such as {text!r}: convert the column to "
                        "numbers, with missing values as None, or leave it out of the formula if it is an identifier"
                    )
                raise DataError(
                    f"column '{self.name}' has {len(levels)} different texts in {len(self.present)} rows, like an "
                    "identifier: leave it out of the formula, or give its levels if it is a category"
                )
        if len(set(levels)) < max(2, len(levels)):
            found = ", ".join(levels) or "none"
            raise DataError(
                f"column '{self.name}' needs at least two different levels; it has {found}. Leave it out of "
                "the formula, or give all its levels"
            )
        return Category(name=self.name, levels=levels, reference=levels[0], missing=self.missing)


def guess_predictor(raw: RawColumn) -> Column:
    """The type of a predictor: boolean, number, or else a category of the levels given or seen."""
    if raw.levels is None and raw.is_boolean:
        return Boolean(name=raw.name, missing=raw.missing)
    if raw.levels is None and raw.is_numeric:
        return Number(name=raw.name, missing=raw.missing)
    return raw.category()


def guess_from_text(name: str, cells: Sequence[object], *, most_levels: int) -> Column:
    """The type of a column of a CSV file. A category has no levels here, because the sites have to agree on them.

    Words such as "unknown" among numbers or truth values are codes for missing values. In a category they are levels.

    Args:
        name: of the column.
        cells: its texts.
        most_levels: a column with more different texts is an identifier or free text; so is one with dates.
    """
    probe = Number(name=name)
    present = {as_text(cell) for cell in cells if not probe.is_missing(cell)}
    codes = unknown_codes(cells)
    known = {text for text in present if text.strip() not in codes}
    for kind in (Boolean, Integer, Number):
        column = kind(name=name, missing_codes=codes)
        if known and all(_reads(column, cell) for cell in known):
            return column
    if len(present) > most_levels or holds_dates(cells):
        return Text(name=name)
    return Category(name=name, levels=(), reference="")


def unknown_codes(cells: Sequence[object]) -> tuple[str, ...]:
    """The words among these cells that mean a missing value, such as "unknown"."""
    found = {as_text(cell).strip() for cell in _present(cells)}
    return tuple(sorted(text for text in found if text.lower() in UNKNOWN_TEXT))


def left_out(name: str, column: Column, cells: Sequence[object]) -> str | None:
    """Why a column of a CSV file does not belong into a formula, or None.

    Args:
        name: of the column.
        column: its type, as `guess_from_text` has it.
        cells: its texts.
    """
    if holds_dates(cells):
        return "dates"
    if column.formula_problem is not None:
        return "identifiers or free text"
    present = [as_text(cell) for cell in _present(cells)]
    different = set(present)
    if len(different) == 1 and len(present) >= FEW_ROWS:
        return "the same value in every row"
    if column.type_name != "integer":
        return None
    words = set(re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()))
    if words & ID_WORDS or (words & PERSON_WORDS and words <= KEY_WORDS):  # with several rows per patient, too
        return "identifiers"
    if len(present) < FEW_ROWS or len(different) < len(present):
        return None
    numbers = sorted(float(cell) for cell in different if cell not in column.missing_codes)
    is_sequence = numbers[-1] - numbers[0] == len(numbers) - 1
    return "identifiers" if is_sequence or words & KEY_WORDS or numbers[0] >= LARGE_KEY else None


def holds_dates(cells: Sequence[object]) -> bool:
    """Whether any of the values is a date."""
    return any(is_date(cell) for cell in cells)


def seen_levels(cells: Sequence[object]) -> tuple[str, ...]:
    """All different values as texts: numbers by size, then texts in alphabetical order."""
    return tuple(sorted({as_text(cell) for cell in _present(cells)}, key=_by_size))


def _present(cells: Sequence[object]) -> list[object]:
    probe = Text(name="")
    return [cell for cell in cells if not probe.is_missing(cell)]


def _reads(column: Column, cell: object) -> bool:
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
