"""The types of columns, and how a cell of each becomes a number. All is agreed in the study; nothing is inferred."""

from __future__ import annotations

import abc
import datetime
import difflib
import enum
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cavity.core.messages import Record
from cavity.errors import StudyError

MISSING_TEXT = frozenset({"", ".", "na", "n/a", "nan", "null"})  # in lower case; what R, SAS, Stata and pandas write
MISSING_LEVEL = "missing"
TRUE_TEXT, FALSE_TEXT = frozenset({"true", "t", "yes", "y", "1"}), frozenset({"false", "f", "no", "n", "0"})
DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?")
DATE_REMEDY = "give it as a number, the days since an agreed date"


class Missing(enum.StrEnum):
    """What a missing value means: its site is refused, its row left out, or it is a level of its own."""

    REFUSE = "refuse"
    DROP = "drop"
    LEVEL = "level"


class ScalingRule(enum.StrEnum):
    """Whether the centre and scale of a column come from sums over all clients."""

    NONE = "none"
    FEDERATED = "federated"


@dataclass(frozen=True)
class FixedScaling(Record):
    """A centre and a scale that the study gives: the model sees (value - centre) / scale."""

    centre: float
    scale: float


class Unreadable(Exception):
    """A cell is not what the study says; the message says what it should be, without its value."""


@dataclass(frozen=True)
class Reading:
    """A column as numbers.

    Attributes:
        values: one per row; only those that are neither missing nor bad have a meaning.
        missing: which cells hold no value.
        bad: what is wrong -> the positions of the cells.
    """

    values: np.ndarray
    missing: np.ndarray
    bad: dict[str, list[int]]


@dataclass(frozen=True, kw_only=True)
class Column(Record, abc.ABC):
    """What the study says about one column.

    Attributes:
        name: in the header of every client's file.
        unit: for people.
        missing: what to do about missing values.
        missing_codes: cells that mean a missing value, beside the empty one and its like.
    """

    dtype: ClassVar[type] = float
    name: str
    unit: str = ""
    missing: Missing = Missing.REFUSE
    missing_codes: tuple[str, ...] = ()

    @abc.abstractmethod
    def value(self, cell: Any) -> Any:
        """The cell, which is not missing, as a value of `dtype`; or Unreadable."""

    def read(self, cells: Sequence[Any]) -> Reading:
        """All cells."""
        values, missing = np.zeros(len(cells), self.dtype), np.zeros(len(cells), bool)
        bad: dict[str, list[int]] = {}
        for i, cell in enumerate(cells):
            if self.is_missing(cell):
                missing[i] = True
                continue
            try:
                values[i] = self.value(cell)
            except Unreadable as problem:
                bad.setdefault(str(problem), []).append(i)
        return Reading(values, missing, bad)

    def is_missing(self, cell: Any) -> bool:
        """Whether the cell holds no value."""
        if cell is None or type(cell).__name__ in ("NAType", "NaTType"):  # those of pandas, which is optional
            return True
        if isinstance(cell, float) and math.isnan(cell):
            return True
        text = as_text(cell).strip()
        return text.lower() in MISSING_TEXT or text in self.missing_codes


