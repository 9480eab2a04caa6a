"""Group terms of formulas: what they mean, how they are written, and what is refused."""

import pytest

from cavity.errors import StudyError
from cavity.study.formula import parse_formula


@pytest.mark.parametrize(
    ("term", "written", "intercept", "slopes", "correlated"),
    [
        ("(1 | ward)", "(1 | ward)", True, [], True),
        ("(1|ward)", "(1 | ward)", True, [], True),
        ("( ward_age | ward )", "(1 + ward_age | ward)", True, ["ward_age"], True),
        ("(1 + age | ward)", "(1 + age | ward)", True, ["age"], True),
        ("(0 + age | ward)", "(0 + age | ward)", False, ["age"], True),
        ("(age - 1 | ward)", "(0 + age | ward)", False, ["age"], True),
        ("(age || ward)", "(1 + age || ward)", True, ["age"], False),
        ("(a * b | `my ward`)", "(1 + a + b + a:b | `my ward`)", True, ["a", "b", "a:b"], True),
        ("(log(dose) + {age / 10} | w)", "(1 + log(dose) + {age / 10} | w)", True, ["log(dose)", "age / 10"], True),
        ("(2:`a b` | w)", "(1 + 2:`a b` | w)", True, ["a b"], True),
        ("((1 | ward))", "(1 | ward)", True, [], True),
        ("(1 | a:b)", "(1 | a:b)", True, [], True),
        ("(age || client:`my ward`)", "(1 + age || client:`my ward`)", True, ["age"], False),
    ],
)
def test_a_group_term_is_read_and_written(term, written, intercept, slopes, correlated):
    (found,) = parse_formula(f"y ~ x + {term}").groups
    assert str(found) == written
    assert (found.intercept, found.correlated) == (intercept, correlated)
    assert [":".join(factor.name for factor in each.factors) for each in found.terms] == slopes
    assert parse_formula(f"y ~ {found}").groups == (found,)


def test_the_fixed_part_is_that_of_the_formula_without_group_terms():
    formula, plain = parse_formula("y ~ (b | g) + a + (1 | h) + a:c"), parse_formula("y ~ a + a:c")
    assert formula.terms == plain.terms
    assert formula.intercept
    assert formula.predictors == ("a", "c")
    assert formula.group_predictors == ("b",)
    assert formula.group_columns == ("g", "h")
    assert formula.columns == ("y", "a", "c", "b", "g", "h")
    assert not plain.groups
    assert not parse_formula("y ~ 0 + (1 | g)").intercept
    assert parse_formula("y ~ (1 | g)").intercept


def test_groups_within_groups_are_two_terms():
    formula = parse_formula("y ~ (x | a/b)")
    assert [str(term) for term in formula.groups] == ["(1 + x | a)", "(1 + x | a:b)"]
    assert [term.group for term in formula.groups] == ["a", "a:b"]
    assert formula.group_columns == ("a", "b")
    assert formula.groups == parse_formula("y ~ (x | a) + (x | a:b)").groups
    larger, smaller = parse_formula("y ~ (1 | client/ward)").groups
    assert (larger.is_client, smaller.is_within_client) == (True, True)
    assert parse_formula("y ~ (1 | client/ward)").columns == ("y", "ward")


def test_the_client_is_no_column_unless_it_is_quoted():
    (term,) = parse_formula("y ~ (1 | client)").groups
    assert term.is_client
    assert parse_formula("y ~ (1 | client)").columns == ("y",)
    (column,) = parse_formula("y ~ (1 | `client`)").groups
    assert not column.is_client
    assert str(column) == "(1 | `client`)"
    assert parse_formula("y ~ (1 | `client`)").columns == ("y", "client")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ a:(1 | g)", "character 7 .*only be added"),
        ("y ~ (a + (1 | g))", "character 10 .*only be added"),
        ("y ~ (1 | g)**2", "character 5 .*only be added"),
        ("(1 | g) ~ a", "character 1 .*only be added"),
        ("y ~ a - (1 | g)", "character 9 .*cannot be removed"),
        ("y ~ (0 | g)", "character 5 .*no effects"),
        ("y ~ (1 | a + b)", "character 12 .*one term for each"),
        ("y ~ (1 | a/b/c)", "character 13 .*at most two groups"),
        ("y ~ (1 | a/log(b))", "character 12 .*are two columns"),
        ("y ~ (1 | a/)", "character 12 .*are two columns"),
        ("y ~ (1 | a:a)", "character 12 .*cannot be within"),
        ("y ~ (1 | a/client)", "character 12 .*cannot be within"),
        ("y ~ (a | a/b)", "character 6 .*effect and the group"),
        ("y ~ (1 | y/b)", "character 10 .*cannot be the group"),
        ("y ~ (1 | log(a))", "character 10 .*is one column"),
        ("y ~ (1 | a | b)", "character 10 .*is one column"),
        ("y ~ (1 | )", "character 10 .*the column of the groups"),
        ("y ~ (1 | 2)", "character 10 .*the column of the groups"),
        ("y ~ (1 | (1 | g))", "character 10 .*the column of the groups"),
        ("y ~ ( | g)", "character 7 .*unexpected"),
        ("y ~ (1 | g", "its end.*where `.` should be"),
        ("y ~ [1 | g]", "character 8 .*round brackets"),
        ("y ~ I(a | g)", "character 9 .*unexpected"),
        ("y ~ a | g", "character 7 .*one set of predictors"),
        ("y ~ (y | g)", "character 6 .*also on the right"),
        ("y ~ (1 | y)", "character 10 .*cannot be the group"),
        ("y ~ (g | g)", "character 6 .*effect and the group"),
        ("y ~ ({2} | g)", "character 6 .*no column"),
        ("y ~ (2 | g)", "character 6 .*can only scale a term"),
        ("y ~ (scale(a) | g)", r"character 6 .*scale\(\)"),
        ("y ~ " + " + ".join(f"(1 | g{i})" for i in range(21)), "more than 20 group terms"),
    ],
)
def test_invalid_group_terms_are_refused_with_their_position(formula, message):
    with pytest.raises(StudyError, match=message):
        parse_formula(formula)
