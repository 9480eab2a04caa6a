"""Formulas: the matrix equals the one built by hand, is the same at every site, and uses only columns."""

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
    assert RX.level_names == ("none", "low", "high")
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


def test_parts_of_a_formula():
    formula = parse_formula("y ~ a * b + log(c) + {d / e} + I(f**2)")
    assert formula.outcomes == ("y",)
    assert formula.predictors == ("a", "b", "c", "d", "e", "f")
    assert formula.computed == ("c", "d", "e", "f")
    assert formula.transformed == ("c", "e")


@pytest.mark.parametrize("function", ["scale", "center", "standardize", "poly", "bs", "cr", "lag", "hashed"])
def test_functions_of_all_rows_are_refused_by_name(function):
    with pytest.raises(StudyError, match=rf"{function}\(\).*rows of each site"):
        parse_formula(f"y ~ {function}(a)")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ .", "character 5 .*name the columns"),
        ("y ~ a | b", "character 7 .*one set of predictors"),
        ("y + z ~ a", "character 1 .*one column on the left"),
        ("log(y) ~ a", "character 1 .*one column on the left"),
        ("2:y ~ a", "character 1 .*one column on the left"),
        ("~ a", "character 1 .*outcome ~ predictors"),
        ("a", "character 1 .*outcome ~ predictors"),
        ("y ~ a ~ b", "character 7 .*unexpected '~'"),
        ("y ~ a b", "character 7 .*unexpected 'b', where an operator"),
        ("y ~ a +", "character 8 .its end.: it ends"),
        ("y ~ (a + b", "character 11 .its end.: it ends, where an operator or `.`"),
        ("y ~ a)", "character 6 .*unexpected '.'"),
        ("y ~ a:", "it ends"),
        ("y ~ a * -b", "character 9 .*unexpected '-'"),
        ("y ~ a[0]", "character 6 .*unexpected"),
        ("y ~ `a", "character 5 .*no end"),
        ("y ~ ``", "character 5 .*no end, or is empty"),
        ("y ~ a %on% b", "character 7 .*%in%"),
        ("y ~ a # b", "character 7 .*may not have comments"),
        ("y ~ a $ b", r"character 7 .*unexpected '\$'"),
        ("y ~ 2", "character 5 .*can only scale a term"),
        ("y ~ 2 + a", "character 5 .*can only scale a term"),
        ("y ~ a + 2:a", "character 9 .*another scale"),
        ("y ~ a:0", "positive finite"),
        ("y ~ a**b", "character 8 .*whole number"),
        ("y ~ a**2**2", "character 9 .*power of a power"),
        ("y ~ {2}", "character 5 .*no column"),
        ("y ~ C(rx)", "character 5 .*category with its levels"),
        ("y ~ y + a", "character 5 .*also on the right"),
        ("y ~ np.log(a)", r"character 5 .*write `log\(a\)`"),
        ("y ~ {__import__('os').getcwd()}", "character 17 .*may not have texts"),
        ("y ~ {a.__class__}", "character 6 .*between backticks"),
        ("y ~ {a if a else b}", "character 8 .*unexpected 'if'"),
        ("y ~ {a[0]}", "character 7 .*unexpected"),
        ("y ~ {'a'}", "character 6 .*may not have texts"),
        ("y ~ {a @ b}", "character 8 .*unexpected '@'"),
        ("y ~ {(lambda: 1)()}", "unexpected ':'"),
        ("y ~ log(a, b)", "character 5 .*one argument"),
        ("y ~ log(x=a)", "character 5 .*one argument"),
        ("y ~ log([1, 2])", "character 9 .*list"),
        ("y ~ I(a^2)", r"character 8 .*write `\*\*`"),
        ("y ~ I(a**1.5)", "character 10 .*powers in an expression are 2 to 10"),
        ("y ~ {9**9**9}", "powers in an expression"),
        ("y ~ a:offset(b)", "character 7 .*an offset can only be added"),
        ("y ~ bs(age, knots=[40, 60])", "character 5 .*without `range` is refused"),
        ("y ~ a:stratified(b)", "character 7 .*it can only be added to the formula"),
        ("y ~ Surv(time, status)", "character 5 .*it is the outcome of a survival model, on the left"),
        ("y ~ a\x00", "character 6 .*unexpected"),
    ],
)
def test_invalid_formulas_are_refused(formula, message):
    with pytest.raises(StudyError, match=message):
        parse_formula(formula)


def test_a_category_is_not_a_number():
    with pytest.raises(StudyError, match="character 7 .*computes with 'rx'"):
        Design("y ~ I(rx * 2)", (RX,)).names


def test_a_column_in_backticks_is_not_taken_for_an_interaction():
    names = (Number(name="a"), Number(name="b"), Number(name="a:b"))
    values = {"a": np.array([2.0]), "b": np.array([3.0]), "a:b": np.array([7.0])}
    np.testing.assert_array_equal(Design("y ~ `a:b`", names[2:]).matrix(values, 1), [[7.0]])
    with pytest.raises(StudyError, match="character 5 .*two coefficients are called 'a:b'"):
        Design("y ~ a:b + `a:b`", names).names


def test_a_column_may_have_the_name_of_a_function_or_of_an_expression():
    columns = (Number(name="log"), Number(name="I(x)"), Number(name="x"))
    values = {"log": np.array([2.0]), "I(x)": np.array([5.0]), "x": np.array([7.0])}
    design = Design("y ~ log + log(log) + {`I(x)` * 2}", columns[:2])
    assert design.names == ("log", "log(log)", "`I(x)` * 2")
    np.testing.assert_allclose(design.matrix(values, 1), [[2.0, np.log(2.0), 10.0]])
    with pytest.raises(StudyError, match="two coefficients"):
        Design("y ~ I(x) + `I(x)`", columns[1:]).names


def test_the_same_expression_is_one_term_however_it_is_written():
    design = Design("y ~ I(age**2) + I( `age` ** 2 ) + I((age)**2) + age + {age} + {`age`} + `age`", (AGE,))
    assert design.names == ("I(age ** 2)", "age")


def test_a_scaled_term_has_the_name_of_the_term():
    design = Design("y ~ 2:age + 0.5:age:male", (AGE, MALE))
    assert design.names == ("age", "age:male")
    found = design.matrix({"age": np.array([30.0]), "male": np.array([1.0])}, 1)
    np.testing.assert_array_equal(found, [[60.0, 15.0]])


def test_arithmetic_does_not_stop_at_the_edge_of_floating_point():
    text = "y ~ {1e300 * 1e300 * age} + {age / 0} + {((((9**10)**10)**10)**10) * age} + log(age - age) + {1/3 * age}"
    found = Design(text, (AGE,)).matrix({"age": np.array([3.0])}, 1)
    np.testing.assert_array_equal(found, [[np.inf, np.inf, np.inf, -np.inf, 1.0]])


def test_a_table_without_rows_gives_an_empty_matrix():
    assert Design("y ~ rx * age", (RX, AGE)).matrix({"rx": np.zeros(0, int), "age": np.zeros(0)}, 0).shape == (0, 5)
