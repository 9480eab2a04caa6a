"""From a table to the numbers of a regression by formula, and its coefficients back to the units of the table."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from cavity.errors import StudyError
from cavity.interfaces import Encoding
from cavity.study.columns import Column
from cavity.study.design import Design, template
from cavity.study.findings import Finding, Severity, listed, refuse
from cavity.study.formula import Formula, parse_formula
from cavity.study.rows import Rows, read_rows
from cavity.study.scaling import Scaling
from cavity.study.table import as_table

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
        x = self.design.matrix(self.scaling.apply(rows.values), len(rows))
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
        return x, np.asarray(rows.values[self.columns[0].name], float)

    def features(self, table: Any) -> np.ndarray:
        table = as_table(table)
        rows = self.read(table, with_outcome=False, may_drop=False)
        refuse(rows.findings)
        x, findings = self.matrix(rows, table.counted_as)
        refuse(findings)
        return x

    def to_computed(self) -> Float[np.ndarray, "w w"] | None:
        return _to_computed(self)

    @property
    def remarks(self) -> tuple[str, ...]:
        if not self.scaling.columns:
            return ()
        if self.to_computed() is not None:
            return ("coefficients are per unit of the data; the prior is on scaled columns",)
        scaled = "; ".join(f"{c.name} is ({c.name} - {c.centre:.6g}) / {c.scale:.6g}" for c in self.scaling.columns)
        return (f"coefficients are of scaled columns, since this formula knows no others: {scaled}",)


@lru_cache(maxsize=64)
def _to_computed(encoding: FormulaEncoding) -> np.ndarray | None:
    """B with X = Z B, X being the matrix of the raw columns and Z that of the scaled ones, both with their ones.

    Then X reported = Z computed asks for computed = B reported. It is solved for on rows of nobody, and so holds for
    interactions and powers as it does for main effects. Where X is not spanned by Z (a centred column without an
    intercept), there is no B.
    """
    if not encoding.scaling.columns:
        return None
    design = encoding.design
    scaled = template(design.columns, 20 * (len(design.names) + 1))
    scaled |= {
        name: 3.0 * (scaled[name] - 1.5) for name in encoding.scaling.names
    }  # around zero, as scaled columns are
    num_rows = len(next(iter(scaled.values())))
    ones = np.ones((num_rows, int(design.intercept)))
    z = np.hstack([ones, design.matrix(scaled, num_rows)])
    x = np.hstack([ones, design.matrix(encoding.scaling.undo(scaled), num_rows)])
    solution, _, rank, _ = np.linalg.lstsq(z, x)
    size = np.abs(x).max(axis=0)
    if rank < z.shape[1] or (np.abs(x - z @ solution) > 1e-8 * size).any():
        return None
    return np.where(np.abs(solution) < ROUNDING * size, 0.0, solution)
