"""What a site should know about its data before it joins. Findings quote values, so they stay at the site."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cavity.errors import DataError

MOST_SHOWN = 10  # rows per finding


class Severity(enum.StrEnum):
    """An error prevents a site from joining; a warning should be considered; a note is for information."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One kind of problem, wherever it occurs.

    Attributes:
        severity: whether it prevents the site from joining.
        message: what it is and what to do, with the rows and values in question.
        column: the column in question, if there is one.
        rows: the first rows in question, numbered as the owner of the table counts.
        num_rows: the number of rows in question.
    """

    severity: Severity
    message: str
    column: str | None = None
    rows: tuple[int, ...] = ()
    num_rows: int = 0

    def __str__(self) -> str:
        return self.message if self.column is None else f"column '{self.column}': {self.message}"


def listed(rows: Sequence[int], counted_as: str, values: Sequence[str] | None = None) -> str:
    """The first rows as text, with their values: `'x' (line 4), 'y' (line 9) and 3 more`.

    Args:
        rows: their numbers.
        counted_as: "row" or "line".
        values: the cells in these rows, to be quoted.
    """
    shown = list(rows[:MOST_SHOWN])
    if values is None:
        noun = counted_as if len(shown) == 1 else f"{counted_as}s"
        text = f"{noun} {', '.join(map(str, shown))}"
    else:
        text = ", ".join(f"{value!r} ({counted_as} {row})" for row, value in zip(shown, values, strict=False))
    left = len(rows) - len(shown)
    return f"{text} and {left} more" if left > 0 else text


def refuse(findings: Iterable[Finding]) -> None:
    """Raise DataError with all errors among the findings, if there are any."""
    if errors := [str(finding) for finding in findings if finding.severity == Severity.ERROR]:
        raise DataError("; ".join(errors))
