"""An R-style formula: what it asks for, and what it may not.

A formula comes in a file that others wrote, and formulaic evaluates Python in it. So every expression is looked at
first: columns, numbers, arithmetic and a few functions of one row are let through, nothing else. A function that
looks at all rows (`scale`, `poly`, ...) would be another one at every site, and is refused by name.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cavity.errors import CavityError, StudyError

ROW_FUNCTIONS = ("I", "exp", "log", "log10", "log2")
STATEFUL = ("bs", "cc", "center", "cr", "cs", "hashed", "lag", "poly", "scale", "standardize")
REMEDIES = {
    "C": "declare the column as a category with its levels",
    "Q": "write the column between backticks",
    "offset": "offsets are not there yet",
    "factor": "declare the column as a category with its levels",
} | dict.fromkeys(STATEFUL, "its result would depend on the rows of each site; use the study's `scaling`")
POWERS = range(2, 11)  # a tower of large powers would never end
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub)


@dataclass(frozen=True)
class Formula:
    """What a formula asks for.

    Attributes:
        text: as it was given.
        outcome: the column on its left.
        predictors: the columns on its right, in their order.
        computed: those of them in an expression, which must be numbers.
        transformed: those of them in a function or below a fraction line, which must not be scaled before.
    """

    text: str
    outcome: str
    predictors: tuple[str, ...]
    computed: tuple[str, ...]
    transformed: tuple[str, ...]


@lru_cache(maxsize=256)
def parse_formula(text: str) -> Formula:
    """The parts of a formula such as `outcome ~ rx * age + log(dose)`. Raises StudyError."""
    left, right = _sides(text)
    outcomes = [factor for term in left for factor in term.factors]
    if len(outcomes) != 1 or outcomes[0].eval_method.value != "lookup":
        raise StudyError(f"the formula {text!r} must have one column on its left; add a column if it is computed")
    predictors: dict[str, None] = {}  # as ordered sets
    computed: dict[str, None] = {}
    transformed: dict[str, None] = {}
    for factor in (factor for term in right for factor in term.factors):
        if factor.eval_method.value == "lookup":
            predictors[factor.expr] = None
        elif factor.eval_method.value == "python":
            expression = _Expression(factor.expr)
            predictors |= dict.fromkeys(expression.columns)
            computed |= dict.fromkeys(expression.columns)
            transformed |= dict.fromkeys(expression.transformed)
    outcome = outcomes[0].expr
    if outcome in predictors:
        raise StudyError(f"the formula {text!r} has the outcome '{outcome}' on its right too; take it out there")
    return Formula(text, outcome, tuple(predictors), tuple(computed), tuple(transformed))


def right_side(text: str) -> Any:
    """The terms on the right, as formulaic has them."""
    return _sides(text)[1]


def _sides(text: str) -> tuple[Any, Any]:
    formulaic = import_formulaic()
    try:
        parsed = formulaic.Formula(text)
    except (formulaic.errors.FormulaicError, SyntaxError) as error:
        if "`.` operator" in str(error):
            raise StudyError(f"the formula {text!r} asks for all columns by `.`; name those that are meant") from None
        reason = re.sub(r"\x1b\[[0-9;]*m|⧛|⧚", "", str(error)).split("\n")[0]
        raise StudyError(f"the formula {text!r} cannot be read: {reason.rstrip('.')}") from None
    left, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", None)
    if left is None or right is None:
        raise StudyError(f"the formula {text!r} must have an outcome: `outcome ~ predictors`")
    if isinstance(left, tuple) or isinstance(right, tuple):
        raise StudyError(f"the formula {text!r} has a `|`; give one set of predictors")
    return left, right


def import_formulaic() -> Any:
    """Formulaic, or an error that says how to get it."""
    try:
        import formulaic
        import formulaic.errors
        import pandas  # noqa: F401
    except ModuleNotFoundError as error:
        raise CavityError(
            f"formulas need {error.name}, which is not installed; install it with: pip install 'cavity[study]'"
        ) from None
    return formulaic


class _Expression(ast.NodeVisitor):
    """The columns of a Python expression; a StudyError where it does what a formula may not."""

    def __init__(self, text: str):
        self.columns: list[str] = []
        self.transformed: list[str] = []
        self._text, self._depth = text, 0
        self._quoted: dict[str, str] = {}
        self.visit(ast.parse(re.sub(r"`([^`]*)`", self._unquoted, text), mode="eval").body)

    def _unquoted(self, match: re.Match[str]) -> str:
        name = f"_quoted_{len(self._quoted)}"
        self._quoted[name] = match[1]
        return name

    def visit_Name(self, node: ast.Name) -> None:
        column = self._quoted.get(node.id, node.id)
        self.columns.append(column)
        if self._depth:
            self.transformed.append(column)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in ROW_FUNCTIONS:
            remedy = REMEDIES.get(name, f"a formula may use {', '.join(ROW_FUNCTIONS)}")
            raise StudyError(f"the formula uses {name}() in '{self._text}', which is refused: {remedy}")
        if len(node.args) != 1 or node.keywords:
            raise StudyError(f"{name}() takes one argument; see '{self._text}' in the formula")
        self._depth += name != "I"
        self.visit(node.args[0])
        self._depth -= name != "I"

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._arithmetic(node.op)
        if isinstance(node.op, ast.Pow) and not (isinstance(node.right, ast.Constant) and node.right.value in POWERS):
            raise StudyError(f"powers in a formula are {POWERS[0]} to {POWERS[-1]}; see '{self._text}'")
        self.visit(node.left)
        self._depth += isinstance(node.op, ast.Div)
        self.visit(node.right)
        self._depth -= isinstance(node.op, ast.Div)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self._arithmetic(node.op)
        self.visit(node.operand)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
            self.generic_visit(node)

    def _arithmetic(self, operator: ast.AST) -> None:
        if not isinstance(operator, ARITHMETIC):
            self.generic_visit(operator)

    def generic_visit(self, node: ast.AST) -> None:
        raise StudyError(
            f"the formula has '{self._text}', which is more than columns, numbers, arithmetic and the functions "
            f"{', '.join(ROW_FUNCTIONS)}; add a column to the data instead"
        )
