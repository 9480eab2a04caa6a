"""A table's rows as the study's values, with everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from cavity.errors import DataError
from cavity.study.columns import Column, Missing, as_text
from cavity.study.findings import Finding, Severity, listed
from cavity.study.spelling import did_you_mean
from cavity.study.table import Table

AGREE_TO_DROP = 'impute at the site, or agree on `missing = "drop"`'


@dataclass(frozen=True)
class Rows:
    """The rows of a table that can be used.

    Attributes:
        values: name -> one value per row that is kept; meaningless if the findings have an error.
        numbers: of these rows, as the table counts.
        findings: what is wrong, and which rows are dropped.
    """

    values: dict[str, np.ndarray]
    numbers: np.ndarray
    findings: tuple[Finding, ...]

    def __len__(self) -> int:
        return len(self.numbers)


def with_weight(rows: Rows, name: str | None) -> Rows:
    """The rows whose weight is not 0; all of them if there is no column of weights. Raises DataError.

    Args:
        rows: of a client, read without errors.
        name: of the column of weights.
    """
    weight = row_weights(rows, name)
    if weight is None or (weight > 0).all():
        return rows
    kept = weight > 0
    return replace(rows, values={key: own[kept] for key, own in rows.values.items()}, numbers=rows.numbers[kept])


def row_weights(rows: Rows, name: str | None) -> Float[np.ndarray, " n"] | None:
    """The weights of rows that were read without errors; None if there is no column of weights. Raises DataError.

    Args:
        rows: of a client.
        name: of the column of weights.
    """
    if name is None:
        return None
    weight = np.asarray(rows.values[name], float)
    if (weight < 0).any():
        many = _count(int((weight < 0).sum()), "negative weight")
        raise DataError(f"column '{name}' has {many}; a weight is 0 or more")
    if len(weight) and not (weight > 0).any():
        raise DataError(f"all weights in column '{name}' are 0; leave this client out")
    return weight


def read_rows(
    columns: Sequence[Column], table: Table, *, may_drop: bool = True, if_missing: str = AGREE_TO_DROP
) -> Rows:
    """Read the columns that a model uses. Other columns of the table are ignored.

    Args:
        columns: those to read.
        table: of a site.
        may_drop: whether rows with a missing value may be dropped; otherwise they are errors, whatever the study says.
        if_missing: what to do about missing values, for messages.

    Returns:
        The rows that can be used, and the findings about all rows.
    """
    findings: list[Finding] = []
    if table.broken:
        lines = "line has" if len(table.broken) == 1 else "lines have"
        message = (
            f"{len(table.broken)} {lines} more or fewer fields than the header: "
            f"{listed(table.broken, table.counted_as)}; a cell that contains the separator goes between quotes"
        )
        findings.append(Finding(Severity.ERROR, message, rows=table.broken[:10], num_rows=len(table.broken)))
    numbers = np.asarray(table.rows, int)
    kept, values = np.ones(len(table), bool), {}
    for column in columns:
        if column.name not in table.columns:
            findings.append(_not_found(column.name, table))
            values[column.name] = np.zeros(len(table), column.dtype)
            continue
        parsed = table.parsed(column)
        values[column.name] = parsed.values
        for problem, positions in parsed.bad.items():
            shown = [as_text(table.columns[column.name][i]) for i in positions[:10]]
            rows = [int(numbers[i]) for i in positions]
            message = f"{problem} ({_count(len(rows), 'value')}): {listed(rows, table.counted_as, shown)}"
            findings.append(Finding(Severity.ERROR, message, column.name, tuple(rows[:10]), len(rows)))
        if parsed.missing.any():
            remedy = None if column.missing == Missing.DROP else if_missing
            remedy = remedy if may_drop else "impute them, or leave these rows out"
            findings.append(_missing(column, numbers[parsed.missing].tolist(), table.counted_as, remedy))
            kept &= ~parsed.missing
    if (dropped := int((~kept).sum())) and not any(finding.severity == Severity.ERROR for finding in findings):
        findings.append(Finding(Severity.NOTE, f"{_count(dropped, 'row')} of {len(table)} dropped in total"))
    return Rows({name: column[kept] for name, column in values.items()}, numbers[kept], tuple(findings))


def _missing(column: Column, rows: list[int], counted_as: str, remedy: str | None) -> Finding:
    where, count = listed(rows, counted_as), _count(len(rows), "missing value")
    if remedy is None:
        return Finding(Severity.NOTE, f"{count}: {where}; dropped", column.name, tuple(rows[:10]), len(rows))
    return Finding(Severity.ERROR, f"{count}: {where}; {remedy}", column.name, tuple(rows[:10]), len(rows))


def _not_found(name: str, table: Table) -> Finding:
    hint = did_you_mean(name, table.columns)
    return Finding(
        Severity.ERROR, f"column not found{hint}; the table has {', '.join(table.columns)}; rename it there", name
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
