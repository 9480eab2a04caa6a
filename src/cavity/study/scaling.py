"""Centre and scale of predictors: given in the study, or from sums that every client sends once.

With a centre m and a scale s per column the model computes with (value - m) / s; the prior speaks of that, and results
are told in the units of the data again. The sums are n, the sum and the sum of squares of each such column:

    m = sum / n,     s^2 = sum of squares / n - m^2

which is the mean and the standard deviation (with divisor n) of all rows together, wherever they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import fsum, sqrt

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from cavity.errors import CavityError
from cavity.state import Record

ROUNDING = 1e-13  # of the mean square: a variance below this is not distinguishable from zero


class Sums(eqx.Module):
    """All that a client tells about its columns for scaling them.

    Attributes:
        columns: their names.
        num_rows: n.
        sum: of each.
        sum_of_squares: of each.
    """

    columns: tuple[str, ...] = eqx.field(static=True)
    num_rows: Int[np.ndarray, ""]
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
    """The centres and scales of those columns that have one."""

    columns: tuple[ScaledColumn, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are scaled."""
        return tuple(column.name for column in self.columns)

    def apply(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The values that the model computes with; columns that are not scaled stay."""
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


def sums_of(columns: Sequence[str], values: Mapping[str, np.ndarray], num_rows: int) -> Sums:
    """A client's sums, each the float nearest to the exact one."""
    numbers = [np.asarray(values[name], float) for name in columns]
    return Sums(
        tuple(columns),
        np.asarray(num_rows),
        np.array([fsum(column) for column in numbers], float),
        np.array([fsum(column**2) for column in numbers], float),
    )


def scaling_from(totals: Sequence[Sums]) -> tuple[ScaledColumn, ...]:
    """Centre and scale of each column over all clients. Exact but for the rounding of the clients' sums."""
    if not totals:
        raise CavityError("the scaling comes from the clients' sums, and there are none yet")
    columns = totals[0].columns
    for client in totals:
        if client.columns != columns:
            raise CavityError(f"the clients' sums are of different columns: {columns} and {client.columns}")
        finite = np.isfinite(client.sum).all() and np.isfinite(client.sum_of_squares).all()
        if int(client.num_rows) < 1 or not finite:
            raise CavityError("a client's sums are not finite, or of no rows")
    num_rows = sum(int(client.num_rows) for client in totals)
    scaled = []
    for i, name in enumerate(columns):
        mean = sum((Fraction(float(client.sum[i])) for client in totals), Fraction()) / num_rows
        square = sum((Fraction(float(client.sum_of_squares[i])) for client in totals), Fraction()) / num_rows
        variance = float(square - mean**2)  # in fractions nothing cancels
        if variance <= ROUNDING * float(square):
            raise CavityError(
                f"column '{name}' has (nearly) the same value in all rows of all clients, so it has no scale; "
                "take it out of the formula, or give it a fixed scaling"
            )
        scaled.append(ScaledColumn(name, float(mean), sqrt(variance)))
    return tuple(scaled)
