"""What in a study does not fit together, though each key by itself is right."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from cavity.errors import StudyError
from cavity.study.columns import (
    DATE_REMEDY,
    Boolean,
    Category,
    Column,
    FixedScaling,
    Integer,
    Missing,
    Number,
    ScalingRule,
    Text,
)
from cavity.study.formula import parse_formula
from cavity.study.schema import Study

Path = tuple[str, ...]


def misfits(study: Study) -> Iterator[tuple[Path, str]]:
    """The key that would have to change, and why."""
    columns = {column.name: column for column in study.columns}
    if study.model.formula is None:
        for name, column in columns.items():
            if isinstance(column, (Number, Integer)) and column.scaling is not None:
                yield ("columns", name, "scaling"), "without a formula columns are not scaled; the model has to do it"
        return
    try:
        formula = parse_formula(study.model.formula)
    except StudyError as error:
        yield ("model", "formula"), str(error)
        return
    lacking = [name for name in (formula.outcome, *formula.predictors) if name not in columns]
    for name in lacking:
        near = difflib.get_close_matches(name, list(columns), 1)
        hint = f" (is {near[0]!r} meant?)" if near else ""
        yield ("model", "formula"), f"it uses the column '{name}'{hint}; describe it in a table [columns.{name}]"
    if lacking:
        return
    if study.model.kind is not None and (problem := outcome_misfit(study.model.kind, columns[formula.outcome])):
        yield ("columns", formula.outcome, "type"), problem
    if columns[formula.outcome].missing == Missing.LEVEL:
        yield ("columns", formula.outcome, "missing"), "a missing outcome is no outcome; refuse or drop its row"
    yield from _outcome_scaling_misfits(study, columns[formula.outcome])
    for name in formula.predictors:
        if isinstance(columns[name], Text):
            message = f"text cannot be in a formula; declare it as a category, or if it is a date, {DATE_REMEDY}"
            yield ("columns", name, "type"), message
        if name in formula.computed and isinstance(columns[name], Category):
            yield ("model", "formula"), f"it computes with '{name}', which is a category and not a number"
        rule = getattr(columns[name], "scaling", None)
        if name in formula.transformed and rule not in (None, ScalingRule.NONE):
            message = f"the formula takes a function of '{name}', so it cannot be scaled: set its scaling to \"none\""
            yield ("columns", name, "scaling"), message
    yield from _prior_misfits(study)


def outcome_misfit(kind: str, outcome: Column) -> str | None:
    """Why a column cannot be the outcome of a regression, or None."""
    if kind == "logistic":
        two = isinstance(outcome, Category) and len(outcome.ordered) == 2
        zero_one = isinstance(outcome, Integer) and outcome.range == (0.0, 1.0)
        if not (two or zero_one or isinstance(outcome, Boolean)):
            return "the outcome of logistic regression is boolean, a category of two levels, or 0 and 1"
    if kind == "softmax" and not isinstance(outcome, Category):
        return "the outcome of softmax regression is a category"
    if kind == "linear" and not isinstance(outcome, (Number, Integer)):
        return "the outcome of linear regression is a number"
    if kind == "poisson" and not (isinstance(outcome, Integer) and (outcome.range or (-1.0,))[0] >= 0):
        return "the outcome of Poisson regression is an integer with a range from 0, such as [0, inf]"
    return None


def _outcome_scaling_misfits(study: Study, outcome: Column) -> Iterator[tuple[Path, str]]:
    """The outcome of linear regression is scaled, and no other."""
    rule = getattr(outcome, "scaling", None)
    if study.model.kind != "linear" and rule not in (None, ScalingRule.NONE):
        yield ("columns", outcome.name, "scaling"), "only the outcome of linear regression is scaled"


def _prior_misfits(study: Study) -> Iterator[tuple[Path, str]]:
    """Scales of single coefficients are of some that there are; a centred outcome needs an intercept."""
    from cavity.study.design import Design

    assert study.model.formula is not None
    design = Design(study.model.formula, study.used_columns[1:])
    try:
        names = design.names
    except StudyError as error:
        yield ("model", "formula"), str(error)
        return
    rule = study.outcome_rule
    if isinstance(rule, FixedScaling) and rule.centre != 0.0 and not design.intercept:
        message = "without an intercept the outcome cannot be centred: give centre = 0"
        yield ("columns", study.used_columns[0].name, "scaling"), message
    for name, _ in () if study.prior is None else study.prior.scales:
        if name not in names:
            yield ("prior", "scales", name), f"there is no such coefficient; there are {', '.join(names)}"
