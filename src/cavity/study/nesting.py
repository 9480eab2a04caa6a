"""Effects of several groups: whether one is within the other, or they are crossed.

A client integrates the effects of its groups out, one group at a time. Groups within groups (mothers in communities)
need one integral inside another. With crossed groups (patients and doctors, each patient seen by several doctors) no
group can be integrated without the others: the integral has as many dimensions as there are groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from cavity.study.formula import Formula

REMEDY = "keep one group, and make the others fixed effects if they have few levels"
CROSSED = (
    "they are crossed, so that their effects cannot be integrated out one group at a time, and would tie together rows "
    "of different clients"
)
MOST_GROUPS = 2


def several_groups_problem(formula: Formula) -> tuple[int, str] | None:
    """Why a formula with effects of several groups cannot be fitted whatever the data, with the position, or None."""
    found: dict[str, tuple[str, ...]] = {}
    for term in formula.groups:
        if term.is_client and found and term.group not in found:
            return term.at, "the client is the largest group: write `(1 | client)` before effects of other groups"
        if found.setdefault(term.group, term.group_columns) != term.group_columns:
            return term.at, f"two groups are called '{term.group}'; rename a column"
        if len(found) > MOST_GROUPS:
            names = ", ".join(f"'{name}'" for name in found)
            return term.at, f"effects of {names}: at most two groups, one within the other, can be fitted; {REMEDY}"
    return None


def is_within(inner: Sequence[str], outer: Sequence[str]) -> bool:
    """Whether all rows of each inner group are in one outer group.

    Args:
        inner: the group of each row.
        outer: the other group of each row.
    """
    home: dict[str, str] = {}
    return all(home.setdefault(a, b) == b for a, b in zip(inner, outer, strict=True))


def nesting_problem(labels: Sequence[Sequence[str] | None], groups: Sequence[str]) -> str | None:
    """Why the second of two groups is not within the first at a client, or None.

    Args:
        labels: of each group, the group of each row; None for the client itself.
        groups: their names.
    """
    if len(groups) < MOST_GROUPS or labels[0] is None or labels[1] is None or is_within(labels[1], labels[0]):
        return None
    outer, inner = groups
    if is_within(labels[0], labels[1]):
        return f"'{outer}' is within '{inner}': write the larger group first, `(1 | {inner}) + (1 | {outer})`"
    return f"the groups '{outer}' and '{inner}': {CROSSED}; {REMEDY}"
