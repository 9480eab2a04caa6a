"""From a table to the numbers of a regression by formula, and its coefficients back to the units of the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from cavity.core import Encoding
from cavity.errors import StudyError
from cavity.study.columns import Column, check_column
from cavity.study.design import Design, template
from cavity.study.findings import Finding, Severity, listed, refuse
from cavity.study.formula import Formula, parse_formula
from cavity.study.rows import Rows, read_rows
from cavity.study.scaling import ScaledColumn, Scaling
from cavity.study.table import as_table

UNITS = (1.0, 10.0, 100.0, 1e4, 0.1, 0.01, -1.0)
ROUNDING = 1e-11  # relative: what is below this, in a solution of linear equations, is zero


class FormulaEncoding(Encoding):
    """A formula over agreed columns.

    Attributes:
        formula: such as `outcome ~ rx * age`.
        columns: what is agreed about its columns, the outcome's first.
        scaling: centre and scale of some predictors.
    """

    formula: str = eqx.field(static=True)
    columns: tuple[Column, ...] = eqx.field(static=True)
    scaling: Scaling = eqx.field(static=True, default=Scaling())

    def __check_init__(self) -> None:
        self.check()

    def check(self) -> None:
        if not isinstance(self.formula, str) or not isinstance(self.columns, tuple):
            raise StudyError("a formula is a text, with a tuple of columns")
        for column in self.columns:
            check_column(column)
        names = [column.name for column in self.columns]
        expected = [self.parsed.outcome, *self.parsed.predictors]
        if names[:1] != expected[:1] or sorted(names) != sorted(expected):
            raise StudyError(f"the formula uses the columns {', '.join(expected)}, and it has {', '.join(names)}")
        _check_scaling(self.scaling)
        _ = self.design.names  # it raises where they are too many, or the same
        both = sorted(set(self.parsed.transformed) & set(self.scaling.names))
        if both:
            raise StudyError(
                f"the column '{both[0]}' is scaled, and the formula takes a function of it; set its scaling to "
                '"none", or add the result to the data as a column'
            )

    @property
    def parsed(self) -> Formula:
        """What the formula asks for."""
        return parse_formula(self.formula)

    @property
    def design(self) -> Design:
        """The matrix of the predictors."""
        return Design(self.formula, self.columns[1:])

    def read(self, table: Any, *, with_outcome: bool = True, may_drop: bool = True) -> Rows:
        """The rows of a table with all that is wrong with them."""
        columns = self.columns if with_outcome else self.columns[1:]
        return read_rows(columns, as_table(table), may_drop=may_drop)

    def matrix(self, rows: Rows, counted_as: str) -> tuple[np.ndarray, tuple[Finding, ...]]:
        """X of rows that were read without errors, and where it is not finite."""
        x = self.scaling.apply_to_design(self.design.matrix(self.scaling.apply(rows.values), len(rows)))
        findings = []
        for name, column in zip(self.design.names, x.T, strict=True):
            if not (finite := np.isfinite(column)).all():
                bad = rows.numbers[~finite].tolist()
                message = (
                    f"{name} is not a finite number in {listed(bad, counted_as)}; agree on a range for its columns"
                )
                findings.append(Finding(Severity.ERROR, message, None, tuple(bad[:10]), len(bad)))
        return x, tuple(findings)

    def rows(self, table: Any) -> tuple[np.ndarray, np.ndarray]:
        table = as_table(table)
        rows = self.read(table)
        refuse(rows.findings)
        x, findings = self.matrix(rows, table.counted_as)
        refuse(findings)
        return x, self.scaling.apply_to_outcome(np.asarray(rows.values[self.columns[0].name], float))

    def features(self, table: Any) -> np.ndarray:
        table = as_table(table)
        rows = self.read(table, with_outcome=False, may_drop=False)
        refuse(rows.findings)
        x, findings = self.matrix(rows, table.counted_as)
        refuse(findings)
        return x

    def to_computed(self) -> Float[np.ndarray, "w w"] | None:
        solution, design = _to_scaled(self), self.scaling.design
        if not design:
            return solution
        return _standardised(self) if solution is None else _standardised(self) @ solution

    @property
    def is_reversible(self) -> bool:
        """Whether coefficients come back to the units of the data."""
        return not self.scaling.columns or _to_scaled(self) is not None

    @property
    def outcome_units(self) -> tuple[float, float]:
        outcome = self.scaling.outcome
        return (0.0, 1.0) if outcome is None else (outcome.centre, outcome.scale)

    @property
    def remarks(self) -> tuple[str, ...]:
        scaling = self.scaling
        if not (scaling.columns or scaling.design or scaling.outcome):
            return ("coefficients are per unit of the data, and so is the prior",)
        if self.is_reversible:
            what = " and a scaled outcome" if scaling.outcome else ""
            return (f"coefficients are per unit of the data; the prior and fit.posterior are of scaled columns{what}",)
        scaled = "; ".join(f"{c.name} is ({c.name} - {c.centre:.6g}) / {c.scale:.6g}" for c in self.scaling.columns)
        return (f"coefficients are of scaled columns, since this formula knows no others: {scaled}",)


def _check_scaling(scaling: Scaling) -> None:
    if not isinstance(scaling, Scaling) or not all(isinstance(p, tuple) for p in (scaling.columns, scaling.design)):
        raise StudyError("the scaling of a formula's columns is not one")
    for column in scaling.all_columns:
        fits = isinstance(column, ScaledColumn) and isinstance(column.name, str)
        fits = fits and isinstance(column.centre, float) and isinstance(column.scale, float)
        if not fits or not math.isfinite(column.centre) or not 0 < column.scale < math.inf:
            raise StudyError("a column is scaled by a finite centre and a positive scale")


@lru_cache(maxsize=64)
def _to_scaled(encoding: FormulaEncoding) -> np.ndarray | None:
    """B with X = Z B, X being the matrix of the raw columns and Z that of the scaled ones, both with their ones.

    Then X reported = Z computed asks for computed = B reported. It is solved for on rows of nobody, and so holds for
    interactions and powers as it does for main effects. Where X is not spanned by Z (a centred column without an
    intercept), there is no B.
    """
    if not encoding.scaling.columns:
        return None
    design = encoding.design
    drawn = template(design.columns, 20 * (len(design.names) + 1))
    num_rows = len(next(iter(drawn.values())))
    ones = np.ones((num_rows, int(design.intercept)))
    for unit in UNITS:  # of columns that are not scaled: a logarithm may need large ones, or small ones
        numeric = {name: unit * column for name, column in drawn.items() if column.dtype.kind == "f"}
        around_zero = {name: 3.0 * (drawn[name] - 1.5) for name in encoding.scaling.names}  # as scaled columns are
        scaled = drawn | numeric | around_zero
        z = np.hstack([ones, design.matrix(scaled, num_rows)])
        x = np.hstack([ones, design.matrix(encoding.scaling.undo(scaled), num_rows)])
        if np.isfinite(z).all() and np.isfinite(x).all():
            break
    else:
        return None
    solution, _, rank, _ = np.linalg.lstsq(z, x)
    size = np.abs(x).max(axis=0)
    if rank < z.shape[1] or (np.abs(x - z @ solution) > 1e-8 * size).any():
        return None
    return np.where(np.abs(solution) < ROUNDING * size, 0.0, solution)


def _standardised(encoding: FormulaEncoding) -> np.ndarray:
    """T with Z = S T, S being the matrix of the scaled columns of the matrix Z, each with its ones: z = m + s z'."""
    matrix = np.diag([1.0] * encoding.design.intercept + [column.scale for column in encoding.scaling.design])
    if encoding.design.intercept:
        matrix[0, 1:] = [column.centre for column in encoding.scaling.design]
    return matrix


def is_reversible(formula: str, columns: tuple[Column, ...], names: Sequence[str]) -> bool:
    """Whether coefficients come back to the units of the data if these columns are centred and scaled.

    Where not (an interaction without its main effects), centred columns are another model.
    """
    anything = Scaling(tuple(ScaledColumn(name, 0.7, 1.3) for name in names))
    return FormulaEncoding(formula, columns, anything).is_reversible
