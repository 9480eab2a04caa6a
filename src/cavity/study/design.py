"""From columns to the matrix of a formula.

The columns of the matrix follow from the study alone: every agreed level has its own, and no data are used. So all
sites have the same columns, whatever their rows contain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from cavity.study.coding import Block, Coded, blocks
from cavity.study.columns import Column
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
        """Whether the formula has an intercept."""
        return parse_formula(self.formula).intercept

    def matrix(self, values: Mapping[str, np.ndarray], num_rows: int) -> Float[np.ndarray, "n p"]:
        """The rows of the matrix; not finite where a function is not, such as the logarithm of zero."""
        return block_columns(_layout(self)[0], values, num_rows)


def block_columns(blocks: Sequence[Block], values: Mapping[str, np.ndarray], num_rows: int) -> Float[np.ndarray, "n p"]:
    """The columns of all blocks; not finite where a function is not.

    Args:
        blocks: of one or several terms.
        values: of the rows, by column.
        num_rows: their number.
    """
    with np.errstate(all="ignore"):
        found = [_columns(block, values, num_rows) for block in blocks]
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
        computed = np.asarray(compute(coded.factor.node, values))
        return computed if computed.ndim == 2 else np.broadcast_to(computed, num_rows)[:, None]
    return np.asarray(values[coded.factor.name])[:, None] == np.asarray(coded.levels)


@lru_cache(maxsize=64)
def _layout(design: Design) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """The blocks of columns, and the names of all columns."""
    formula = parse_formula(design.formula)
    columns = {column.name: column for column in design.columns}
    if lacking := [name for name in formula.predictors if name not in columns]:
        raise formula.refusal(lacking[0], f"the column '{lacking[0]}' is not declared")
    for name in formula.predictors:
        if name == INTERCEPT:
            raise formula.refusal(name, f"a column cannot be called '{INTERCEPT}'; rename it")
        if (problem := columns[name].formula_problem) is not None:
            raise formula.refusal(name, f"the column '{name}' {problem}")
        if columns[name].level_names and name in formula.computed:
            raise formula.refusal(name, f"it computes with '{name}', which is a category and not a number")
    if not formula.terms and not formula.intercept and not formula.groups:
        raise formula.refusal_at(len(formula.text), "the formula has no predictors")
    found = blocks(formula, {name: column.level_names for name, column in columns.items() if column.level_names})
    names: dict[str, None] = {}
    for block in found:
        for name in block.names:
            if name in names:
                raise formula.refusal_at(block.at, f"two coefficients are called {name!r}; rename a column or a level")
            names[name] = None
    return found, tuple(names)


def template(
    columns: Sequence[Column], num_rows: int, knots: Mapping[str, Sequence[float]] | None = None
) -> dict[str, np.ndarray]:
    """Random rows: numbers between 1 and 2, and levels, each of them at least once.

    Args:
        columns: of the predictors.
        num_rows: the least number of rows.
        knots: of columns in splines, whose numbers are between all of these.
    """
    rng = np.random.default_rng(0)
    values = {}
    for column in columns:
        if size := len(column.level_names):
            drawn = rng.integers(size, size=max(num_rows, 4 * size))
            values[column.name] = np.concatenate([np.arange(size), drawn])
        elif column.name in (knots or {}):
            ends = np.asarray((knots or {})[column.name])
            place = rng.uniform(0.0, len(ends) - 1.0, num_rows)
            values[column.name] = np.interp(place, np.arange(len(ends)), ends)
        else:
            values[column.name] = rng.uniform(1.0, 2.0, num_rows)
    longest = max([num_rows, *(len(column) for column in values.values())])
    return {name: np.resize(column, longest) for name, column in values.items()}
