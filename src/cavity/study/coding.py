"""Which columns a term gets, so that the matrix has full rank: the rules of R, patsy and formulaic.

A category alone spans the intercept: its full coding (one column per level) is `1 + its reduced coding` (without the
reference). So each term spans a set of products of reduced codings. Those that earlier terms span already are left
out, and the rest are combined by

    anything:reduced + anything -> anything:full
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from cavity.study.formula import Factor, Formula

MAX_COLUMNS = 2_000
MAX_CATEGORIES = 10  # of one term
MAX_SPANS = 256  # products of reduced codings that a term adds to the earlier ones


@dataclass(frozen=True)
class Coded:
    """A factor in a block of columns.

    Attributes:
        factor: a column or an expression.
        levels: for a category, the positions of those with a column, as a range up to the last; None for numbers.
        names: of its columns.
    """

    factor: Factor
    levels: range | None
    names: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """Columns of one term: all products of the columns of its factors, the first factor varying fastest.

    Attributes:
        factors: of the product.
        scale: by which it is multiplied.
        at: the position of its term in the formula.
    """

    factors: tuple[Coded, ...]
    scale: float
    at: int

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns: `rx[T.treated]:age`."""
        reverse = product(*(coded.names for coded in reversed(self.factors)))
        return tuple(":".join(reversed(names)) for names in reverse)


_Part = tuple[Factor, bool]  # a factor, and whether it is a category without the reference
_Parts = tuple[_Part, ...]
_Spans = dict[frozenset[_Part], _Parts]
_Levels = Mapping[str, Sequence[str]]  # of each category, by the key of its factor, the reference first


def blocks(formula: Formula, categories: Mapping[str, Sequence[str]]) -> tuple[Block, ...]:
    """The blocks of all terms, in their order. Raises StudyError where there would be too many columns.

    Args:
        formula: with its terms.
        categories: the levels of its columns that are categories, by name, the reference first; none of them is in an
            expression.
    """
    by_key = {f"`{name}`": levels for name, levels in categories.items()}
    spanned: set[frozenset[_Part]] = {frozenset()} if formula.intercept else set()
    found: list[Block] = []
    num_columns = 0
    for term in formula.terms:
        if sum(factor.key in by_key for factor in term.factors) > MAX_CATEGORIES:
            raise formula.refusal_at(term.at, f"a term has more than {MAX_CATEGORIES} categories")
        spans = {key: parts for key, parts in _spans(term.factors, by_key).items() if key not in spanned}
        if len(spans) > MAX_SPANS:
            raise formula.refusal_at(term.at, "too many categories without their lower interactions; use `a * b`")
        num_columns += sum(_num_columns(parts, by_key) for parts in spans.values())
        if num_columns > MAX_COLUMNS:
            raise formula.refusal_at(term.at, f"the formula has more than {MAX_COLUMNS} coefficients")
        spanned.update(spans)
        for parts in _simplified(spans.values()).values():
            coded = tuple(_coded(factor, by_key, reduced) for factor, reduced in parts)
            found.append(Block(coded, term.scale, term.at))
    return tuple(found)


def _spans(factors: Sequence[Factor], categories: _Levels) -> _Spans:
    choices = [[(factor, True), None] if factor.key in categories else [(factor, False)] for factor in factors]
    chosen = (tuple(part for part in parts if part is not None) for parts in product(*choices))
    return {frozenset(parts): parts for parts in chosen}


def _simplified(spans: Iterable[_Parts]) -> _Spans:
    found: _Spans = {}
    for parts in sorted(spans, key=len):
        key = frozenset(parts)
        for existing in found:
            new = key - existing
            if len(key) - 1 == len(existing) and len(new) == 1 and next(iter(new))[1]:
                full = tuple((factor, reduced and (factor, reduced) not in new) for factor, reduced in parts)
                others = [other for other_key, other in found.items() if other_key != existing]
                found = _simplified([*others, full])
                break
        else:
            found.setdefault(key, parts)
    return found


def _num_columns(parts: _Parts, categories: _Levels) -> int:
    return prod(
        len(categories[factor.key]) - reduced if factor.key in categories else len(factor.names)
        for factor, reduced in parts
    )


def _coded(factor: Factor, categories: _Levels, reduced: bool) -> Coded:
    ordered = categories.get(factor.key)
    if ordered is None:
        return Coded(factor, None, factor.names)
    levels = range(int(reduced), len(ordered))
    mark = "T." if reduced else ""
    return Coded(factor, levels, tuple(f"{factor.name}[{mark}{ordered[level]}]" for level in levels))
