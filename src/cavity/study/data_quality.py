"""What is probably wrong with rows that can be read: codes for missing values among numbers, values far from all
others, copies of rows, columns that determine each other, and predictors that separate the outcome.

All of it is a warning: the rows of one site cannot prove a mistake.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from cavity.errors import DataError
from cavity.evaluation.separation import separating_column, separating_direction
from cavity.study.columns import Column, as_text
from cavity.study.findings import Finding, Severity, listed
from cavity.study.rows import Rows
from cavity.study.table import Table

CODES = frozenset({88, 99, 888, 999, 8888, 9999, 88888, 99999, 999999, 9999999, -8, -9, -88, -99, -888, -999, -9999})
FAR = 100.0  # times the distance from the median that nine of ten rows have
FEW_DIGITS = 1e7  # times the standard deviation: the mean square of such a column has lost half of its digits
COLLINEAR = 1e-7  # relative to a column's own size: what the others leave of it
CHANCE = 3.0  # standard deviations above the number of equal pairs of rows that independent columns would have
LOG_CHANCE = -14.0  # of the probability that two clients have the same rows: one in a million


def number_findings(columns: Sequence[Column], rows: Rows, counted_as: str) -> Iterator[Finding]:
    """Numbers that look like codes, or are far from all others.

    Args:
        columns: of the model.
        rows: that were read without errors.
        counted_as: what the numbers of the rows count, for messages.
    """
    for column in columns:
        if not column.is_numeric or len(rows) < 3:
            continue
        values = np.asarray(rows.values[column.name], float)
        is_code = _codes(values)
        for code in np.unique(values[is_code]):
            own, others = values == code, values[~is_code]
            message = (
                f"{code:g} looks like a code for a missing value ({_where(rows, own, counted_as)}); the other values "
                f'are from {others.min():g} to {others.max():g}. If it is one, agree on `missing_codes = ["{code:g}"]`'
            )
            yield _warning(message, column.name, rows, own)
        far = _far(values) & ~is_code
        if far.any():
            shown = [f"{value:g}" for value in values[far][:10]]
            others = values[~far & ~is_code]
            message = (
                f"far from all other values, which are from {others.min():g} to {others.max():g}: "
                f"{listed(rows.numbers[far].tolist(), counted_as, shown)}; correct them, or agree on a `range`"
            )
            yield _warning(message, column.name, rows, far)
        elif 0 < np.std(values) * FEW_DIGITS < abs(float(np.mean(values))):
            message = (
                f"its values are {np.mean(values):g} and differ by {np.ptp(values):g} only, so sums of their squares "
                "lose digits; subtract an agreed number from them"
            )
            yield Finding(Severity.WARNING, message, column.name)


def _codes(values: Float[np.ndarray, " n"]) -> np.ndarray:
    """Which values are usual codes for a missing value, and do not fit the others."""
    is_code = np.isin(values, list(CODES))
    others = values[~is_code]
    if not is_code.any() or len(others) < 2:
        return np.zeros(len(values), bool)
    low, high = others.min(), others.max()
    beyond = (values - high > high - low) | (low - values > high - low) | ((values < 0) & (low >= 0))
    return is_code & beyond


def _far(values: Float[np.ndarray, " n"]) -> np.ndarray:
    """Which values are out of all proportion to the others."""
    distance = np.abs(values - np.median(values))
    usual = float(np.quantile(distance, 0.9, method="lower"))
    return distance > FAR * usual if usual > 0 else np.zeros(len(values), bool)


def copies(table: Table) -> Iterator[Finding]:
    """Rows that are copies of others in every column of a table, if chance does not explain them.

    Args:
        table: of a site, with all its columns.
    """
    lines = list(zip(*table.columns.values(), strict=True))
    seen: dict[tuple[object, ...], int] = {}
    found = [number for number, line in zip(table.rows, lines, strict=True) if seen.setdefault(line, number) != number]
    if not found:
        return
    expected = _equal_pairs(list(table.columns.values()))
    if len(found) > expected + CHANCE * math.sqrt(expected):
        are = "row is a copy" if len(found) == 1 else "rows are copies"
        message = (
            f"{len(found)} {are} of an earlier row in every column: {listed(found, table.counted_as)}; remove them if "
            "they are the same patients"
        )
        yield Finding(Severity.WARNING, message, rows=tuple(found[:10]), num_rows=len(found))


def _equal_pairs(columns: Sequence[Sequence[object]]) -> float:
    """The number of pairs of equal rows to expect of independent columns, leaving out those that others determine."""
    n = len(columns[0])
    expected, groups, num_groups = 0.5 * n * (n - 1), [0] * n, 1  # rows that are equal so far
    for cells in sorted(columns, key=lambda cells: len(set(cells))):
        numbers: dict[tuple[int, object], int] = {}
        groups = [numbers.setdefault(pair, len(numbers)) for pair in zip(groups, cells, strict=True)]
        if len(numbers) > num_groups:
            expected *= sum(count * (count - 1) for count in Counter(cells).values()) / (n * (n - 1))
        num_groups = len(numbers)
    return expected


def refuse_same_rows(tables: Mapping[str, Table]) -> None:
    """Raise DataError if two clients have the same rows, in any order, and chance does not explain it.

    Such rows would count twice.

    Args:
        tables: of all clients.
    """
    by_shape = _grouped(tables, lambda table: (len(table), *sorted(table.columns)))
    candidates = {name: tables[name] for names in by_shape if len(names) > 1 for name in names if len(tables[name]) > 1}
    for names in _grouped(candidates, _digests):
        for name, other in itertools.pairwise(names):
            if _same(tables[name], tables[other]):
                raise DataError(
                    f"clients {name!r} and {other!r} have the same {len(tables[name])} rows, which would count twice; "
                    "give each client its own data, or leave one out"
                )


def _same(table: Table, other: Table) -> bool:
    """Whether two tables have the same rows, and too many for chance."""
    mine, theirs = _lines(table), _lines(other)
    n = len(mine)
    equal = _equal_pairs(list(zip(*mine, strict=True))) / (0.5 * n * (n - 1))  # the probability of two equal rows
    log_chance = n * math.log(equal) if equal > 0 else -math.inf
    if mine != theirs:
        log_chance += math.lgamma(n + 1)  # of some order
    return log_chance < LOG_CHANCE and (mine == theirs or sorted(mine) == sorted(theirs))


def _grouped(tables: Mapping[str, Table], key: Callable[[Table], Hashable]) -> list[list[str]]:
    """The names of tables that have the same key."""
    found: dict[Hashable, list[str]] = {}
    for name, table in tables.items():
        found.setdefault(key(table), []).append(name)
    return list(found.values())


def _digests(table: Table) -> tuple[Hashable, ...]:
    """A number for each column, which does not depend on the order of the rows."""
    columns = sorted(table.columns)
    return (len(table), *columns, *(sum(hash(as_text(cell)) for cell in table.columns[name]) for name in columns))


def _lines(table: Table) -> list[tuple[str, ...]]:
    return list(zip(*(map(as_text, table.columns[name]) for name in sorted(table.columns)), strict=True))


def collinear(x: Float[np.ndarray, "n p"], names: Sequence[str], *, intercept: bool) -> Iterator[Finding]:
    """Columns of the formula's matrix that follow from the ones before them.

    Args:
        x: the matrix, without its column of ones.
        names: of its columns.
        intercept: whether the formula has one.
    """
    z = x - x.mean(axis=0) if intercept else x
    size, largest = np.sqrt((z**2).sum(axis=0)), np.abs(x).max(axis=0, initial=0.0)
    varies = size > 1e-12 * largest * math.sqrt(len(x))
    if len(x) <= varies.sum() + intercept:
        return  # with so few rows they always do
    r = np.asarray(np.linalg.qr(z[:, varies] / size[varies], mode="r"))
    shown = [name for name, is_used in zip(names, varies, strict=True) if is_used]
    kept: list[int] = []
    for j in range(len(shown)):
        weights = np.linalg.lstsq(r[:, kept], r[:, j])[0]
        if np.linalg.norm(r[:, j] - r[:, kept] @ weights) > COLLINEAR:
            kept.append(j)
            continue
        others = [shown[k] for k, weight in zip(kept, weights, strict=True) if abs(weight) > COLLINEAR]
        if others:
            message = (
                f"{shown[j]} follows exactly from {', '.join(others)} in these rows, so the data do not determine "
                "their coefficients; leave one out of the formula, unless other sites have rows where it differs"
            )
            yield Finding(Severity.WARNING, message)


def separated(
    x: Float[np.ndarray, "n p"], y: Float[np.ndarray, " n"], names: Sequence[str], *, intercept: bool
) -> Iterator[Finding]:
    """A warning if the columns of the formula's matrix separate a binary outcome.

    Args:
        x: the matrix, without its column of ones.
        y: the outcomes, 0 or 1.
        names: of the columns.
        intercept: whether the formula has one.
    """
    if separating_direction(x, y, intercept=intercept) is None:
        return
    single = separating_column(x, y)
    what = "the columns of the formula together separate" if single is None else f"{names[single]} alone separates"
    message = (
        f"{what} the outcome in these rows, without an exception: if other sites have no exceptions either, the prior "
        "alone keeps the estimates finite. Leave out a predictor that follows from the outcome"
    )
    yield Finding(Severity.WARNING, message)


def _where(rows: Rows, which: np.ndarray, counted_as: str) -> str:
    found = rows.numbers[which].tolist()
    return f"{len(found)} {'value' if len(found) == 1 else 'values'}: {listed(found, counted_as)}"


def _warning(message: str, column: str, rows: Rows, which: np.ndarray) -> Finding:
    found = rows.numbers[which].tolist()
    return Finding(Severity.WARNING, message, column, tuple(found[:10]), len(found))
