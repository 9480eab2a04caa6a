"""The types of columns, and how a cell of each type becomes a number. The study declares them; nothing is inferred."""

from __future__ import annotations

import abc
import datetime
import enum
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, SupportsFloat

import numpy as np

from cavity.core.messages import Record
from cavity.errors import StudyError
from cavity.study.spelling import did_you_mean

MISSING_TEXT = frozenset({"", ".", "na", "n/a", "nan", "null"})  # in lower case; what R, SAS, Stata and pandas write
MISSING_LEVEL = "missing"
MOST_LEVELS = 10  # in a message
TRUE_TEXT, FALSE_TEXT = frozenset({"true", "t", "yes", "y", "1"}), frozenset({"false", "f", "no", "n", "0"})
DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?")
OTHER_TYPES = {
    **dict.fromkeys(("float", "double", "real", "numeric", "decimal", "continuous"), "number"),
    **dict.fromkeys(("int", "int64", "count", "long"), "integer"),
    **dict.fromkeys(("factor", "enum", "nominal", "ordered", "ordinal"), "category"),
    **dict.fromkeys(("bool", "logical", "binary", "flag"), "boolean"),
    **dict.fromkeys(("string", "str", "character", "varchar", "object"), "text"),
}
DATE_REMEDY = "give it as a number, the days since an agreed date"


class Missing(enum.StrEnum):
    """What to do about a missing value: refuse the site's data, drop the row, or make it a level of its own."""

    REFUSE = "refuse"
    DROP = "drop"
    LEVEL = "level"


class ScalingRule(enum.StrEnum):
    """Whether the centre and scale of a column come from sums over all clients."""

    NONE = "none"
    FEDERATED = "federated"

    @property
    def fixed(self) -> FixedScaling | None:
        """The centre and scale that the study gives: none."""
        return None


@dataclass(frozen=True)
class FixedScaling(Record):
    """A centre and a scale that the study gives: the model computes with (value - centre) / scale."""

    centre: float
    scale: float

    @property
    def fixed(self) -> FixedScaling:
        """The centre and scale that the study gives: these."""
        return self


class Unreadable(Exception):
    """A cell does not match its column's type. The message says what is expected and does not quote the value."""


@dataclass(frozen=True)
class ParsedColumn:
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
    """What the study declares about one column.

    Attributes:
        type_name: the name of its type in a study file.
        dtype: of its values.
        is_numeric: whether a formula may compute with it and whether it may be scaled.
        formula_problem: why no formula can use it as a predictor, or None.
        group_problem: why it cannot name the groups of `(1 | g)`, or None.
        name: in the header of every client's file.
        unit: for people.
        missing: what to do about missing values.
        missing_codes: cells that mean a missing value, beside the empty cell and the usual codes.
    """

    type_name: ClassVar[str]
    dtype: ClassVar[type] = float
    is_numeric: ClassVar[bool] = False
    formula_problem: ClassVar[str | None] = None
    group_problem: ClassVar[str | None] = None
    name: str
    unit: str = ""
    missing: Missing = Missing.REFUSE
    missing_codes: tuple[str, ...] = ()

    @abc.abstractmethod
    def value(self, cell: object) -> float | str:
        """The cell, which is not missing, as a value of `dtype`. Raises Unreadable."""

    @property
    def limits(self) -> tuple[float, float] | None:
        """The smallest and the largest value, if the study declares them."""
        return None

    @property
    def scaling_rule(self) -> FixedScaling | ScalingRule | None:
        """The column's own rule for scaling; None follows the study's rule."""
        return None

    @property
    def level_names(self) -> tuple[str, ...]:
        """The levels of a category, the reference first; empty for other types."""
        return ()

    def parse(self, cells: Sequence[object]) -> ParsedColumn:
        """All cells as values."""
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
        return ParsedColumn(values, missing, bad)

    def is_missing(self, cell: object) -> bool:
        """Whether the cell holds no value."""
        if cell is None or type(cell).__name__ in ("NAType", "NaTType"):  # those of pandas, which is optional
            return True
        match cell:
            case float() if math.isnan(cell):
                return True
        text = as_text(cell).strip()
        return text.lower() in MISSING_TEXT or text in self.missing_codes

    def check(self) -> None:
        """Raise StudyError if the fields, which may come from a file, contradict each other."""
        if self.missing not in list(Missing):
            raise StudyError(f"column '{self.name}' is not valid: {self.missing!r} is not a rule for missing values")


def as_text(cell: object) -> str:
    """A cell as a CSV file would have it: whole numbers without a decimal point."""
    match cell:
        case float() if cell.is_integer():
            return str(int(cell))
        case _:
            return str(cell)


def is_date(cell: object) -> bool:
    """Whether it is a date, a time, a duration, or the text of a date as in ISO 8601."""
    match cell:
        case str():
            return DATE.fullmatch(cell.strip()) is not None
        case datetime.date() | datetime.time() | datetime.timedelta():
            return True
        case _:
            return False


@dataclass(frozen=True, kw_only=True)
class Numeric(Column):
    """A number.

    Attributes:
        range: the smallest and the largest value that is accepted, or None.
        scaling: the column's own rule; None follows the study's rule.
    """

    is_numeric: ClassVar[bool] = True
    range: tuple[float, float] | None = None
    scaling: FixedScaling | ScalingRule | None = None

    @property
    def limits(self) -> tuple[float, float] | None:
        return self.range

    @property
    def scaling_rule(self) -> FixedScaling | ScalingRule | None:
        return self.scaling

    def _in_range(self, number: float) -> float:
        if self.range is not None and not self.range[0] <= number <= self.range[1]:
            raise Unreadable(f"outside the agreed range {self.range[0]:g} to {self.range[1]:g}")
        return number


