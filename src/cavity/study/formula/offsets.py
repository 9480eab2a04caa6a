"""Offsets: terms of the linear predictor whose coefficient is 1, `y ~ x + offset(log(time))`."""

from __future__ import annotations

from cavity.study.formula.expressions import check, columns
from cavity.study.formula.tokens import refusal
from cavity.study.formula.tree import Argument, Call, Node, Sum

OFFSET = "offset"


def split_offsets(text: str, right: Sum, outcomes: tuple[str, ...]) -> tuple[Sum, tuple[Node, ...]]:
    """The right side without its offsets, and the expressions of these. Raises StudyError.

    Args:
        text: of the formula.
        right: its right side.
        outcomes: the columns on the left.
    """
    rest: list[tuple[str, Node]] = []
    found: list[Node] = []
    for sign, part in right.parts:
        match part:
            case Call(function=function) if function == OFFSET and sign == "-":
                raise refusal(text, part.at, "an offset cannot be removed; leave it out, or write `offset(-x)`")
            case Call(function=function, arguments=(Argument(value=value, keyword=None),)) if function == OFFSET:
                found.append(_checked(text, value, outcomes))
            case Call(function=function) if function == OFFSET:
                raise refusal(text, part.at, "offset() takes one column or expression, as in `offset(log(time))`")
            case _:
                rest.append((sign, part))
    return Sum(tuple(rest), at=right.at), tuple(found)


def _checked(text: str, value: Node, outcomes: tuple[str, ...]) -> Node:
    check(text, value)
    names = [name for name, _ in columns(value)]
    if not names:
        raise refusal(text, value.at, "this has no column; a constant offset is part of the intercept")
    for name in names:
        if name.name in outcomes:
            raise refusal(text, name.at, f"the outcome '{name.name}' is also on the right; remove it there")
    return value
