"""Centre and scale of columns: given in the study, or from sums that every client sends before the first round.

The model computes with (value - centre) / scale of numeric predictors, of the outcome for families that scale it, and
of the columns of the formula's matrix. The prior is on that scale; results are reported in the units of the data. The
sums are n, the sum and the sum of squares of each such column around an agreed value a:

    mean = a + sum / n,     sd^2 = sum of squares / n - (sum / n)^2

which is the mean and the standard deviation (with divisor n) of all rows together. Sums are additive over clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import fsum, inf, sqrt

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from cavity.core.messages import Record
from cavity.errors import CavityError

ROUNDING = 1e-13  # of the mean square: a variance below this is not distinguishable from zero

MOST_ROWS = 10**12
LARGEST_SUM = 1e150  # its square is finite
LARGEST = 1e100  # of a centre or a scale: the square of one in units of the other is finite
OUT_OF_PROPORTION = 1e6  # times the others' root mean square: no unit of measurement explains it


class Sums(eqx.Module):
    """What a client sends about its columns so that they can be scaled.

    Attributes:
        columns: their names.
        num_rows: n, or the sum of the weights of the rows.
        sum: per column, of the differences from an agreed value.
        sum_of_squares: per column, of these differences.
    """

    columns: tuple[str, ...] = eqx.field(static=True)
    num_rows: Int[np.ndarray, ""] | Float[np.ndarray, ""]
    sum: Float[np.ndarray, " k"]
    sum_of_squares: Float[np.ndarray, " k"]


@dataclass(frozen=True)
class ScaledColumn(Record):
    """The model computes with (value - centre) / scale."""

    name: str
    centre: float
    scale: float


@dataclass(frozen=True)
class Scaling(Record):
    """Centres and scales. They are fixed before the first round, and so is the prior with them.

    Attributes:
        columns: numeric predictors, scaled before the formula computes with them.
        outcome: for families that scale it; None leaves it as it is.
        log_outcome: whether the predictor is of the log of the outcome. Then the outcome is only divided, by its mean.
        design: the columns of the formula's matrix, computed from scaled predictors, and then the slopes of group
            terms, in the units of the data; empty leaves them as they are.
    """

    columns: tuple[ScaledColumn, ...] = ()
    outcome: ScaledColumn | None = None
    design: tuple[ScaledColumn, ...] = ()
    log_outcome: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are scaled."""
        return tuple(column.name for column in self.columns)

    @property
    def is_usable(self) -> bool:
        """Whether all centres are finite and all scales positive, and none is too large or small to compute with."""
        return all(abs(column.centre) < LARGEST and 1 / LARGEST < column.scale < LARGEST for column in self.all_columns)

    @property
    def before_design(self) -> tuple[ScaledColumn, ...]:
        """Predictors and the outcome."""
        return (*self.columns, *(() if self.outcome is None else (self.outcome,)))

    @property
    def all_columns(self) -> tuple[ScaledColumn, ...]:
        """Predictors, the outcome, and the columns of the matrix."""
        return (*self.before_design, *self.design)

    def apply(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The values that the model computes with; columns that are not scaled are unchanged."""
        scaled = {column.name: column for column in self.columns}
        return {
            name: (column - scaled[name].centre) / scaled[name].scale if name in scaled else column
            for name, column in values.items()
        }

    def undo(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inverse of `apply`."""
        scaled = {column.name: column for column in self.columns}
        return {
            name: column * scaled[name].scale + scaled[name].centre if name in scaled else column
            for name, column in values.items()
        }

    def apply_to_design(self, x: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n p"]:
        """The matrix that the model computes with; columns of group terms, the last of `design`, are not in it."""
        if not self.design:
            return x
        design = self.design[: x.shape[1]]
        return (x - [column.centre for column in design]) / [column.scale for column in design]

    def apply_to_outcome(self, y: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n ..."]:
        """The outcomes that the model computes with."""
        return y if self.outcome is None else (y - self.outcome.centre) / self.outcome.scale


def sums_of(
    columns: Sequence[str],
    values: Mapping[str, np.ndarray],
    num_rows: int,
    centres: Mapping[str, float] | None = None,
    weight: Float[np.ndarray, " n"] | None = None,
) -> Sums:
    """A client's sums around agreed values, each rounded once.

    Args:
        columns: to be summed.
        values: of the client's rows, by column.
        num_rows: of the client.
        centres: the agreed values; 0 for columns without one.
        weight: of each row; None is 1. A row of weight 2 counts as two.
    """
    around = centres or {}
    numbers = [np.asarray(values[name], float) - around.get(name, 0.0) for name in columns]
    each = 1.0 if weight is None else weight
    return Sums(
        tuple(columns),
        np.asarray(num_rows if weight is None else fsum(weight)),
        np.array([fsum(each * column) for column in numbers], float),
        np.array([fsum(each * column**2) for column in numbers], float),
    )


def over_its_mean(column: ScaledColumn) -> ScaledColumn:
    """The same column divided by its mean and not centred. Raises CavityError.

    Args:
        column: centred at its mean.
    """
    if not column.centre > 0:
        raise CavityError(f"the mean of column '{column.name}' is {column.centre:g}; an amount must be positive")
    return ScaledColumn(column.name, 0.0, column.centre)


def selected(sums: Sums, columns: Sequence[str]) -> Sums:
    """The sums of some of the columns."""
    places = [sums.columns.index(name) for name in columns]
    return Sums(tuple(columns), sums.num_rows, sums.sum[places], sums.sum_of_squares[places])


def reason_to_refuse(
    sums: object,
    columns: Sequence[str],
    farthest: Mapping[str, float] | None = None,
    most_rows: int = MOST_ROWS,
    *,
    weighted: bool = False,
) -> str | None:
    """Why a client's sums cannot be used, or None.

    Sums of n numbers satisfy (sum x)^2 <= n * sum x^2, up to rounding, and a sum of squares is not negative. Numbers
    within h of the agreed value have sum x^2 <= n h^2.

    Args:
        sums: as they were received.
        columns: those that the study scales.
        farthest: h of the columns whose range is declared.
        most_rows: the largest number of rows that a client may have.
        weighted: whether rows have weights; the number of rows is then their sum.
    """
    if not isinstance(sums, Sums) or tuple(sums.columns) != tuple(columns):
        return "they are not sums of the study's columns"
    num_rows, total, squares = (np.asarray(value) for value in (sums.num_rows, sums.sum, sums.sum_of_squares))
    if weighted and (num_rows.shape != () or num_rows.dtype.kind != "f" or not 0 < num_rows <= most_rows):
        return f"the sum of the weights must be a positive number up to {most_rows:,}"
    if not weighted and (num_rows.shape != () or num_rows.dtype.kind not in "iu" or not 1 <= num_rows <= most_rows):
        return f"the number of rows must be a count from 1 to {most_rows:,}"
    if any(each.shape != (len(columns),) or each.dtype.kind != "f" for each in (total, squares)):
        return "they are not one number per column"
    total, squares = total.astype(float), squares.astype(float)
    for name, x, xx in zip(columns, total, squares, strict=True):
        if not (abs(x) <= LARGEST_SUM and 0 <= xx <= LARGEST_SUM):
            return f"those of column '{name}' are not finite, too large, or negative where they cannot be"
        underflow = float(num_rows) ** 2 * np.finfo(float).tiny  # squares of tiny numbers lose their digits
        if x**2 > float(num_rows) * xx * (1 + 1e-9) + underflow:
            return f"those of column '{name}' contradict each other: no {float(num_rows):g} numbers have them"
        if xx > float(num_rows) * (farthest or {}).get(name, inf) ** 2 * (1 + 1e-9):
            return f"those of column '{name}' are larger than numbers within the declared range have"
    return None


def out_of_proportion(sums: Mapping[str, Sums]) -> dict[str, str]:
    """Clients whose values are far larger than those of the others, with the reason. One of them would set all scales.

    This compares the root mean square of each column, around its agreed value, with the median of the other clients'.
    """
    roots = {name: np.sqrt(own.sum_of_squares / float(own.num_rows)) for name, own in sums.items()}
    found = {}
    for name, own in roots.items():
        others = [root for other, root in roots.items() if other != name]
        usual = np.median(others, axis=0) if others else own
        far = (usual > 0) & (own > OUT_OF_PROPORTION * usual)
        if far.any():
            column = sums[name].columns[int(np.argmax(far))]
            found[name] = (
                f"its values of column '{column}' are more than {OUT_OF_PROPORTION:,.0f} times those of the others; "
                "check its units, and declare a range for the column"
            )
    return found


def scaling_from(
    totals: Sequence[Sums],
    centres: Mapping[str, float] | None = None,
    *,
    around_zero: bool = False,
    allow_constant: bool = False,
) -> tuple[ScaledColumn, ...]:
    """Centre and scale of each column over all clients, exact except for the rounding of the clients' sums.

    Args:
        totals: one per client.
        centres: the agreed values around which the columns were summed.
        around_zero: leave the centre at 0 and scale by the root mean square; for formulas without an intercept.
        allow_constant: a column that does not vary gets the scale 1; otherwise it is refused.
    """
    if not totals:
        raise CavityError("the scaling is computed from the clients' sums, and there are none yet")
    columns = totals[0].columns
    for client in totals:
        if client.columns != columns:
            raise CavityError(f"the clients' sums are of different columns: {columns} and {client.columns}")
        finite = np.isfinite(client.sum).all() and np.isfinite(client.sum_of_squares).all()
        if not float(client.num_rows) > 0 or not finite:
            raise CavityError("a client's sums are not finite, or of no rows")
    num_rows = sum((Fraction(float(client.num_rows)) for client in totals), Fraction())
    scaled = []
    for i, name in enumerate(columns):
        around = Fraction((centres or {}).get(name, 0.0))
        mean = sum((Fraction(float(client.sum[i])) for client in totals), Fraction()) / num_rows
        square = sum((Fraction(float(client.sum_of_squares[i])) for client in totals), Fraction()) / num_rows
        variance = square - mean**2  # in fractions nothing cancels
        centre = around + mean
        if around_zero:
            variance, centre = variance + centre**2, Fraction()
        scale = sqrt(variance) if variance > ROUNDING * float(square) else 0.0
        if scale == 0.0 and not allow_constant:
            raise CavityError(
                f"column '{name}' has (nearly) the same value in all rows of all clients, so it has no scale; remove "
                "it from the formula, or give it a fixed scaling. If it varies around a large value, declare its range"
            )
        scaled.append(ScaledColumn(name, float(centre), scale or 1.0))
    return tuple(scaled)
