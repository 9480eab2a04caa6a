"""How near a client's pseudo-observations are to its rows, for the owner of the data to see before they are sent.

Every client sees every other client's pseudo-observations. There are fewer of them than rows, but nothing prevents one
from having the inputs and the outcome of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cavity.distributions.pseudo import PseudoObservations

MANY = 1000  # rows
NEAR = 0.1  # times the median distance between neighbouring rows: a nearer pseudo-observation almost equals a row


@dataclass(frozen=True)
class RowProximity:
    """The distance of each pseudo-observation to the row that is nearest to it.

    Attributes:
        inputs: in units of the median distance between a row and its nearest neighbour.
        outcomes: by how much m differs from that row's outcome, in units of the outcomes' standard deviation.
        num_rows: of the client.
    """

    inputs: np.ndarray
    outcomes: np.ndarray
    num_rows: int

    @property
    def num_near(self) -> int:
        """The number of pseudo-observations that almost equal a row."""
        return int(np.sum(self.inputs < NEAR))

    def __str__(self) -> str:
        count = len(self.inputs)
        if not count:
            return "no pseudo-observations"
        near = f"{self.num_near} of them nearer to a row than {NEAR:g} of the usual distance between rows"
        return (
            f"{count} pseudo-observations for {self.num_rows} rows, {near}; the median is {np.median(self.inputs):.2f} "
            f"away and {np.median(self.outcomes):.2f} sd off in the outcome, the nearest {np.min(self.inputs):.2f}"
        )


def row_proximity(factor: PseudoObservations, x: np.ndarray, y: np.ndarray) -> RowProximity:
    """The distances between one client's pseudo-observations and its own rows.

    Args:
        factor: one group.
        x: the rows' inputs [n, d].
        y: their outcomes [n].
    """
    precision = np.asarray(factor.precision)[0]
    used = (precision if precision.ndim == 1 else np.diagonal(precision)) > 0
    inputs, outcomes = np.asarray(factor.inputs)[0][used], factor.outcomes[0][used]
    apart = _distances(inputs, x)
    nearest = apart.argmin(axis=1)
    some = x[:: max(len(x) // MANY, 1)][:MANY]  # for very many rows the usual distance is that of a sample
    between = _distances(some, x)
    between[between == 0] = np.inf  # the row itself, and rows with the same inputs
    neighbours = between.min(axis=1)
    usual = np.median(neighbours[np.isfinite(neighbours)]) if np.isfinite(neighbours).any() else 1.0
    spread = np.std(y) if np.std(y) > 0 else 1.0
    return RowProximity(apart.min(axis=1) / usual, np.abs(outcomes - y[nearest]) / spread, len(x))


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    squares = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1) - 2 * a @ b.T
    return np.sqrt(np.maximum(squares, 0.0))
