"""The tree of a formula. Every node knows the place of its first character, which is no part of what it means."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Place:
    """What all nodes have.

    Attributes:
        at: the place in the text, from 0.
    """

    at: int = field(compare=False)


@dataclass(frozen=True)
class Name(Place):
    """A column; `quoted` if it stood between backticks."""

    name: str
    quoted: bool = field(compare=False)


@dataclass(frozen=True)
class Number(Place):
    """A number as it was written, without a sign."""

    text: str


@dataclass(frozen=True)
class Chain(Place):
    """Operators of one rank from left to right: `a * b / c`, `a:b:c`, and inside of a function also `a + b - c`."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True)
class Sum(Place):
    """Terms that come (`+`) and go (`-`), in their order."""

    parts: tuple[tuple[str, Node], ...]


@dataclass(frozen=True)
class Power(Place):
    """`base ** exponent`, of terms or of numbers."""

    base: Node
    exponent: Node


@dataclass(frozen=True)
class Signed(Place):
    """`-value` or `+value`, of numbers."""

    sign: str
    value: Node


@dataclass(frozen=True)
class Argument(Place):
    """What a function is given; `keyword` as in `bs(age, knots = [40, 60])`, or None."""

    value: Node
    keyword: str | None


@dataclass(frozen=True)
class Call(Place):
    """`function(arguments)`."""

    function: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Items(Place):
    """`[a, b, ...]` as an argument."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Braces(Place):
    """`{value}`: computed with numbers, as `I(value)` is, under the name of the value itself."""

    value: Node


Node = Name | Number | Chain | Sum | Power | Signed | Call | Items | Braces
