"""The rows of a client with their groups, and the contract of an encoding that makes them from a table."""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import PyTree

from cavity.core import Encoding
from cavity.core.checks import numeric_matrix, numeric_outcomes
from cavity.errors import DataError


@dataclass(frozen=True)
class GroupedRows:
    """A client's rows. It is no record that can be stored or sent: it has the names of groups.

    Attributes:
        x: fixed effects [n, p], without ones.
        y: outcomes [n]; None for new rows.
        z: the columns of all group terms [n, l].
        labels: the group of each row; None where the group is the client.
        offset: of new rows, in the units of the outcome; None if there is none.
    """

    x: np.ndarray
    y: np.ndarray | None
    z: np.ndarray
    labels: tuple[Hashable, ...] | None
    offset: np.ndarray | None = None


class GroupEncoding(Encoding):
    """Capability: a table also has the columns and the groups of group terms."""

    @abc.abstractmethod
    def grouped_rows(self, table: PyTree, *, with_outcome: bool = True) -> GroupedRows:
        """The rows of a client's table, or new rows without outcomes. Raises DataError naming all problems."""


def checked_rows(
    rows: GroupedRows, features: Sequence[str], effects: Sequence[str], num_outcomes: int, *, with_outcome: bool
) -> GroupedRows:
    """Rows that a user gave as arrays. Raises DataError."""
    if with_outcome and rows.y is None:
        raise DataError("the outcomes y are missing")
    x, z = numeric_matrix(rows.x, features), numeric_matrix(rows.z, effects)
    y = None if rows.y is None else numeric_outcomes(rows.y, num_outcomes)
    lengths = {"x": len(x), "z": len(z)} | ({} if y is None else {"y": len(y)})
    if rows.labels is not None:
        lengths["group"] = len(rows.labels)
        if unnamed := [i for i, label in enumerate(rows.labels) if label is None or label != label]:
            raise DataError(f"{len(unnamed)} rows have no group (rows {str(unnamed[:10])[1:-1]})")
    if len(set(lengths.values())) > 1:
        raise DataError(f"the arrays have different numbers of rows: {lengths}")
    return GroupedRows(x, y, z, rows.labels)
