"""Effects of several groups: whether one is within the other, or they are crossed.

A client integrates the effects of its groups out, one group at a time. With crossed groups (patients and doctors, each
patient seen by several doctors) no group can be integrated without the others: the integral has as many dimensions as
there are groups. Groups within groups (mothers in communities) need one integral inside another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cavity.study.formula import Formula

REMEDY = "keep one group, and make the others fixed effects if they have few levels"
CROSSED = (
    "they are crossed, so that their effects cannot be integrated out one group at a time, and would tie together rows "
    "of different clients"
)


def several_groups_problem(formula: Formula) -> tuple[int, str] | None:
    """Why a formula with effects of several groups cannot be fitted, with the position, or None."""
    first = next(iter(formula.groups), None)
    for term in formula.groups:
        if first is not None and (term.group, term.is_client) != (first.group, first.is_client):
            message = (
                f"effects of '{first.group}' and of '{term.group}': groups within groups are not available yet, and "
                f"crossed groups cannot be fitted over clients; {REMEDY}"
            )
            return term.at, message
    return None


def is_within(inner: Sequence[str], outer: Sequence[str]) -> bool:
    """Whether all rows of each inner group are in one outer group.

    Args:
        inner: the group of each row.
        outer: the other group of each row.
    """
    home: dict[str, str] = {}
    return all(home.setdefault(a, b) == b for a, b in zip(inner, outer, strict=True))


def crossed(labels: Mapping[str, Sequence[str]]) -> tuple[str, str] | None:
    """Two columns of groups of which neither is within the other at this client, or None.

    Args:
        labels: the group of each row, by column.
    """
    names = list(labels)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            if not is_within(labels[a], labels[b]) and not is_within(labels[b], labels[a]):
                return a, b
    return None
