"""From the tree of a formula to its terms: the algebra of `+ - * : / %in% **`, as in R, patsy and formulaic.

A term is a product of factors; the product of a factor with itself is that factor. Terms, and the factors of a term,
are in the order of their first occurrence. It decides the names and the order of coefficients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from cavity.errors import StudyError
from cavity.study.formula.expressions import check, write
from cavity.study.formula.splines import Spline, check_spline, is_spline, spline_of
from cavity.study.formula.tokens import refusal
from cavity.study.formula.tree import Bar, Braces, Call, Chain, Name, Node, Number, Power, Sum

MAX_TERMS = 2_000
MAX_FACTORS = 20  # of one term
MAX_EXPRESSION = 1_000  # characters of its name
MAX_PRODUCTS = 20_000  # of two terms, while a formula is expanded
MAX_POWER = 1_000


@dataclass(frozen=True)
class Factor:
    """A column, or an expression.

    Attributes:
        key: the same for two factors if and only if they mean the same.
        name: in the names of coefficients.
        node: the tree.
    """

    key: str
    name: str = field(compare=False)
    node: Name | Call | Braces = field(compare=False)

    @property
    def spline(self) -> Spline | None:
        """The spline that it is, or None."""
        match self.node:
            case Call() as call if is_spline(call):
                return spline_of(call)
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """Of its columns, if it is no category: that of the factor, or `bs(...)[0]`, `bs(...)[1]`, ..."""
        spline = self.spline
        return (self.name,) if spline is None else tuple(f"{self.name}[{i}]" for i in range(spline.width))


@dataclass(frozen=True)
class Term:
    """A product of factors; the intercept has none.

    Attributes:
        factors: different ones, in their order.
        numbers: by which it is multiplied, as they were written.
        at: the position of its first occurrence in the formula.
    """

    factors: tuple[Factor, ...]
    numbers: tuple[str, ...]
    at: int = field(compare=False)

    @cached_property
    def key(self) -> frozenset[str]:
        """The same for two terms if and only if they are the same."""
        return frozenset([*(factor.key for factor in self.factors), *(f"={number}" for number in self.numbers)])

    @property
    def scale(self) -> float:
        """The product of the numbers."""
        return prod(map(float, self.numbers), start=1.0)


Terms = Mapping[frozenset[str], Term]
_ONE = "1"


class Expansion:
    """Expands the sums of one formula. The number of products is limited over all of them together."""

    def __init__(self, text: str):
        self._text, self._products = text, 0

    def left(self, tree: Sum) -> tuple[Term, ...]:
        """The terms of the left side."""
        return self._finished(self._sum(tree, {}))

    def right(self, tree: Sum) -> tuple[Term, ...]:
        """The terms of the right side, by the number of their factors. The intercept is first, unless it is removed."""
        one = Term((), (_ONE,), tree.at)
        return self._finished(self._sum(tree, {one.key: one}))

    def _finished(self, terms: Terms) -> tuple[Term, ...]:
        seen: dict[frozenset[str], Term] = {}
        for term in terms.values():
            if not term.factors and term.numbers != (_ONE,):
                raise self._refused(term.at, "a number other than 0 and 1 can only scale a term, as in `2:age`")
            if not 0 < term.scale < float("inf"):
                raise self._refused(term.at, "a term is scaled by a positive finite number")
            factors = frozenset(factor.key for factor in term.factors)
            if factors in seen:
                raise self._refused(term.at, "this term occurs already with another scale; use `:` to scale a term")
            seen[factors] = term
        return tuple(sorted(seen.values(), key=lambda term: len(term.factors)))

    def _expanded(self, node: Node) -> Terms:
        match node:
            case Sum():
                return self._sum(node, {})
            case Name(name=name):
                return _alone(Term((Factor(f"`{name}`", name, node),), (), node.at))
            case Call() | Braces():
                match node:
                    case Call() if is_spline(node):
                        check_spline(self._text, node)
                    case _:
                        check(self._text, node)
                factor = Factor(write(node, quote=True), write(node), node)
                if len(factor.name) > MAX_EXPRESSION:
                    raise self._refused(node.at, f"this is longer than {MAX_EXPRESSION} characters; add a column")
                return _alone(Term((factor,), (), node.at))
            case Number(text=text):
                return _alone(Term((), (text,), node.at))
            case Power(base=base, exponent=exponent):
                return self._power(self._expanded(base), exponent)
            case Chain(first=first, rest=rest):
                found = self._expanded(first)
                for operator, part in rest:
                    found = self._operation(operator, found, self._expanded(part), part.at)
                return found
            case Bar():
                message = "effects of groups can only be added to the formula, as in `y ~ x + (1 | ward)`"
                raise self._refused(node.at, message)
        raise self._refused(node.at, "this is not a term")

    def _sum(self, tree: Sum, start: Terms) -> Terms:
        found = dict(start)
        for sign, part in tree.parts:
            for key, term in self._expanded(part).items():
                if sign == "-":
                    found.pop(key, None)
                else:
                    found.setdefault(key, term)
            self._check_size(found, part.at)
        return found

    def _operation(self, operator: str, left: Terms, right: Terms, at: int) -> Terms:
        if operator == ":":
            return self._multiplied(left, right, at)
        if operator == "*":
            return self._together(left.values(), right.values(), self._multiplied(left, right, at).values(), at=at)
        outer, inner = (left, right) if operator == "/" else (right, left)
        if not outer:
            raise self._refused(at, "there is nothing to nest it in")
        common = _alone(self._one_product(outer.values(), at))
        return self._together(outer.values(), self._multiplied(common, inner, at).values(), at=at)

    def _power(self, base: Terms, exponent: Node) -> Terms:
        written = exponent.literal or ""
        power = int(written) if written.isdigit() else 0
        if not 1 <= power <= MAX_POWER:
            raise self._refused(exponent.at, f"a power of terms is a whole number from 1 to {MAX_POWER}")
        found = base
        for _ in range(power - 1):
            before, found = found, self._multiplied(found, base, exponent.at)
            if list(before) == list(found):
                break
        return found

    def _multiplied(self, left: Terms, right: Terms, at: int) -> Terms:
        products = (self._one_product((a, b), at) for a in left.values() for b in right.values())
        return self._together(products, at=at)

    def _one_product(self, terms: Iterable[Term], at: int) -> Term:
        terms = list(terms)
        self._products += len(terms) - 1
        if self._products > MAX_PRODUCTS:
            raise self._refused(at, f"the expansion takes more than {MAX_PRODUCTS} products; write out the terms")
        factors = tuple(dict.fromkeys(factor for term in terms for factor in term.factors))
        numbers = tuple(dict.fromkeys(number for term in terms for number in term.numbers))
        if len(factors) > MAX_FACTORS:
            raise self._refused(at, f"a term has more than {MAX_FACTORS} factors")
        return Term(factors, numbers, terms[0].at)

    def _together(self, *sets: Iterable[Term], at: int) -> Terms:
        found: dict[frozenset[str], Term] = {}
        for terms in sets:
            for term in terms:
                found.setdefault(term.key, term)
                self._check_size(found, at)
        return found

    def _check_size(self, terms: Terms, at: int) -> None:
        if len(terms) > MAX_TERMS:
            raise self._refused(at, f"the formula has more than {MAX_TERMS} terms")

    def _refused(self, at: int, reason: str) -> StudyError:
        return refusal(self._text, at, reason)


def _alone(term: Term) -> Terms:
    return {term.key: term}
