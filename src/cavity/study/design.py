"""From columns to the matrix of a formula.

The columns of the matrix follow from the study alone: every agreed level has its own, and no row of anybody is looked
at. So all sites have the same columns, whatever their rows happen to hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from cavity.study.coding import Block, Coded, blocks
from cavity.study.columns import DATE_REMEDY, Category, Column, Text
from cavity.study.formula import parse_formula
from cavity.study.formula.expressions import compute

INTERCEPT = "Intercept"


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
        return _layout(self)[1]

    @property
    def intercept(self) -> bool:
        """Whether the formula has one."""
        return parse_formula(self.formula).intercept

    def matrix(self, values: Mapping[str, np.ndarray], num_rows: int) -> Float[np.ndarray, "n p"]:
        """The rows of the matrix; not finite where a function is not, as the logarithm of zero is not."""
        with np.errstate(all="ignore"):
            found = [_columns(block, values, num_rows) for block in _layout(self)[0]]
        return np.concatenate([np.zeros((num_rows, 0)), *found], axis=1)


def _columns(block: Block, values: Mapping[str, np.ndarray], num_rows: int) -> np.ndarray:
    product = np.full((num_rows, 1), block.scale)
    for coded in block.factors:
        columns = _values(coded, values, num_rows)
        width = product.shape[1] * columns.shape[1]
        product = (columns[:, :, None] * product[:, None, :]).reshape(num_rows, width)
    return product


def _values(coded: Coded, values: Mapping[str, np.ndarray], num_rows: int) -> np.ndarray:
    if coded.levels is None:
        return np.broadcast_to(compute(coded.factor.node, values), num_rows)[:, None]
    return np.asarray(values[coded.factor.name])[:, None] == np.asarray(coded.levels)


@lru_cache(maxsize=64)
def _layout(design: Design) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """The blocks of columns, and the names of all columns."""
    formula = parse_formula(design.formula)
    columns = {column.name: column for column in design.columns}
    if lacking := [name for name in formula.predictors if name not in columns]:
        raise formula.refusal(lacking[0], f"nothing is agreed about the column '{lacking[0]}'")
    for name in formula.predictors:
        if name == INTERCEPT:
            raise formula.refusal(name, f"a column cannot be called '{INTERCEPT}'; rename it")
        if isinstance(columns[name], Text):
            raise formula.refusal(
                name, f"the column '{name}' is text; declare it as a category, or if it is a date, {DATE_REMEDY}"
            )
        if isinstance(columns[name], Category) and name in formula.computed:
            raise formula.refusal(name, f"it computes with '{name}', which is a category and not a number")
    if not formula.terms and not formula.intercept:
        raise formula.refusal_at(len(formula.text), "it has no predictors")
    found = blocks(formula, {name: column for name, column in columns.items() if isinstance(column, Category)})
    names: dict[str, None] = {}
    for block in found:
        for name in block.names:
            if name in names:
                raise formula.refusal_at(block.at, f"it has two coefficients {name!r}; rename a column or a level")
            names[name] = None
    return found, tuple(names)


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
