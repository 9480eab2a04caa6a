"""Expressions of the numbers of one row: `I(age ** 2)`, `{dose / 10}`, `log(dose)`.

The same tree is checked, written and computed, so no second parser could read it differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from cavity.study.formula.splines import is_spline, spline_of
from cavity.study.formula.tokens import refusal
from cavity.study.formula.tree import Bar, Braces, Call, Chain, Items, Name, Node, Number, Power, Signed, Sum

ROW_FUNCTIONS: Mapping[str, Callable[..., np.ndarray | np.float64]] = {
    "I": lambda value: value,
    "exp": np.exp,
    "log": np.log,
    "log10": np.log10,
    "log2": np.log2,
}
POWERS = range(2, 11)
_CATEGORY = "declare the column as a category with its levels; in Python give `levels`"
_SMOOTH = (
    "it would choose knots from the rows of each site; write `ns({x}, knots=[40, 60], range=[18, 100])` for a natural "
    "spline, or `bs(...)`"
)
_GROUPS = "write effects that vary between groups as `(1 | g)`"
_ADD_COLUMN = "add a column to the data at each site instead"
_BY_SITE = "its result would depend on the rows of each site; use the study's `scaling`"
_SPLINE = "it is a term of its own, which can be multiplied with others but not computed with"
REMEDIES = {
    "poly": "its result would depend on the rows of each site; write `{x} + I({x} ** 2)`",
    "log1p": "write `log(1 + {x})`",
    "np.log": "write `log({x})`",
    "np.exp": "write `exp({x})`",
    "ln": "write `log({x})`, which is the natural logarithm",
    "square": "write `I({x} ** 2)`",
    "strata": "strata within a client are not available; add the column as a predictor",
    "Q": "write the column between backticks",
    "offset": "an offset can only be added to the formula, as in `y ~ x + offset(log(time))`",
    "stratified": "it can only be added to the formula, as in `y ~ x + stratified(age)`",
    "Surv": "it is the outcome of a survival model, on the left of `~`",
    "bs": _SPLINE,
    "ns": _SPLINE,
}
REMEDIES |= dict.fromkeys(("C", "factor", "as.factor", "ordered"), _CATEGORY)
REMEDIES |= dict.fromkeys(("s", "te", "ti", "t2", "rcs", "pspline", "lo", "cr", "cc", "cs"), _SMOOTH)
REMEDIES |= dict.fromkeys(("cluster", "frailty", "random", "re"), _GROUPS)
REMEDIES |= dict.fromkeys(("cut", "ifelse", "sqrt", "abs", "min", "max", "round", "as.numeric"), _ADD_COLUMN)
REMEDIES |= dict.fromkeys(("center", "hashed", "lag", "scale", "standardize"), _BY_SITE)
# Precedence as in Python, so that a name such as `I((a + b) * c)` has only the brackets that it needs.
_SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(5)


def check(text: str, node: Node) -> None:
    """Raise StudyError, with the position in `text`, if a formula may not have this expression."""
    match node:
        case Name(name=name, quoted=quoted):
            if not quoted and ("." in name or not (name[0].isalpha() or name[0] == "_")):
                raise refusal(
                    text, node.at, "this is neither a name nor a number; such a column goes between backticks"
                )
        case Number(text=number):
            if not math.isfinite(float(number)):
                raise refusal(text, node.at, "this number is too large")
        case Signed(value=value) | Braces(value=value):
            check(text, value)
        case Chain(first=first, rest=rest):
            for part in (first, *(part for _, part in rest)):
                check(text, part)
        case Power(base=base, exponent=exponent):
            if exponent.literal is None or float(exponent.literal) not in POWERS:
                raise refusal(text, exponent.at, f"powers in an expression are {POWERS[0]} to {POWERS[-1]}")
            check(text, base)
        case Call():
            _check_call(text, node)
        case Items() | Sum() | Bar():
            raise refusal(text, node.at, "a list is not a number")


def _check_call(text: str, call: Call) -> None:
    name = call.function
    if name not in ROW_FUNCTIONS:
        remedy = REMEDIES.get(name, f"a formula may use {', '.join(ROW_FUNCTIONS)}; add a column to the data instead")
        raise refusal(text, call.at, f"{name}() cannot be used: {remedy.replace('{x}', _first_column(call))}")
    if len(call.arguments) != 1 or call.arguments[0].keyword is not None:
        raise refusal(text, call.at, f"{name}() takes one argument")
    check(text, call.arguments[0].value)


def _first_column(call: Call) -> str:
    """The column that a call is about, for a message."""
    match call.arguments[0].value if call.arguments else None:
        case Name(name=name):
            return name
        case _:
            return "x"


def write(node: Node, least: int = _SUM, *, quote: bool = False) -> str:
    """The expression as Python would print it, which is the name of its coefficient.

    Args:
        node: of an expression that was checked.
        least: the lowest precedence that needs no brackets around it.
        quote: put every column between backticks; then two texts are the same only if the expressions are.
    """
    match node:
        case Name(name=name, quoted=quoted):
            return f"`{name}`" if quoted or quote else name
        case Number(text=text):
            return str(int(text)) if text.isdigit() else repr(float(text))
        case Call() if is_spline(node):
            return spline_of(node).written(quote=quote)
        case Call(function=function, arguments=arguments):
            return f"{function}({', '.join(write(argument.value, quote=quote) for argument in arguments)})"
        case Braces(value=value):
            return write(value, least, quote=quote)
        case Signed(sign=sign, value=value):
            rank, text = _SIGN, sign + write(value, _SIGN, quote=quote)
        case Power(base=base, exponent=exponent):
            rank, text = _POWER, f"{write(base, _ATOM, quote=quote)} ** {write(exponent, _POWER, quote=quote)}"
        case Chain(first=first, rest=rest):
            rank = _SUM if rest[0][0] in "+-" else _PRODUCT
            parts = (f" {operator} {write(part, rank + 1, quote=quote)}" for operator, part in rest)
            text = write(first, rank, quote=quote) + "".join(parts)
        case Items() | Sum() | Bar():
            raise TypeError(f"a {type(node).__name__} is not an expression")
    return f"({text})" if rank < least else text


def columns(node: Node, *, inside: bool = False) -> Iterator[tuple[Name, bool]]:
    """The columns in their order, each with whether it must be in the units of the data.

    It must be in a function, below a fraction line, and next to a number in a sum: `(age - 50) ** 2` of a scaled age
    would be nearly the same column as the age itself.
    """
    match node:
        case Name():
            yield node, inside
        case Signed(value=value) | Braces(value=value) | Power(base=value):
            yield from columns(value, inside=inside)
        case Call(function=function, arguments=arguments):
            for argument in arguments:
                yield from columns(argument.value, inside=inside or function != "I")
        case Chain(first=first, rest=rest):
            parts = [first, *(part for _, part in rest)]
            inside = inside or (rest[0][0] in "+-" and any(not list(columns(part)) for part in parts))
            yield from columns(first, inside=inside)
            for operator, part in rest:
                yield from columns(part, inside=inside or operator == "/")


def compute(node: Node, values: Mapping[str, np.ndarray]) -> np.ndarray | np.float64:
    """The expression in float64; not finite where a function is not, such as the logarithm of zero.

    Args:
        node: of an expression that was checked.
        values: one number per row, by column.

    Returns:
        One number per row, or one for all if the expression has no column; for a spline one row of numbers per row.
    """
    match node:
        case Name(name=name):
            return np.asarray(values[name], float)
        case Number(text=text):
            return np.float64(text)
        case Braces(value=value):
            return compute(value, values)
        case Signed(sign=sign, value=value):
            return -compute(value, values) if sign == "-" else compute(value, values)
        case Call() if is_spline(node):
            spline = spline_of(node)
            return spline.basis(values[spline.column])
        case Call(function=function, arguments=arguments):
            return ROW_FUNCTIONS[function](compute(arguments[0].value, values))
        case Power(base=base, exponent=Number(text=text)):
            return compute(base, values) ** float(text)
        case Chain(first=first, rest=rest):
            found = compute(first, values)
            for operator, part in rest:
                found = _ARITHMETIC[operator](found, compute(part, values))
            return found
    raise TypeError(f"a {type(node).__name__} is not an expression")


_ARITHMETIC = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}
