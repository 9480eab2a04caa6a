"""R-style formulas: what a formula asks for, and what it may not.

A formula is text from a file that others wrote. It is read by a small grammar into a tree (`parser`), expanded into
terms (`terms`), and its expressions are computed from the same tree (`expressions`); no part of it is evaluated as
Python. A function that looks at all rows (`scale`, `poly`, ...) would differ between sites, and is refused by name.
Every refusal is a StudyError that shows the position.

To add a function of one row, add a line to `expressions.ROW_FUNCTIONS`. The grammar already reads any call with
keywords and lists (`bs(age, knots = [40, 60])`), so another kind of call is a case in `terms.Expansion`. Splines are in
`splines`.
A function of columns on the left (`Surv(time, status)`) belongs to a family, which registers it in `OUTCOME_FUNCTIONS`;
`deaths | trials(patients)` is another way to write `trials(deaths, patients)`.
Effects of groups, `(1 | g)`, are in `groups`, offsets in `offsets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cavity.errors import StudyError
from cavity.study.formula.expressions import columns
from cavity.study.formula.groups import CLIENT, GroupTerm, split_groups
from cavity.study.formula.offsets import split_offsets
from cavity.study.formula.parser import parse
from cavity.study.formula.terms import Expansion, Factor, Term
from cavity.study.formula.tokens import refusal
from cavity.study.formula.tree import Argument, Call, Name, Node, Sum

__all__ = ["CLIENT", "OUTCOME_FUNCTIONS", "Factor", "Formula", "GroupTerm", "Term", "parse_formula"]

OUTCOME_FUNCTIONS: set[str] = set()  # of columns on the left; families add theirs
ONE_COLUMN = "there must be one column on the left; add a column to the data if it is computed"


@dataclass(frozen=True)
class Formula:
    """What a formula asks for.

    Attributes:
        text: as it was given.
        outcomes: the columns on the left.
        outcome_function: the function of them (`Surv`); None for one column.
        terms: on the right, without the intercept and the group terms, by the number of their factors.
        intercept: whether it has one.
        places: the columns of these terms, in their order, each with the position of its first occurrence.
        computed_places: those of them in an expression, which must be numbers, in the same way.
        transformed: those of them in a function or below a fraction line, which must not be scaled before.
        groups: the group terms, in their order.
        offsets: the expressions of the offsets, which are added up.
    """

    text: str
    outcomes: tuple[str, ...]
    outcome_function: str | None
    terms: tuple[Term, ...]
    intercept: bool
    places: dict[str, int]
    computed_places: dict[str, int]
    transformed: tuple[str, ...]
    groups: tuple[GroupTerm, ...] = ()
    offsets: tuple[Node, ...] = ()

    @property
    def predictors(self) -> tuple[str, ...]:
        """The columns on the right, in their order, without those of group terms."""
        return tuple(self.places)

    @property
    def group_predictors(self) -> tuple[str, ...]:
        """The columns whose effects vary between groups, in their order."""
        return tuple(dict.fromkeys(name.name for term in self.groups for name, _ in term.columns))

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns that name the groups, in their order; the client itself is no column."""
        return tuple(dict.fromkeys(name for term in self.groups for name in term.group_columns))

    @property
    def offset_columns(self) -> tuple[str, ...]:
        """The columns of offsets, in their order."""
        return tuple(dict.fromkeys(name.name for node in self.offsets for name, _ in columns(node)))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, those of the outcome first, those of groups last."""
        right = (*self.predictors, *self.offset_columns, *self.group_predictors, *self.group_columns)
        return tuple(dict.fromkeys((*self.outcomes, *right)))

    @property
    def spline_knots(self) -> dict[str, tuple[float, ...]]:
        """For columns in splines, all their knots, the first and the last being the ends of the common range."""
        terms = [*self.terms, *(term for group in self.groups for term in group.terms)]
        splines = [factor.spline for term in terms for factor in term.factors if factor.spline is not None]
        found = {}
        for column in dict.fromkeys(spline.column for spline in splines):
            own = [spline for spline in splines if spline.column == column]
            low, high = max(spline.range[0] for spline in own), min(spline.range[1] for spline in own)
            inside = {knot for spline in own for knot in (*spline.knots, *spline.range) if low < knot < high}
            found[column] = (low, *sorted(inside), high)
        return found

    @property
    def computed(self) -> tuple[str, ...]:
        """The columns in an expression."""
        return tuple(self.computed_places)

    def refusal(self, column: str, reason: str) -> StudyError:
        """An error that shows where a column is used."""
        return self.refusal_at(self.computed_places.get(column, self.places.get(column, 0)), reason)

    def refusal_at(self, at: int, reason: str) -> StudyError:
        """An error that shows a position."""
        return refusal(self.text, at, reason)


@lru_cache(maxsize=64)
def parse_formula(text: str) -> Formula:
    """The parts of a formula such as `outcome ~ rx * age + log(dose)`. Raises StudyError."""
    left, right = parse(text)
    expansion = Expansion(text)
    function, outcomes = _outcome(text, left, expansion)
    right, offsets = split_offsets(text, right, outcomes)
    right, groups = split_groups(text, right, outcomes, expansion)
    terms = expansion.right(right)
    places: dict[str, int] = {}
    computed: dict[str, int] = {}
    transformed: dict[str, None] = {}  # as an ordered set
    for term in terms:
        if term.factors and not any(True for factor in term.factors for _ in columns(factor.node)):
            raise refusal(text, term.at, "this has no column; a constant is the intercept")
    for node in (factor.node for term in terms for factor in term.factors):
        for name, inside in columns(node):
            places.setdefault(name.name, name.at)
            if name is not node:
                computed.setdefault(name.name, name.at)
            if inside:
                transformed[name.name] = None
    if both := [name for name in outcomes if name in places]:
        raise refusal(text, places[both[0]], f"the outcome '{both[0]}' is also on the right; remove it there")
    with_factors = tuple(term for term in terms if term.factors)
    intercept = len(with_factors) < len(terms)
    return Formula(
        text, outcomes, function, with_factors, intercept, places, computed, tuple(transformed), tuple(groups), offsets
    )


def _outcome(text: str, left: Sum, expansion: Expansion) -> tuple[str | None, tuple[str, ...]]:
    """The function on the left, if there is one, and its columns."""
    match left.parts:
        case (("+", Call(function=function, arguments=arguments)),) if function in OUTCOME_FUNCTIONS:
            names = [_column(argument) for argument in arguments]
            found = tuple(dict.fromkeys(name for name in names if name is not None))
            if not names or len(found) < len(names):
                raise refusal(text, left.at, f"{function}() on the left takes different columns")
            return function, found
    terms = expansion.left(left)
    if len(terms) == 1 and len(terms[0].factors) == 1 and not terms[0].numbers:
        match terms[0].factors[0].node:
            case Name(name=name):
                return None, (name,)
    raise refusal(text, left.at, ONE_COLUMN)


def _column(argument: Argument) -> str | None:
    match argument:
        case Argument(value=Name(name=name), keyword=None):
            return name
        case _:
            return None