def as_text(cell: Any) -> str:
    """A cell as a CSV file would have it: whole numbers without a decimal point."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def is_date(cell: Any) -> bool:
    """Whether it is a date, a time, a duration, or the text of a date as ISO 8601 has it."""
    if isinstance(cell, str):
        return DATE.fullmatch(cell.strip()) is not None
    return isinstance(cell, (datetime.date, datetime.time, datetime.timedelta))


@dataclass(frozen=True, kw_only=True)
class Number(Column):
    """A real number.

    Attributes:
        range: the smallest and the largest value that is believed, or None.
        scaling: of a predictor; None as the whole study does.
    """

    range: tuple[float, float] | None = None
    scaling: FixedScaling | ScalingRule | None = None

    def value(self, cell: Any) -> float:
        return _in_range(_number(cell), self.range)


@dataclass(frozen=True, kw_only=True)
class Integer(Column):
    """A whole number; attributes as those of `Number`."""

    range: tuple[float, float] | None = None
    scaling: FixedScaling | ScalingRule | None = None

    def value(self, cell: Any) -> float:
        number = _number(cell)
        if not number.is_integer():
            raise Unreadable("not a whole number")
        return _in_range(number, self.range)


@dataclass(frozen=True, kw_only=True)
class Boolean(Column):
    """True or false, as 1 or 0."""

    def value(self, cell: Any) -> float:
        text = as_text(cell).strip().lower()
        if text in TRUE_TEXT | FALSE_TEXT:
            return float(text in TRUE_TEXT)
        raise Unreadable("not true or false (nor yes or no, nor 1 or 0)")


@dataclass(frozen=True, kw_only=True)
class Category(Column):
    """One of the agreed levels, as its place among `ordered`.

    Attributes:
        levels: all that there are, whether a site has them or not.
        reference: the level that the others are compared with.
    """

    dtype: ClassVar[type] = int
    levels: tuple[str, ...]
    reference: str

    @property
    def ordered(self) -> tuple[str, ...]:
        """The levels, the reference first, that of missing values last."""
        others = tuple(level for level in self.levels if level != self.reference)
        return (self.reference, *others, *([MISSING_LEVEL] if self.missing == Missing.LEVEL else []))

    def is_missing(self, cell: Any) -> bool:
        return as_text(cell) not in self.levels and super().is_missing(cell)

    def value(self, cell: Any) -> int:
        text = as_text(cell)
        if text in self.levels:
            return self.ordered.index(text)
        near = difflib.get_close_matches(text.strip().lower(), [level.lower() for level in self.levels], 1, 0.75)
        meant = next((level for level in self.levels if near and level.lower() == near[0]), None)
        hint = "" if meant is None else f" (is {meant!r} meant?)"
        hint = f" (it is a date; {DATE_REMEDY})" if is_date(cell) else hint
        raise Unreadable(f"not one of the agreed levels{hint}")

    def read(self, cells: Sequence[Any]) -> Reading:
        reading = super().read(cells)
        if self.missing != Missing.LEVEL:
            return reading
        values = np.where(reading.missing, len(self.ordered) - 1, reading.values)
        return Reading(values, np.zeros_like(reading.missing), reading.bad)


@dataclass(frozen=True, kw_only=True)
class Text(Column):
    """Any text, such as the label of a unit: for the user's own models, which keep it at home."""

    dtype: ClassVar[type] = object

    def value(self, cell: Any) -> str:
        return as_text(cell)


def _number(cell: Any) -> float:
    try:
        number = float(str(cell).replace("_", "?") if isinstance(cell, str) else cell)  # 1_000 is Python's alone
    except (TypeError, ValueError):
        if is_date(cell):
            raise Unreadable(f"a date, and not a number; {DATE_REMEDY}") from None
        comma = isinstance(cell, str) and cell.strip().replace(",", "").lstrip("+-").isdigit()
        raise Unreadable("not a number" + (" (write a decimal point, not a comma)" if comma else "")) from None
    if not math.isfinite(number):
        raise Unreadable("not a finite number")
    return number


def _in_range(number: float, allowed: tuple[float, float] | None) -> float:
    if allowed is not None and not allowed[0] <= number <= allowed[1]:
        raise Unreadable(f"outside of the agreed range {allowed[0]:g} to {allowed[1]:g}")
    return number


def check_column(column: Any) -> None:
    """Raise StudyError where the fields of a column, which may come from a file, are not what they should be."""
    fits = isinstance(column, Column) and isinstance(column.name, str) and column.missing in list(Missing)
    fits = fits and _is_texts(column.missing_codes)
    if fits and isinstance(column, Category):
        fits = _is_texts(column.levels) and column.reference in column.levels
    if fits and isinstance(column, (Number, Integer)) and column.range is not None:
        ends = column.range
        fits = isinstance(ends, tuple) and len(ends) == 2 and all(isinstance(end, (int, float)) for end in ends)
    if not fits:
        raise StudyError(f"the column {getattr(column, 'name', column)!r} is not described as a study would")


def _is_texts(values: Any) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, str) for value in values)
