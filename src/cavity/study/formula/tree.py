"""The tree of a formula. Every node has the position of its first character, which two equal nodes need not share."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Place:
    """The position of a node.

    Attributes:
        at: the position in the text, from 0.
    """

    at: int = field(compare=False)

    @property
    def literal(self) -> str | None:
        """The text of a number; None for all other nodes."""
        return None


@dataclass(frozen=True)
class Name(Place):
    """A column; `quoted` if it was between backticks."""

    name: str
    quoted: bool = field(compare=False)


@dataclass(frozen=True)
class Number(Place):
    """A number as it was written, without a sign."""

    text: str

    @property
    def literal(self) -> str:
        return self.text


@dataclass(frozen=True)
class Chain(Place):
    """Operators of one precedence from left to right: `a * b / c`, `a:b:c`, inside a function also `a + b - c`."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True)
class Sum(Place):
    """Terms that are added (`+`) or removed (`-`), in their order."""

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
    """An argument of a function; `keyword` as in `bs(age, knots = [40, 60])`, or None."""

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
    """`{value}`: computed with numbers like `I(value)`; its name is that of the value itself."""

    value: Node


@dataclass(frozen=True)
class Bar(Place):
    """`(terms | group)`: effects that vary between groups; correlated, or independent with `||`.

    `(terms | a:b)` has the groups b within a; `(terms | a/b)` is `(terms | a) + (terms | a:b)`.
    """

    terms: Sum
    group: Name
    correlated: bool
    within: Name | None = None
    expands: bool = False


Node = Name | Number | Chain | Sum | Power | Signed | Call | Items | Braces | Bar
