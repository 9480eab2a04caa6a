"""Formulas: the matrix is the one built by hand, the same at every site, and nothing but columns is computed with."""

import numpy as np
import pytest

from cavity.errors import StudyError
from cavity.study.columns import Boolean, Category, Number
from cavity.study.design import Design
from cavity.study.formula import parse_formula

RX = Category(name="rx", levels=("low", "none", "high"), reference="none")
SEX = Category(name="sex", levels=("f", "m"), reference="f")
AGE = Number(name="age")
AGE_AT = Number(name="age at entry")
MALE = Boolean(name="male")


def test_interactions_levels_and_reference_as_by_hand():
    design = Design("y ~ rx * age + sex", (RX, AGE, SEX))
    rx, age, sex = np.array([0, 1, 2, 1]), np.array([30.0, 40.0, 50.0, 60.0]), np.array([0, 1, 1, 0])
    assert RX.ordered == ("none", "low", "high")
    assert design.names == ("rx[T.low]", "rx[T.high]", "age", "sex[T.m]", "rx[T.low]:age", "rx[T.high]:age")
    low, high = rx == 1, rx == 2
    expected = np.stack([low, high, age, sex == 1, low * age, high * age], axis=1)
    assert design.intercept
    np.testing.assert_array_equal(design.matrix({"rx": rx, "age": age, "sex": sex}, 4), expected)


def test_a_site_without_a_level_has_the_same_columns():
    design = Design("y ~ rx + age", (RX, AGE))
    one_level = design.matrix({"rx": np.array([2, 2]), "age": np.array([1.0, 2.0])}, 2)
    np.testing.assert_array_equal(one_level, [[0, 1, 1], [0, 1, 2]])


def test_functions_powers_and_quoted_names():
    design = Design("y ~ log(age) + I(age**2) + `age at entry` + {age / 10} + male", (AGE, AGE_AT, MALE))
    age = np.array([1.0, np.e, 10.0])
    at = np.array([5.0, 6.0, 7.0])
    found = design.matrix({"age": age, "age at entry": at, "male": np.array([0.0, 1.0, 1.0])}, 3)
    np.testing.assert_allclose(found, np.stack([np.log(age), age**2, at, age / 10, [0, 1, 1]], axis=1))


def test_without_intercept_the_first_category_has_all_levels():
    design = Design("y ~ 0 + rx", (RX,))
    assert not design.intercept
    np.testing.assert_array_equal(design.matrix({"rx": np.array([0, 1, 2])}, 3), np.eye(3))


def test_an_intercept_alone():
    design = Design("y ~ 1", ())
    assert design.intercept
    assert design.matrix({}, 5).shape == (5, 0)


def test_many_levels_all_have_a_column():
    ward = Category(name="ward", levels=tuple(f"w{i}" for i in range(300)), reference="w0")
    assert len(Design("y ~ ward", (ward,)).names) == 299


def test_what_a_formula_asks_for():
    formula = parse_formula("y ~ a * b + log(c) + {d / e} + I(f**2)")
    assert formula.outcome == "y"
    assert formula.predictors == ("a", "b", "c", "d", "e", "f")
    assert formula.computed == ("c", "d", "e", "f")
    assert formula.transformed == ("c", "e")


@pytest.mark.parametrize("function", ["scale", "center", "standardize", "poly", "bs", "cr", "lag", "hashed"])
def test_what_looks_at_all_rows_is_refused_by_name(function):
    with pytest.raises(StudyError, match=rf"{function}\(\).*rows of each site"):
        parse_formula(f"y ~ {function}(a)")


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("y ~ .", "name those that are meant"),
        ("y ~ a | b", "one set of predictors"),
        ("y + z ~ a", "one column on its left"),
        ("log(y) ~ a", "one column on its left"),
        ("~ a", "outcome ~ predictors"),
        ("a", "outcome ~ predictors"),
        ("y ~ `a", "cannot be read"),
        ("y ~ C(rx)", "category with its levels"),
        ("y ~ offset(a)", "offsets are not there yet"),
        ("y ~ y + a", "on its right too"),
        ("y ~ np.log(a)", "may use I, exp, log"),
        ("y ~ {__import__('os').getcwd()}", "is refused"),
        ("y ~ {a.__class__}", "more than columns"),
        ("y ~ {a if a else b}", "more than columns"),
        ("y ~ {a[0]}", "more than columns"),
        ("y ~ {'a'}", "more than columns"),
        ("y ~ {a @ b}", "more than columns"),
        ("y ~ {(lambda: 1)()}", "is refused"),
        ("y ~ log(a, b)", "one argument"),
        ("y ~ {9**9**9}", "powers in a formula"),
    ],
)
def test_what_is_refused(formula, said):
    with pytest.raises(StudyError, match=said):
        parse_formula(formula)


def test_a_category_is_no_number():
    with pytest.raises(StudyError, match="computes with 'rx'"):
        Design("y ~ I(rx * 2)", (RX,)).names
