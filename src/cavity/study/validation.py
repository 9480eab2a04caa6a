"""Contradictions between the keys of a study, each of which is valid by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cavity.errors import StudyError
from cavity.study.columns import Column, Missing, ScalingRule
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Family
from cavity.study.formula import Formula, parse_formula
from cavity.study.nesting import several_groups_problem
from cavity.study.schema import Study
from cavity.study.spelling import did_you_mean

Path = tuple[str, ...]
FULL_ONLY = 'a formula with group terms has a posterior of full covariance; use "full"'


def contradictions(study: Study) -> Iterator[tuple[Path, str]]:
    """The key that has to change, and the reason."""
    columns = {column.name: column for column in study.columns}
    if study.model.formula is None:
        for name, column in columns.items():
            if column.scaling_rule is not None:
                yield ("columns", name, "scaling"), "without a formula columns are not scaled; the model has to do it"
        return
    try:
        formula = parse_formula(study.model.formula)
    except StudyError as error:
        yield ("model", "formula"), str(error)
        return
    undeclared = [name for name in formula.columns if name not in columns]
    for name in undeclared:
        hint = did_you_mean(name, columns)
        yield ("model", "formula"), f"undeclared column '{name}'{hint}; declare it in a table [columns.{name}]"
    if undeclared:
        return
    yield from _weights(study, formula)
    for name in formula.offset_columns:
        if not columns[name].is_numeric:
            yield ("columns", name, "type"), f"an offset is computed from '{name}', so it must be a number"
    outcome = tuple(columns[name] for name in formula.outcomes)
    if (family := study.model.family) is not None:
        yield from _outcome(family, formula, outcome)
    for column in outcome:
        if column.missing == Missing.LEVEL:
            yield ("columns", column.name, "missing"), "a missing outcome cannot be used; refuse or drop its row"
    for name in formula.predictors:
        if (problem := columns[name].formula_problem) is not None:
            yield ("columns", name, "type"), f"'{name}' {problem}"
        if name in formula.computed and columns[name].level_names:
            yield ("model", "formula"), f"it computes with '{name}', which is a category and not a number"
        if name in formula.transformed and columns[name].scaling_rule not in (None, ScalingRule.NONE):
            message = f"the formula takes a function of '{name}', so it cannot be scaled: set its scaling to \"none\""
            yield ("columns", name, "scaling"), message
    yield from _groups(study, formula)
    yield from _prior(study)


def _weights(study: Study, formula: Formula) -> Iterator[tuple[Path, str]]:
    """The column of weights must be a number, and nothing else in the model."""
    name = study.model.weights
    if name is None:
        return
    column = next((column for column in study.columns if column.name == name), None)
    if column is None:
        yield ("model", "weights"), f"undeclared column '{name}'; declare it in a table [columns.{name}]"
    elif not column.is_numeric:
        yield ("columns", name, "type"), f"'{name}' holds the weights of rows, so it must be a number"
    elif name in formula.columns:
        yield ("model", "weights"), f"the column '{name}' of weights is also in the formula; remove it there"
    elif column.scaling_rule not in (None, ScalingRule.NONE):
        yield ("columns", name, "scaling"), "weights are not scaled"


def _groups(study: Study, formula: Formula) -> Iterator[tuple[Path, str]]:
    """Effects that vary between groups, and the columns that name these."""
    if not formula.groups:
        return
    columns = {column.name: column for column in study.columns}
    for name in formula.group_columns:
        if (problem := columns[name].group_problem) is not None:
            yield ("columns", name, "type"), f"'{name}' {problem}"
            return
        if columns[name].missing == Missing.LEVEL:
            yield ("columns", name, "missing"), "a row without a group cannot be used; refuse or drop it"
    if (problem := several_groups_problem(formula)) is not None:
        yield ("model", "formula"), str(formula.refusal_at(*problem))
        return
    family = study.model.family
    if family is None:
        yield ("model", "formula"), "a model of your own takes no group terms; it has to make them itself"
    elif study.algorithm.covariance == "diagonal":
        yield ("algorithm", "covariance"), FULL_ONLY
    elif study.algorithm.method == "fedgvi":
        yield ("algorithm", "method"), "fedgvi cannot fit effects of groups; use pvi"
    try:
        names = study.group_design.names
        if family is not None and study.prior is not None and study.prior.group is not None:
            plain = replace(study.prior, scales=(), group=replace(study.prior.group, sd_scales=()))
            family.grouped_model(FormulaEncoding(formula.text, study.formula_columns), plain)
    except StudyError as error:
        yield ("model", "formula"), str(error)
        return
    group = None if study.prior is None else study.prior.group
    for name, _ in () if group is None else group.sd_scales:
        if name not in names:
            yield (
                ("prior", "sd_scales", name),
                f"unknown effect {name!r}{did_you_mean(name, names)}; choose one of: {', '.join(names)}",
            )


def left_side_problem(family: Family, formula: Formula) -> str | None:
    """Why the left side of a formula is not one for a family, or None."""
    if family.outcome_function == formula.outcome_function:
        return None
    if family.outcome_function is None:
        return f"the family {family.name!r} takes one column on the left, not {formula.outcome_function}(...)"
    needed = f"the family {family.name!r} needs {family.outcome_function}(...) on the left of the formula"
    return needed + family.left_hint


def _outcome(family: Family, formula: Formula, outcome: tuple[Column, ...]) -> Iterator[tuple[Path, str]]:
    if problem := left_side_problem(family, formula):
        yield ("model", "formula"), problem
        return
    if problem := family.formula_problem(formula):
        yield ("model", "formula"), problem
    if problem := family.outcome_problem(outcome):
        yield ("columns", outcome[0].name, "type"), problem
    if problem := family.formula_problem(formula):
        yield ("model", "formula"), problem
    for column in outcome:
        if not family.scales_outcome and column.scaling_rule not in (None, ScalingRule.NONE):
            yield ("columns", column.name, "scaling"), f"the family {family.name!r} does not scale its outcome"


def _prior(study: Study) -> Iterator[tuple[Path, str]]:
    """Scales must be of coefficients that exist; a centred outcome needs an intercept."""
    try:
        names = study.design.names
    except StudyError as error:
        yield ("model", "formula"), str(error)
        return
    fixed = study.outcome_rule.fixed
    if fixed is not None and fixed.centre != 0.0 and not study.design.intercept:
        message = "without an intercept the outcome cannot be centred: give centre = 0"
        yield ("columns", study.used_columns[0].name, "scaling"), message
    if study.prior is None:
        return
    single = [("prior", "scales", name) for name, _ in study.prior.scales]
    for path in (*single, *(("priors", name) for name, _ in study.prior.priors)):
        if path[-1] not in names:
            hint = did_you_mean(path[-1], names)
            yield path, f"unknown coefficient {path[-1]!r}{hint}; choose one of: {', '.join(names)}"
    if not study.prior.is_normal and study.algorithm.method == "fedgvi":
        yield ("prior", "family"), "fedgvi takes normal priors; use pvi"
