"""From columns to the matrix of a formula.

formulaic learns its columns from a template that is made from the study alone: every agreed level occurs in it, and
no row of anybody. So all sites have the same columns, whatever their rows happen to hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float

from cavity.errors import StudyError
from cavity.study.columns import Category, Column, Text
from cavity.study.formula import parse_formula, right_side

INTERCEPT = "Intercept"  # formulaic's name of the column of ones
TEMPLATE_ROWS = 64


@dataclass(frozen=True)
class Design:
    """The matrix of a formula, without its column of ones.

    Attributes:
        formula: its right side is the matrix.
        columns: of the predictors.
    """

    formula: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """One per column of the matrix, with levels: `rx[T.treated]:age`."""
        return tuple(name for name in _spec(self).column_names if name != INTERCEPT)

    @property
    def intercept(self) -> bool:
        """Whether the formula has one."""
        return INTERCEPT in _spec(self).column_names

    def matrix(self, values: Mapping[str, np.ndarray], num_rows: int) -> Float[np.ndarray, "n p"]:
        """The rows of the matrix; not finite where a function is not, as the logarithm of zero is not."""
        spec = _spec(self)
        with np.errstate(all="ignore"):
            whole = np.asarray(spec.get_model_matrix(_frame(self.columns, values, num_rows), context={}), float)
        return whole[:, [i for i, name in enumerate(spec.column_names) if name != INTERCEPT]]


@lru_cache(maxsize=64)
def _spec(design: Design) -> Any:
    """What formulaic knows of the columns, from the template."""
    for column in design.columns:
        if column.name == INTERCEPT:
            raise StudyError(f"a column cannot be called '{INTERCEPT}'; rename it")
        if isinstance(column, Text):
            raise StudyError(f"the formula uses the column '{column.name}', which is text; declare it as a category")
    computed = parse_formula(design.formula).computed
    for column in design.columns:
        if isinstance(column, Category) and column.name in computed:
            raise StudyError(f"the formula computes with '{column.name}', which is a category and not a number")
    rows = template(design.columns, TEMPLATE_ROWS)
    frame = _frame(design.columns, rows, len(next(iter(rows.values()), (1,))))
    terms = right_side(design.formula)
    if len(terms) == 0:
        raise StudyError(f"the formula {design.formula!r} has no predictors")
    with np.errstate(all="ignore"):
        return terms.get_model_matrix(frame, context={}, na_action="ignore", output="numpy").model_spec


def template(columns: Sequence[Column], num_rows: int) -> dict[str, np.ndarray]:
    """Rows of nobody: numbers between 1 and 2, levels drawn at random, and each of them at least once."""
    rng = np.random.default_rng(0)
    values = {}
    for column in columns:
        if isinstance(column, Category):
            size = len(column.ordered)
            drawn = rng.integers(size, size=max(num_rows, 4 * size))
            values[column.name] = np.concatenate([np.arange(size), drawn])
        else:
            values[column.name] = rng.uniform(1.0, 2.0, num_rows)
    longest = max([num_rows, *(len(column) for column in values.values())])
    return {name: np.resize(column, longest) for name, column in values.items()}


def _frame(columns: Sequence[Column], values: Mapping[str, np.ndarray], num_rows: int) -> Any:
    import pandas

    def series(column: Column) -> Any:
        if isinstance(column, Category):
            return pandas.Categorical.from_codes(values[column.name], categories=list(column.ordered))
        return np.asarray(values[column.name], float)

    return pandas.DataFrame({column.name: series(column) for column in columns}, index=range(num_rows))
