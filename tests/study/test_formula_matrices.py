"""Names and numbers of several hundred random formulas, against formulaic's."""

import random

import formulaic
import numpy as np
import pandas as pd
import pytest

from cavity.errors import StudyError
from cavity.study.columns import Category
from cavity.study.design import Design, template
from cavity.study.formula import parse_formula
from tests.formulas import COLUMNS, safe_formula
from tests.marks import thorough

NUM_FORMULAS, NUM_SAME = 500, 400
ONLY_OURS = ("no predictors", "with another scale")  # formulaic gives no column for one, two of the same for the other
VALUES = template(tuple(COLUMNS.values()), 24)
NUM_ROWS = len(VALUES["age"])


def by_formulaic(text):
    """The names and the matrix, or None if the formula is refused."""
    frame = pd.DataFrame(
        {
            name: pd.Categorical.from_codes(VALUES[name], categories=list(column.level_names))
            if isinstance(column, Category)
            else VALUES[name]
            for name, column in COLUMNS.items()
        }
    )
    try:
        with np.errstate(all="ignore"):
            matrix = formulaic.Formula(text).rhs.get_model_matrix(frame, context={}, na_action="ignore", output="numpy")
    except (formulaic.errors.FormulaicError, TypeError):  # nesting in nothing is a TypeError there
        return None
    return tuple(matrix.model_spec.column_names), np.asarray(matrix, float)


def by_cavity(text):
    formula = parse_formula(text)
    design = Design(text, tuple(COLUMNS[name] for name in formula.predictors))
    ones = np.ones((NUM_ROWS, int(design.intercept)))
    names = (*("Intercept",) * design.intercept, *design.names)
    return names, np.hstack([ones, design.matrix(VALUES, NUM_ROWS)])


@thorough
def test_names_and_matrices_are_those_of_formulaic():
    rng = random.Random(0)
    num_same = 0
    for _ in range(NUM_FORMULAS):
        text = safe_formula(rng)
        expected = by_formulaic(text)
        try:
            names, matrix = by_cavity(text)
        except StudyError as error:
            assert expected is None or any(reason in str(error) for reason in ONLY_OURS), text
            continue
        assert expected is not None, text
        assert names == expected[0], text
        np.testing.assert_allclose(matrix, expected[1], rtol=1e-12, err_msg=text)
        num_same += 1
    assert num_same >= NUM_SAME


@pytest.mark.parametrize(
    "right",
    [
        *("f", "0 + f", "f:x", "f + f:g", "f:g", "0 + f:g", "f:g:h", "f/g", "f/x", "x %in% f", "(f + g + x)**2"),
        *("f*g*h - f:g:h", "g:x + f:g:x", "0 + f + g:f + x:f:g", "f:h + f:g + g:h", "[x + z]:f", "x + x", "x:z + z:x"),
        *("{x**2} + {x/10}", "I(-x**2) + I((-x)**2) + I(--x)", "I((x + z)*z - (x - z))", "I(x*1.50) + I(x*1e-7)"),
        *("2x + 1e5 + a.b", "`a b` + I(`a b`*2)", "{`a b`}", "x - - z", "x + 0", "-1 + x", "", "1", "{2}:x", "log(x,)"),
    ],
)
def test_each_rule_gives_the_names_of_formulaic(right):
    levels = {"f": "uvw", "g": "ab", "h": "pqr"}
    codes = {name: np.arange(12) % len(envelopes) for name, envelopes in levels.items()}
    numbers = {name: 1.0 + np.arange(12) / 10 + i for i, name in enumerate(("x", "z", "2x", "1e5", "a.b", "a b"))}
    frame = pd.DataFrame(
        {name: pd.Categorical.from_codes(codes[name], list(envelopes)) for name, envelopes in levels.items()} | numbers
    )
    expected = formulaic.Formula(f"y ~ {right}").rhs.get_model_matrix(frame, context={}, output="numpy")
    formula = parse_formula(f"y ~ {right}")
    columns = tuple(
        Category(name=name, levels=tuple(levels[name]), reference=levels[name][0])
        if name in levels
        else COLUMNS["age"].__class__(name=name)
        for name in formula.predictors
    )
    design = Design(f"y ~ {right}", columns)
    names = [name for name in expected.model_spec.column_names if name != "Intercept"]
    assert list(design.names) == names
    assert design.intercept == ("Intercept" in expected.model_spec.column_names)
    skip = int(design.intercept)
    np.testing.assert_allclose(design.matrix(codes | numbers, 12), np.asarray(expected, float)[:, skip:], rtol=1e-12)
