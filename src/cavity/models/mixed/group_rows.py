"""The rows of a client with their groups, and the effects that vary between groups."""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, PyTree

from cavity.core import Encoding
from cavity.core.checks import numeric_matrix, numeric_outcomes
from cavity.core.messages import Record
from cavity.errors import DataError
from cavity.models.mixed.group_priors import num_correlations


@dataclass(frozen=True)
class GroupEffects(Record):
    """The effects of one term, `(age | ward)`.

    Attributes:
        names: `1` for the intercept, then the slopes.
        group: the column of the groups, `client`, or `community:mother` for groups within groups.
        correlated: whether the effects are.
        stratified: whether they are coefficients of each group's own, whose standard deviation is known.
    """

    names: tuple[str, ...]
    group: str
    correlated: bool = True
    stratified: bool = False

    @property
    def num_correlations(self) -> int:
        """How many correlations are parameters."""
        return num_correlations(len(self.names)) if self.correlated else 0

    @property
    def full_names(self) -> tuple[str, ...]:
        """`1|ward`, `age|ward`."""
        return tuple(f"{name}|{self.group}" for name in self.names)

    @property
    def correlation_names(self) -> tuple[str, ...]:
        """`1,age|ward_corr`, row by row below the diagonal."""
        if not self.correlated:
            return ()
        pairs = [(first, second) for i, second in enumerate(self.names) for first in self.names[:i]]
        return tuple(f"{first},{second}|{self.group}_corr" for first, second in pairs)


@dataclass(frozen=True)
class GroupedRows:
    """A client's rows. It is no record that can be stored or sent: it has the names of groups.

    Attributes:
        x: fixed effects [n, p], without ones.
        y: outcomes [n]; None for new rows.
        z: the columns of all group terms [n, l].
        labels: the group of each row; None where the group is the client.
        inner: where groups are within groups, the smaller one of each row.
        offset: of new rows, in the units of the outcome; None if there is none.
    """

    x: np.ndarray
    y: np.ndarray | None
    z: np.ndarray
    labels: tuple[Hashable, ...] | None
    inner: tuple[Hashable, ...] | None = None
    offset: np.ndarray | None = None

    @property
    def outer(self) -> tuple[Hashable, ...]:
        """The group of each row, the same for all where it is the client."""
        return (0,) * len(self.x) if self.labels is None else self.labels

    def first_of_inner(self) -> Int[np.ndarray, " n"]:
        """The number of the first row that has the same smaller group, which stands for that group.

        Raises:
            DataError: a smaller group has rows in two larger ones.
        """
        assert self.inner is not None
        first: dict[Hashable, int] = {}
        for i, label in enumerate(self.inner):
            at = first.setdefault(label, i)
            if self.outer[at] != self.outer[i]:
                raise DataError(
                    f"the group {label!r} has rows in {self.outer[at]!r} and in {self.outer[i]!r}; a smaller group is "
                    "in one larger one, and the larger one comes first in the formula"
                )
        return np.array([first[label] for label in self.inner], np.int32)


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
    for name, labels in (("group", rows.labels), ("inner", rows.inner)):
        if labels is not None:
            lengths[name] = len(labels)
            if unnamed := [i for i, label in enumerate(labels) if label is None or label != label]:
                raise DataError(f"{len(unnamed)} rows have no group (rows {str(unnamed[:10])[1:-1]})")
    if len(set(lengths.values())) > 1:
        raise DataError(f"the arrays have different numbers of rows: {lengths}")
    return GroupedRows(x, y, z, rows.labels, rows.inner)
