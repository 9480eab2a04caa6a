"""Effects that vary between groups: `(1 | ward)`, `(age | ward)`, `(0 + age | ward)`, `(age || ward)`, `(1 | client)`.

`stratified(age)` is a coefficient of each client's own, and `stratified(1)` an intercept, with the prior of a
coefficient: the groups are the clients, and the standard deviation of the effects is known.

As in lme4 and bambi: an intercept is added unless it is removed, the effects of one bar are correlated, and `||` makes
all of them independent. `(1 | community/mother)` is `(1 | community) + (1 | community:mother)`, groups within groups.
The group is a column whose levels are not declared, or, without backticks, `client`: the client itself. A column of
that name goes between backticks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cavity.study.formula.expressions import columns, write
from cavity.study.formula.terms import Expansion, Factor, Term
from cavity.study.formula.tokens import refusal
from cavity.study.formula.tree import Bar, Braces, Call, Name, Node, Number, Sum

CLIENT, STRATIFIED = "client", "stratified"
MAX_GROUP_TERMS = 20


@dataclass(frozen=True)
class GroupTerm:
    """The effects of one bar.

    Attributes:
        terms: with factors; the intercept is not one of them.
        intercept: whether it has one.
        correlated: whether its effects are.
        group: the column of the groups, or `client`; `community:mother` for groups within groups.
        is_client: whether the group is the client itself, and no column.
        at: the position of its bracket in the formula.
        group_at: that of the group.
        group_columns: whose values name the groups; none for the client.
        is_within_client: whether the larger group of `client:ward` is the client.
        stratified: whether each client has its own coefficients, with the prior of a coefficient.
    """

    terms: tuple[Term, ...]
    intercept: bool
    correlated: bool
    group: str
    is_client: bool
    at: int = field(compare=False)
    group_at: int = field(compare=False)
    group_columns: tuple[str, ...] = ()
    is_within_client: bool = False
    stratified: bool = False

    @property
    def columns(self) -> Iterator[tuple[Name, bool]]:
        """The columns of its terms in their order, each with whether an expression computes with it."""
        for node in (factor.node for term in self.terms for factor in term.factors):
            for name, _ in columns(node):
                yield name, name is not node

    def __str__(self) -> str:
        """As a formula has it: parsing this gives the same term."""
        parts = [":".join([*term.numbers, *map(_written, term.factors)]) for term in self.terms]
        if self.stratified:
            return f"{STRATIFIED}({', '.join([*(['1'] if self.intercept else []), *parts])})"
        parts = ["1" if self.intercept else "0", *parts]
        names = [CLIENT] if self.is_client or self.is_within_client else []
        group = ":".join([*names, *map(_quoted, self.group_columns)])
        return f"({' + '.join(parts)} {'|' if self.correlated else '||'} {group})"


def split_groups(text: str, right: Sum, outcomes: tuple[str, ...], expansion: Expansion) -> tuple[Sum, list[GroupTerm]]:
    """The right side without its group terms, and these. Raises StudyError.

    Args:
        text: of the formula.
        right: its right side.
        outcomes: the columns on the left.
        expansion: of this formula.
    """
    rest: list[tuple[str, Node]] = []
    found: list[GroupTerm] = []
    for sign, part in right.parts:
        match part:
            case Bar() | Call(function="stratified") if sign == "-":
                raise refusal(text, part.at, "effects of groups cannot be removed; leave the term out")
            case Bar(within=Name() as outer, expands=True):
                larger = replace(part, group=outer, within=None, expands=False)
                found.append(_group_term(text, larger, outcomes, expansion))
                found.append(_group_term(text, part, outcomes, expansion))
            case Bar():
                found.append(_group_term(text, part, outcomes, expansion))
            case Call(function="stratified"):
                found.append(_stratified(text, part, outcomes, expansion))
            case _:
                rest.append((sign, part))
    if len(found) > MAX_GROUP_TERMS:
        raise refusal(text, found[MAX_GROUP_TERMS].at, f"the formula has more than {MAX_GROUP_TERMS} group terms")
    return Sum(tuple(rest), at=right.at), found


def _group_term(text: str, bar: Bar, outcomes: tuple[str, ...], expansion: Expansion) -> GroupTerm:
    terms = expansion.right(bar.terms)
    with_factors = tuple(term for term in terms if term.factors)
    intercept = len(with_factors) < len(terms)
    if not terms:
        raise refusal(text, bar.at, "this group term has no effects; write `(1 | ward)` for an intercept")
    for term in with_factors:
        if not any(True for factor in term.factors for _ in columns(factor.node)):
            raise refusal(text, term.at, "this has no column; a constant is the intercept")
    names = [name for name in (bar.within, bar.group) if name is not None]
    columns_of_group = tuple(name.name for name in names if not _is_client(name))
    if bar.within is not None and (_is_client(bar.group) or bar.within.name == bar.group.name):
        raise refusal(text, bar.group.at, f"'{bar.group.name}' cannot be within '{bar.within.name}'")
    found = GroupTerm(
        with_factors,
        intercept,
        bar.correlated,
        ":".join(name.name for name in names),
        _is_client(bar.group),
        at=bar.at,
        group_at=bar.group.at,
        group_columns=columns_of_group,
        is_within_client=bar.within is not None and _is_client(bar.within),
    )
    for name, _ in found.columns:
        if name.name in outcomes:
            raise refusal(text, name.at, f"the outcome '{name.name}' is also on the right; remove it there")
        if name.name in columns_of_group:
            raise refusal(text, name.at, f"'{name.name}' cannot be an effect and the group of the same term")
    for name in names:
        if name.name in outcomes and not _is_client(name):
            raise refusal(text, name.at, f"the outcome '{name.name}' cannot be the group")
    return found


def _stratified(text: str, call: Call, outcomes: tuple[str, ...], expansion: Expansion) -> GroupTerm:
    """`stratified(age, 1)` as effects of the clients."""
    parts: list[tuple[str, Node]] = [("-", Number("1", at=call.at))]
    for argument in call.arguments:
        if argument.keyword is not None:
            raise refusal(text, argument.at, f"{STRATIFIED}() takes columns, expressions, and 1 for the intercept")
        parts.append(("+", argument.value))
    bar = Bar(Sum(tuple(parts), at=call.at), Name(CLIENT, False, at=call.at), False, at=call.at)
    return replace(_group_term(text, bar, outcomes, expansion), stratified=True)


def _is_client(name: Name) -> bool:
    """Whether it is the client itself, and no column."""
    return name.name == CLIENT and not name.quoted


def _written(factor: Factor) -> str:
    match factor.node:
        case Name(name=name, quoted=quoted):
            return _quoted(name) if quoted else name
        case Braces(value=value):
            return f"{{{write(value)}}}"
        case node:
            return write(node)


def _quoted(name: str) -> str:
    is_plain = name.isidentifier() and name != CLIENT
    return name if is_plain else f"`{name}`"
