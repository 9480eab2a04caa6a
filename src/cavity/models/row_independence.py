"""A test of whether the log density of a row depends on other rows at the same client.

A federated likelihood is a product over rows. With a lag, a running sum, a mean or a rank over rows it would depend on
how rows are distributed over clients, and padding would count. The model is therefore evaluated on the same rows
several times: alone; with half of them removed; permuted among many other rows, some of which are copies. The value of
a row must not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import numpy as np
from jaxtyping import Bool, Int, PyTree

from cavity.core.types import Leaf

NUM_OTHERS = 33  # beside the example and its double: a dependence may show in large datasets only
TOLERANCE = 1e-3  # of a log density, absolute and relative; in single precision
SHARE_CHANGED = 0.75  # of the other rows; the rest are copies


class Company:
    """The rows of an example, possibly mixed with other rows.

    Attributes:
        rows: at each position, the number of the example's row, or of the row from which the other row was made.
        places: the positions of the example's own rows.
        apart: whether other rows belong to other units.
    """

    def __init__(
        self, rows: np.ndarray, places: np.ndarray | None = None, *, seed: int | None = None, apart: bool = False
    ):
        self.rows: Int[np.ndarray, " n"] = rows
        self.places: Int[np.ndarray, " m"] = np.arange(len(rows)) if places is None else places
        self.apart = apart
        self.is_other: Bool[np.ndarray, " n"] = ~np.isin(np.arange(len(rows)), self.places)
        self._rng = np.random.default_rng(seed)
        self._changed = self.is_other & (self._rng.random(len(rows)) < (0.0 if seed is None else SHARE_CHANGED))

    def column(self, column: np.ndarray) -> np.ndarray:
        """A column of the example with the other rows added, most of which have other values."""
        found = column[self.rows]
        changed = self._changed.reshape(-1, *[1] * (found.ndim - 1))
        if column.dtype.kind == "b":
            return np.where(changed, ~found, found)
        if column.dtype.kind in "iu":
            values = self._rng.integers(min(0, int(column.min())), int(column.max()) + 2, found.shape)
        else:
            values = self._rng.normal(size=found.shape) * (1.0 + np.abs(np.nan_to_num(column)).max(initial=0.0))
        return np.where(changed, values, found).astype(column.dtype)

    def batch(self, batch: PyTree) -> PyTree:
        """The same of all arrays of a batch."""
        return jax.tree.map(lambda leaf: self.column(np.asarray(leaf)), batch)


def depends_on_others(
    answers: Callable[[Company], Mapping[str, np.ndarray]], num_rows: int, *, removed: bool = True
) -> str | None:
    """The name of a value that changes when the other rows change, or None.

    Args:
        answers: from rows to values by name, one number (or several) for each row.
        num_rows: of the example.
        removed: whether to leave rows out too.
    """
    rng = np.random.default_rng(0)
    all_rows = np.arange(num_rows)
    others = []
    if removed and num_rows > 1:
        others.append(Company(np.sort(rng.choice(all_rows, num_rows // 2, replace=False))))
    num_others = num_rows + NUM_OTHERS
    places = num_others // 2 + all_rows
    for apart in (True, False):
        rows = rng.choice(all_rows, num_rows + num_others)
        rows[places] = rng.permutation(all_rows)
        others.append(Company(rows, places, seed=int(apart), apart=apart))
    alone = answers(Company(all_rows, apart=True))
    for company in others:
        for name, found in answers(company).items():
            expected = alone[name][company.rows[company.places]]
            if not np.allclose(found[company.places], expected, TOLERANCE, TOLERANCE, equal_nan=True):
                return name
    return None


def some_values(mean: Leaf, scale: Leaf) -> np.ndarray:
    """Parameters at which a dependence shows, as it may not where they are 0: about one unit from the mean."""
    mean, scale = np.asarray(mean), np.asarray(scale)
    return (mean + np.minimum(scale, 1.0) * np.random.default_rng(1).normal(size=mean.shape)).astype(mean.dtype)