@dataclass(frozen=True, kw_only=True)
class Number(Numeric):
    """A real number."""

    type_name: ClassVar[str] = "number"
    group_problem: ClassVar[str | None] = "is a number and cannot name groups; declare it as text or integer"

    def value(self, cell: object) -> float:
        return self._in_range(_number(cell))


@dataclass(frozen=True, kw_only=True)
class Integer(Numeric):
    """A whole number."""

    type_name: ClassVar[str] = "integer"

    def value(self, cell: object) -> float:
        number = _number(cell)
        if not number.is_integer():
            raise Unreadable('not a whole number; a column that may have fractions has the type "number"')
        return self._in_range(number)


@dataclass(frozen=True, kw_only=True)
class Boolean(Column):
    """True or false, as 1 or 0."""

    type_name: ClassVar[str] = "boolean"

    @property
    def limits(self) -> tuple[float, float] | None:
        return 0.0, 1.0

    def value(self, cell: object) -> float:
        text = as_text(cell).strip().lower()
        if text in TRUE_TEXT | FALSE_TEXT:
            return float(text in TRUE_TEXT)
        hint = "; a column that is coded 1 and 2 is a category with levels = [1, 2]" if text == "2" else ""
        raise Unreadable(f"not true or false (nor yes or no, nor 1 or 0){hint}")


@dataclass(frozen=True, kw_only=True)
class Category(Column):
    """One of the agreed levels, as its position in `level_names`.

    Attributes:
        levels: all levels of the study, whether or not a site has them.
        reference: the level that the others are compared with.
    """

    type_name: ClassVar[str] = "category"
    dtype: ClassVar[type] = int
    levels: tuple[str, ...]
    reference: str

    @property
    def level_names(self) -> tuple[str, ...]:
        """The levels, the reference first, that of missing values last."""
        others = tuple(level for level in self.levels if level != self.reference)
        return (self.reference, *others, *([MISSING_LEVEL] if self.missing == Missing.LEVEL else []))

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {level: i for i, level in enumerate(self.level_names) if level in self.levels}

    def is_missing(self, cell: object) -> bool:
        return as_text(cell) not in self._positions and super().is_missing(cell)

    def value(self, cell: object) -> int:
        text = as_text(cell)
        if text in self._positions:
            return self._positions[text]
        hint = did_you_mean(text, self.levels, 0.75) or f", which are {_some(self.levels)}"
        hint = f" (it is a date; {DATE_REMEDY})" if is_date(cell) else hint
        raise Unreadable(f"not one of the agreed levels{hint}")

    def parse(self, cells: Sequence[object]) -> ParsedColumn:
        parsed = super().parse(cells)
        if self.missing != Missing.LEVEL:
            return parsed
        values = np.where(parsed.missing, len(self.level_names) - 1, parsed.values)
        return ParsedColumn(values, np.zeros_like(parsed.missing), parsed.bad)

    def check(self) -> None:
        super().check()
        if self.reference not in self.levels:
            raise StudyError(f"column '{self.name}' is not valid: its reference is not one of its levels")


@dataclass(frozen=True, kw_only=True)
class Text(Column):
    """A text, such as the name of a group. It names the groups of `(1 | g)`; texts are not sent."""

    type_name: ClassVar[str] = "text"
    dtype: ClassVar[type] = object
    formula_problem: ClassVar[str | None] = f"is text; declare it as a category, or if it is a date, {DATE_REMEDY}"

    def value(self, cell: object) -> str:
        return as_text(cell)


def type_hint(word: str, known: Collection[str]) -> str:
    """A hint at the type that another program's word for it means, or nothing.

    Args:
        word: that is no type.
        known: the names of types.
    """
    plain = word.strip().lower()
    if plain.startswith(("date", "time", "posix")):
        return f' (for a date, use "number" and {DATE_REMEDY})'
    found = OTHER_TYPES.get(plain)
    return did_you_mean(word, known, 0.5) if found is None else f" (did you mean {found!r}?)"


def _some(levels: Sequence[str]) -> str:
    """The first levels, for a message."""
    shown = ", ".join(levels[:MOST_LEVELS])
    return shown if len(levels) <= MOST_LEVELS else f"{shown} and {len(levels) - MOST_LEVELS} more"


def _number(cell: object) -> float:
    try:
        match cell:
            case str():
                number = float(cell.replace("_", "?"))  # only Python reads 1_000 as a number
            case SupportsFloat():
                number = float(cell)
            case _:
                raise ValueError
    except ValueError:
        if is_date(cell):
            raise Unreadable(f"a date, not a number; {DATE_REMEDY}") from None
        text = str(cell).strip()
        if text.replace(",", "").lstrip("+-").isdigit():
            raise Unreadable("not a number (write a decimal point, not a comma)") from None
        has_digits = any(char.isdigit() for char in text)
        raise Unreadable("not a number" + (" (write the number alone)" if has_digits else "")) from None
    if not math.isfinite(number):
        raise Unreadable("not a finite number; leave the cell empty if it is missing")
    return number
