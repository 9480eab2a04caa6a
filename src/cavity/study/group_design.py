"""The effects that vary between groups, and their columns: a narrow matrix, whatever the number of groups.

The matrix has one column per effect of a group: ones for an intercept, the values of a column for a slope. A row has
the number of its group beside it. No matrix has a column per group.

Columns are in the units of the data. They are divided by their scale and never centred: centring would change what the
effects of `(x || g)` are, and the intercept of `(x | g)` is the one at x = 0, as in lme4 and bambi.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from cavity.study.coding import Block, blocks
from cavity.study.columns import Column, as_text
from cavity.study.design import block_columns
from cavity.study.formula import Formula, GroupTerm, parse_formula

MAX_EFFECTS = 20  # of one group
ONE = "1"


@dataclass(frozen=True)
class Effects:
    """The effects of one group term.

    Attributes:
        term: of the formula.
        names: of its effects: `1`, `age`, `rx[T.drug]`.
        blocks: the columns of its slopes.
        is_numeric: of each slope, whether a number is in it; otherwise it is 0 or 1.
    """

    term: GroupTerm
    names: tuple[str, ...]
    blocks: tuple[Block, ...]
    is_numeric: tuple[bool, ...]

    @property
    def full_names(self) -> tuple[str, ...]:
        """With the group: `1|ward`, `age|ward`."""
        return tuple(f"{name}|{self.term.group}" for name in self.names)


@dataclass(frozen=True)
class GroupDesign:
    """All group terms of a formula.

    Attributes:
        formula: with group terms.
        columns: of its predictors and groups.
    """

    formula: str
    columns: tuple[Column, ...]

    @property
    def effects(self) -> tuple[Effects, ...]:
        """One entry per group term, in the order of the formula, by group. Raises StudyError."""
        return _effects(self)

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups, the larger one first: `ward`, `client`, `community:mother`."""
        return tuple(dict.fromkeys(effects.term.group for effects in self.effects))

    @property
    def names(self) -> tuple[str, ...]:
        """One per column of the matrix: `1|ward`, `age|ward`."""
        return tuple(name for effects in self.effects for name in effects.full_names)

    @property
    def slopes(self) -> tuple[str, ...]:
        """The columns that are not ones."""
        return tuple(name for name, is_slope in zip(self.names, self.is_slope, strict=True) if is_slope)

    @property
    def is_slope(self) -> tuple[bool, ...]:
        """Of each column, whether it is one of a slope."""
        return tuple(i > 0 or not effects.term.intercept for effects in self.effects for i in range(len(effects.names)))

    def matrix(self, values: Mapping[str, np.ndarray], num_rows: int) -> Float[np.ndarray, "n l"]:
        """The rows of the matrix, in the units of the data; not finite where a function is not.

        Args:
            values: of the rows, by column, not scaled.
            num_rows: their number.
        """
        found = [np.zeros((num_rows, 0))]
        for effects in self.effects:
            found.append(np.ones((num_rows, int(effects.term.intercept))))
            found.append(block_columns(effects.blocks, values, num_rows))
        return np.concatenate(found, axis=1)

    def labels(self, values: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
        """The group of each row as a text, by group; none for the client itself.

        Args:
            values: of the rows, by column.
        """
        columns = {column.name: column for column in self.columns}
        found = {}
        for term in parse_formula(self.formula).groups:
            each = [_labels(columns[name], values[name]) for name in term.group_columns]
            if len(each) == 1:
                found[term.group] = each[0]
            elif each:
                found[term.group] = [":".join(map(_escaped, names)) for names in zip(*each, strict=True)]
        return found


@lru_cache(maxsize=64)
def _effects(design: GroupDesign) -> tuple[Effects, ...]:
    formula = parse_formula(design.formula)
    columns = {column.name: column for column in design.columns}
    seen: set[str] = set()
    widths: dict[tuple[str, bool], int] = {}
    found = []
    for term in formula.groups:
        effects = _coded(formula, term, columns)
        for name in effects.full_names:
            if name in seen:
                message = f"two effects are called '{name}'; write `0 +` to leave out an intercept"
                raise formula.refusal_at(term.at, message)
            seen.add(name)
        group = (term.group, term.is_client)
        widths[group] = widths.get(group, 0) + len(effects.names)
        if widths[group] > MAX_EFFECTS:
            message = f"a group has more than {MAX_EFFECTS} effects; each needs many groups to be estimated"
            raise formula.refusal_at(term.at, message)
        found.append(effects)
    order = list(widths)
    return tuple(sorted(found, key=lambda effects: order.index((effects.term.group, effects.term.is_client))))


def _coded(formula: Formula, term: GroupTerm, columns: Mapping[str, Column]) -> Effects:
    for name, computed in term.columns:
        if name.name not in columns:
            raise formula.refusal_at(name.at, f"the column '{name.name}' is not declared")
        if (problem := columns[name.name].formula_problem) is not None:
            raise formula.refusal_at(name.at, f"the column '{name.name}' {problem}")
        if computed and columns[name.name].level_names:
            raise formula.refusal_at(name.at, f"it computes with '{name.name}', which is a category and not a number")
    for name in term.group_columns:
        if name not in columns:
            raise formula.refusal_at(term.group_at, f"the column '{name}' is not declared")
        if (problem := columns[name].group_problem) is not None:
            raise formula.refusal_at(term.group_at, f"the column '{name}' {problem}")
    inner = replace(formula, terms=term.terms, intercept=term.intercept, groups=())
    used = {name.name for name, _ in term.columns}
    levels = {name: column.level_names for name, column in columns.items() if name in used and column.level_names}
    coded = blocks(inner, levels)
    names = [name for block in coded for name in block.names]
    if len(set(names)) < len(names):
        raise formula.refusal_at(term.at, "two effects of this term have the same name; rename a column or a level")
    numeric = [any(each.levels is None for each in block.factors) for block in coded for _ in block.names]
    return Effects(term, (*([ONE] if term.intercept else []), *names), coded, tuple(numeric))


def _labels(column: Column, values: np.ndarray) -> list[str]:
    if levels := column.level_names:
        return [levels[int(value)] for value in values]
    return [as_text(value) for value in values.tolist()]


def _escaped(label: str) -> str:
    """A label in which a colon cannot be mistaken for the one between two labels."""
    return label.replace("\\", "\\\\").replace(":", "\\:")


def unit_numbers(labels: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The number of each row's group, counted in the order of their first rows, and the names of the groups.

    Args:
        labels: the group of each row.
    """
    names = tuple(dict.fromkeys(labels))
    numbers = {name: i for i, name in enumerate(names)}
    return np.array([numbers[label] for label in labels], np.int32), names
