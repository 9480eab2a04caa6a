"""Splines with agreed knots: `bs(age, knots=[40, 60], range=[18, 100])` and `ns(...)`, the bases of R's `splines`.

`bs` is the B-spline basis of a degree (3 by default) with the ends of the range as boundary knots, without its first
column, so that an intercept is another term. `ns` is the basis of cubic splines that are linear at both ends: the
B-splines, without the first, on the complement of their second derivatives at the ends, by the same two reflections as
R's QR decomposition. Patsy's `bs` is the same. Knots that are chosen from data would differ between sites, so both must
be given, and values outside the range have no value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from cavity.study.formula.tokens import refusal
from cavity.study.formula.tree import Call, Items, Name, Node, Number, Signed

SPLINES = ("bs", "ns")
CUBIC = 3
DEGREES = range(1, 6)
MAX_KNOTS = 50
EXAMPLE = "knots=[40, 60], range=[18, 100]"
NOT_AGREED = "it would choose knots from the rows of each site"


@dataclass(frozen=True)
class Spline:
    """A basis of splines of one column.

    Attributes:
        kind: "bs" or "ns".
        column: its name.
        quoted: whether it was between backticks.
        knots: inside the range, increasing.
        range: its ends.
        degree: of the polynomials between knots.
    """

    kind: str
    column: str
    quoted: bool
    knots: tuple[float, ...]
    range: tuple[float, float]
    degree: int = CUBIC

    @property
    def width(self) -> int:
        """The number of columns of the basis."""
        return len(self.knots) + (self.degree if self.kind == "bs" else 1)

    def written(self, *, quote: bool = False) -> str:
        """As a formula has it; the same for two splines if and only if they are the same."""
        name = f"`{self.column}`" if self.quoted or quote else self.column
        parts = [name, f"knots={_list(self.knots)}", f"range={_list(self.range)}"]
        parts += [f"degree={self.degree}"] if self.degree != CUBIC else []
        return f"{self.kind}({', '.join(parts)})"

    def basis(self, values: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n k"]:
        """The columns of each value; NaN outside the range."""
        values = np.asarray(values, float)
        low, high = self.range
        inside = np.isfinite(values) & (low <= values) & (values <= high)
        knots = np.array([low] * (self.degree + 1) + [*self.knots] + [high] * (self.degree + 1))
        found = _b_splines(np.where(inside, values, low), knots, self.degree)[:, 1:]
        if self.kind == "ns":
            found = _without_curvature(found, _second_derivatives(np.array(self.range), knots)[:, 1:])
        return np.where(inside[:, None], found, np.nan)


def is_spline(node: Node) -> bool:
    """Whether it is a call of `bs` or `ns`."""
    match node:
        case Call(function=function):
            return function in SPLINES
    return False


def check_spline(text: str, call: Call) -> None:
    """Raise StudyError, with the position in `text`, if the arguments are not those of a spline."""
    example = f"{call.function}(age, {EXAMPLE})"
    keywords: dict[str, Node] = {}
    for i, argument in enumerate(call.arguments):
        if (argument.keyword is None) != (i == 0) or argument.keyword in keywords:
            raise refusal(text, argument.at, f"{call.function}() takes a column, and each keyword once: `{example}`")
        if argument.keyword is not None:
            keywords[argument.keyword] = argument.value
    match call.arguments[0].value if call.arguments else None:
        case Name():
            pass
        case _:
            raise refusal(text, call.at, f"the first argument of {call.function}() is a column, as in `{example}`")
    if "df" in keywords:
        raise refusal(text, keywords["df"].at, f"{NOT_AGREED}; give the knots, as in `{example}`")
    known = {"knots", "range"} | ({"degree"} if call.function == "bs" else set())
    if unknown := [name for name in keywords if name not in known]:
        message = f"{call.function}() has no keyword {unknown[0]!r}; it has {', '.join(sorted(known))}"
        raise refusal(text, keywords[unknown[0]].at, message)
    for name in ("knots", "range"):
        if name not in keywords:
            message = f"{call.function}() without `{name}` is refused, because {NOT_AGREED}; agree on them: `{example}`"
            raise refusal(text, call.at, message)
    _check_numbers(text, keywords)


def _check_numbers(text: str, keywords: Mapping[str, Node]) -> None:
    knots, ends = (_numbers(text, name, keywords[name]) for name in ("knots", "range"))
    if len(knots) > MAX_KNOTS:
        raise refusal(text, keywords["knots"].at, f"a spline has at most {MAX_KNOTS} knots")
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise refusal(text, keywords["range"].at, "the range of a spline is [smallest, largest]")
    if any(b <= a for a, b in zip((ends[0], *knots), (*knots, ends[1]), strict=True)):
        raise refusal(text, keywords["knots"].at, "knots increase, and are inside the range")
    if "degree" in keywords and (keywords["degree"].literal or "") not in map(str, DEGREES):
        raise refusal(text, keywords["degree"].at, f"the degree is {DEGREES[0]} to {DEGREES[-1]}")


@lru_cache(maxsize=256)
def spline_of(call: Call) -> Spline:
    """The spline of a call that was checked."""
    keywords = {argument.keyword: argument.value for argument in call.arguments}
    match call.arguments[0].value:
        case Name(name=name, quoted=quoted):
            knots, ends = (_numbers("", key, keywords[key]) for key in ("knots", "range"))
            degree = int(keywords["degree"].literal or CUBIC) if "degree" in keywords else CUBIC
            return Spline(call.function, name, quoted, knots, (ends[0], ends[1]), degree)
    raise TypeError("the first argument of a spline is a column")


def _numbers(text: str, name: str, node: Node) -> tuple[float, ...]:
    match node:
        case Items(items=items):
            found = [_number(item) for item in items]
            if None not in found:
                return tuple(number for number in found if number is not None)
    raise refusal(text, node.at, f"`{name}` is a list of numbers, such as [18, 100]")


def _number(node: Node) -> float | None:
    match node:
        case Number(text=text) if math.isfinite(float(text)):
            return float(text)
        case Signed(sign=sign, value=Number(text=text)) if math.isfinite(float(text)):
            return -float(text) if sign == "-" else float(text)
    return None


def _list(numbers: tuple[float, ...]) -> str:
    plain = [str(int(x)) if x.is_integer() and abs(x) < 1e15 else repr(x) for x in numbers]
    return f"[{', '.join(plain)}]"


def _b_splines(x: Float[np.ndarray, " n"], knots: Float[np.ndarray, " t"], degree: int) -> Float[np.ndarray, "n k"]:
    """All B-splines at x, by the recursion of Cox and de Boor; the last interval has its right end."""
    last = len(knots) - 2
    while knots[last] == knots[-1]:
        last -= 1
    interval = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, last)
    found = (interval[:, None] == np.arange(len(knots) - 1)).astype(float)
    for d in range(1, degree + 1):
        rise, fall = _inverse(knots[d:-1] - knots[: -d - 1]), _inverse(knots[d + 1 :] - knots[1:-d])
        up, down = (x[:, None] - knots[: -d - 1]) * rise, (knots[d + 1 :] - x[:, None]) * fall
        found = up * found[:, :-1] + down * found[:, 1:]
    return found


def _second_derivatives(x: Float[np.ndarray, " n"], knots: Float[np.ndarray, " t"]) -> Float[np.ndarray, "n k"]:
    """Those of all cubic B-splines at x."""
    found = _b_splines(x, knots, 1)
    for d in (2, CUBIC):
        rise, fall = _inverse(knots[d:-1] - knots[: -d - 1]), _inverse(knots[d + 1 :] - knots[1:-d])
        found = d * (rise * found[:, :-1] - fall * found[:, 1:])
    return found


def _without_curvature(
    basis: Float[np.ndarray, "n k"], curvature: Float[np.ndarray, "2 k"]
) -> Float[np.ndarray, "n _"]:
    """The combinations of a basis whose second derivatives at both ends are zero.

    Householder's reflections turn the two rows of the curvature into the first coordinates; the others remain.
    """
    basis, curvature = basis.copy(), curvature.copy()
    for k in range(2):
        v = curvature[k, k:].copy()
        v[0] += math.copysign(float(np.linalg.norm(v)), v[0])
        v /= np.linalg.norm(v)
        for rows in (basis, curvature):
            rows[:, k:] -= 2.0 * np.outer(rows[:, k:] @ v, v)
    return basis[:, 2:]


def _inverse(width: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """1 / width, and 0 for empty intervals."""
    return np.where(width > 0, 1.0 / np.where(width > 0, width, 1.0), 0.0)
