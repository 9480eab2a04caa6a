"""The columns and groups of group terms: narrow matrices, in the units of the data, as built by hand."""

import numpy as np
import pytest

from cavity.errors import StudyError
from cavity.study.columns import Boolean, Category, Integer, Number, Text
from cavity.study.encoding import FormulaEncoding
from cavity.study.formula import parse_formula
from cavity.study.group_design import GroupDesign
from cavity.study.nesting import is_within, nesting_problem, several_groups_problem
from cavity.study.scaling import ScaledColumn, Scaling

AGE, WARD = Number(name="age"), Text(name="ward")
RX = Category(name="rx", levels=("none", "low", "high"), reference="none")
VALUES = {"age": np.array([30.0, 40.0, 50.0]), "rx": np.array([0, 2, 1]), "ward": np.array(["b", "a", "b"], object)}


def test_columns_and_names_of_each_term():
    design = GroupDesign("y ~ (age | ward) + (0 + rx || ward)", (AGE, RX, WARD))
    assert design.names == ("1|ward", "age|ward", "rx[none]|ward", "rx[low]|ward", "rx[high]|ward")
    assert design.slopes == design.names[1:]
    assert [effects.is_numeric for effects in design.effects] == [(True,), (False, False, False)]
    expected = [[1, 30, 1, 0, 0], [1, 40, 0, 0, 1], [1, 50, 0, 1, 0]]
    np.testing.assert_array_equal(design.matrix(VALUES, 3), expected)


def test_with_an_intercept_a_category_leaves_out_its_reference():
    assert GroupDesign("y ~ (rx | ward)", (RX, WARD)).names == ("1|ward", "rx[T.low]|ward", "rx[T.high]|ward")


@pytest.mark.parametrize(
    ("column", "values", "labels"),
    [
        (WARD, np.array(["b", "a"], object), ["b", "a"]),
        (Integer(name="ward"), np.array([12.0, 3.0]), ["12", "3"]),
        (Category(name="ward", levels=("n", "s"), reference="s"), np.array([0, 1]), ["s", "n"]),
        (Boolean(name="ward"), np.array([1.0, 0.0]), ["1", "0"]),
    ],
)
def test_labels_are_texts(column, values, labels):
    assert GroupDesign("y ~ (1 | ward)", (column,)).labels({"ward": values}) == {"ward": labels}


def test_the_client_has_no_labels():
    assert GroupDesign("y ~ (1 | client)", ()).labels({}) == {}


@pytest.mark.parametrize(
    ("formula", "columns", "message"),
    [
        ("y ~ (1 | ward) + (age | ward)", (AGE, WARD), "character 18 .*two effects are called '1.ward'"),
        ("y ~ (1 | ward)", (), "character 10 .*'ward' is not declared"),
        ("y ~ (age | ward)", (WARD,), "character 6 .*'age' is not declared"),
        ("y ~ (1 | age)", (AGE,), "character 10 .*cannot name groups; declare it as text or integer"),
        ("y ~ (ward | rx)", (WARD, RX), "character 6 .*is text"),
        ("y ~ (I(rx * 2) | ward)", (RX, WARD), "character 8 .*category and not a number"),
        (
            "y ~ (big | ward)",
            (Category(name="big", levels=tuple(map(str, range(30))), reference="0"), WARD),
            "character 5 .*more than 20 effects",
        ),
    ],
)
def test_refusals_show_the_position(formula, columns, message):
    with pytest.raises(StudyError, match=message):
        _ = GroupDesign(formula, columns).names


def test_slopes_are_divided_by_their_scale_and_not_centred():
    y = Number(name="y")
    scaling = Scaling(
        (ScaledColumn("age", 40.0, 8.0),),
        ScaledColumn("y", 5.0, 2.0),
        (ScaledColumn("age", 0.0, 1.0), ScaledColumn("age|ward", 40.0, 8.0)),
    )
    encoding = FormulaEncoding("y ~ age + (age | ward)", (y, AGE, WARD), scaling)
    assert encoding.matrix_names == ("age", "age|ward")
    assert encoding.effect_units == (1.0, 8.0)
    rows = encoding.grouped_rows({"y": [5.0, 7.0, 9.0], "age": VALUES["age"], "ward": [1, 2, 1], "other": [0, 0, 0]})
    np.testing.assert_allclose(rows.x[:, 0], (VALUES["age"] - 40) / 8)
    np.testing.assert_allclose(rows.z, np.stack([np.ones(3), VALUES["age"] / 8], axis=1))
    np.testing.assert_allclose(rows.y, [0.0, 1.0, 2.0])
    assert rows.labels == ("1", "2", "1")
    sums = encoding.matrix_sums(encoding.read({"y": [5.0], "age": [30.0], "ward": ["a"]}), "row")
    assert sums.columns == ("age", "age|ward")
    np.testing.assert_allclose(sums.sum, [-1.25, 30.0])


def test_crossed_and_nested_groups_are_told_apart():
    mothers, communities = ["a", "a", "b", "c"], ["x", "x", "x", "y"]
    assert is_within(mothers, communities)
    assert not is_within(communities, mothers)
    assert nesting_problem([communities, mothers], ("community", "mother")) is None
    assert nesting_problem([None, mothers], ("client", "mother")) is None
    assert nesting_problem([mothers], ("mother",)) is None
    assert "the larger group first" in nesting_problem([mothers, communities], ("mother", "community"))
    doctors = ["p", "q", "p", "p"]
    assert "'mother' and 'doctor': they are crossed" in nesting_problem([mothers, doctors], ("mother", "doctor"))


def test_effects_of_the_larger_group_come_first():
    design = GroupDesign("y ~ (1 | rx) + (1 | rx:ward) + (0 + age | rx)", (AGE, RX, WARD))
    assert design.groups == ("rx", "rx:ward")
    assert design.names == ("1|rx", "age|rx", "1|rx:ward")
    values = VALUES | {"ward": np.array(["a:b", "c\\", "a:b"], object)}
    labels = design.labels(values)
    assert labels == {"rx": ["none", "high", "low"], "rx:ward": ["none:a\\:b", "high:c\\\\", "low:a\\:b"]}


def test_formulas_with_groups_that_cannot_be_fitted():
    assert several_groups_problem(parse_formula("y ~ (1 | community) + (1 | mother)")) is None
    assert several_groups_problem(parse_formula("y ~ (1 | ward) + (0 + age | ward)")) is None
    position, message = several_groups_problem(parse_formula("y ~ (1 | a/b) + (1 | c)"))
    assert position == 16
    assert "at most two groups" in message
    assert several_groups_problem(parse_formula("y ~ (1 | ward) + (1 | client)"))[0] == 17
    assert several_groups_problem(parse_formula("y ~ (1 | client) + (1 | `client`)")) is not None
