"""A table's cells as the study's values, with all that is wrong with them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cavity.study.columns import Column, Missing, as_text
from cavity.study.findings import Finding, Severity, listed
from cavity.study.table import Table


@dataclass(frozen=True)
class Rows:
    """The rows of a table that can be used.

    Attributes:
        values: name -> one value per row that is kept; meaningless where the findings have an error.
        numbers: of these rows, as the table counts.
        findings: what is wrong, what is left out.
    """

    values: dict[str, np.ndarray]
    numbers: np.ndarray
    findings: tuple[Finding, ...]

    def __len__(self) -> int:
        return len(self.numbers)


def read_rows(columns: Sequence[Column], table: Table, *, may_drop: bool = True) -> Rows:
    """Read the columns that a model uses; other columns of the table are not looked at.

    Args:
        columns: those to be read.
        table: of a site.
        may_drop: whether rows with a missing value may be left out; else they are errors, whatever the study says.
    """
    findings: list[Finding] = []
    if table.broken:
        message = f"{len(table.broken)} lines have more or fewer fields than the header: " + listed(
            table.broken, table.counted_as
        )
        findings.append(Finding(Severity.ERROR, message, rows=table.broken[:10], num_rows=len(table.broken)))
    numbers = np.asarray(table.rows, int)
    kept, values = np.ones(len(table), bool), {}
    for column in columns:
        if column.name not in table.columns:
            findings.append(_lacking(column.name, table))
            values[column.name] = np.zeros(len(table), column.dtype)
            continue
        cells = table.columns[column.name]
        reading = column.read(cells)
        values[column.name] = reading.values
        for problem, places in reading.bad.items():
            shown = [as_text(cells[i]) for i in places[:10]]
            rows = [int(numbers[i]) for i in places]
            message = f"{problem} ({_count(len(rows), 'value')}): {listed(rows, table.counted_as, shown)}"
            findings.append(Finding(Severity.ERROR, message, column.name, tuple(rows[:10]), len(rows)))
        if reading.missing.any():
            drop = column.missing == Missing.DROP and may_drop
            findings.append(_missing(column, numbers[reading.missing].tolist(), table.counted_as, drop=drop))
            kept &= ~reading.missing
    if (left_out := int((~kept).sum())) and not any(finding.severity == Severity.ERROR for finding in findings):
        findings.append(Finding(Severity.NOTE, f"{_count(left_out, 'row')} of {len(table)} left out in all"))
    return Rows({name: column[kept] for name, column in values.items()}, numbers[kept], tuple(findings))


def _missing(column: Column, rows: list[int], counted_as: str, *, drop: bool) -> Finding:
    where = listed(rows, counted_as)
    if drop:
        message = f"{_count(len(rows), 'value')} missing, these rows are left out as the study says: {where}"
        return Finding(Severity.NOTE, message, column.name, tuple(rows[:10]), len(rows))
    message = f'{_count(len(rows), "value")} missing: {where}; fill them in, or agree on `missing = "drop"`'
    return Finding(Severity.ERROR, message, column.name, tuple(rows[:10]), len(rows))


def _lacking(name: str, table: Table) -> Finding:
    near = difflib.get_close_matches(name, list(table.columns), 1)
    hint = f" (is {near[0]!r} meant?)" if near else ""
    return Finding(Severity.ERROR, f"it is not there{hint}; the table has {', '.join(table.columns)}", name)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
