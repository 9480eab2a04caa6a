"""R-style formulas: what a formula asks for, and what it may not.

A formula is text from a file that others wrote. It is read by a small grammar into a tree (`parser`), expanded into
terms (`terms`), and its expressions are computed from that same tree (`expressions`); no part of it is Python that
somebody evaluates. A function that looks at all rows (`scale`, `poly`, ...) would be another one at every site, and is
refused by name. Every refusal is a StudyError that shows the place.

To add: a function of one row is a line of `expressions.ROW_FUNCTIONS`. The grammar reads any call with keywords and
lists already (`bs(age, knots = [40, 60])`, `offset(...)`, `Surv(a, b)`), so another kind of call is a case in
`terms.Expansion`. A bar in brackets, `(1 | g)`, is met in one place, `parser._Parser._inside`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cavity.errors import StudyError
from cavity.study.formula.expressions import columns
from cavity.study.formula.parser import parse
from cavity.study.formula.terms import Expansion, Factor, Term
from cavity.study.formula.tokens import refusal
from cavity.study.formula.tree import Name

__all__ = ["Factor", "Formula", "Term", "parse_formula"]


@dataclass(frozen=True)
class Formula:
    """What a formula asks for.

    Attributes:
        text: as it was given.
        outcome: the column on its left.
        terms: on its right, without the intercept, by the number of their factors.
        intercept: whether it has one.
        places: the columns on its right, in their order, each with the place of its first occurrence.
        computed_places: those of them in an expression, which must be numbers, in the same way.
        transformed: those of them in a function or below a fraction line, which must not be scaled before.
    """

    text: str
    outcome: str
    terms: tuple[Term, ...]
    intercept: bool
    places: dict[str, int]
    computed_places: dict[str, int]
    transformed: tuple[str, ...]

    @property
    def predictors(self) -> tuple[str, ...]:
        """The columns on its right, in their order."""
        return tuple(self.places)

    @property
    def computed(self) -> tuple[str, ...]:
        """The columns in an expression."""
        return tuple(self.computed_places)

    def refusal(self, column: str, reason: str) -> StudyError:
        """An error that shows where a column is used."""
        return self.refusal_at(self.computed_places.get(column, self.places.get(column, 0)), reason)

    def refusal_at(self, at: int, reason: str) -> StudyError:
        """An error that shows a place."""
        return refusal(self.text, at, reason)


@lru_cache(maxsize=64)
def parse_formula(text: str) -> Formula:
    """The parts of a formula such as `outcome ~ rx * age + log(dose)`. Raises StudyError."""
    left, right = parse(text)
    expansion = Expansion(text)
    outcomes = expansion.left(left)
    if len(outcomes) != 1 or len(outcomes[0].factors) != 1 or outcomes[0].numbers:
        raise refusal(text, left.at, "there must be one column on its left; add a column if it is computed")
    outcome = outcomes[0].factors[0].node
    if not isinstance(outcome, Name):
        raise refusal(text, left.at, "there must be one column on its left; add a column if it is computed")
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
            if not isinstance(node, Name):
                computed.setdefault(name.name, name.at)
            if inside:
                transformed[name.name] = None
    if outcome.name in places:
        raise refusal(
            text, places[outcome.name], f"it has the outcome '{outcome.name}' on its right too; take it out there"
        )
    with_factors = tuple(term for term in terms if term.factors)
    return Formula(
        text, outcome.name, with_factors, len(with_factors) < len(terms), places, computed, tuple(transformed)
    )
