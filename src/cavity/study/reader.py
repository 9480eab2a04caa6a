"""From a `study.toml` to a `Study`, or to a list of everything that is wrong with the file."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection
from pathlib import Path

from cavity.errors import StudyError, printable
from cavity.study import registry
from cavity.study.client_effects import TERMS, with_client_effects
from cavity.study.columns import (
    MISSING_LEVEL,
    Boolean,
    Category,
    Column,
    FixedScaling,
    Missing,
    Numeric,
    ScalingRule,
    Text,
    type_hint,
)
from cavity.study.families import read_family
from cavity.study.formula import parse_formula
from cavity.study.part import Part
from cavity.study.priors import (
    CORRELATION_ETA,
    INTERCEPT_SCALE,
    NORMAL,
    PRIOR_FAMILIES,
    SD_SCALE,
    SLOPE_SCALE,
    GroupPriorChoice,
    PriorChoice,
    SlopePrior,
    default_scale,
    prior_problem,
)
from cavity.study.schema import MIN_ROWS, AlgorithmChoice, ModelChoice, RunChoice, Study
from cavity.study.sections import Page, Section
from cavity.study.validation import contradictions

NO_DEFAULT = (
    "missing: an outcome that is not scaled has no default prior; give it in the units of the outcome, or scale the "
    'outcome (`scaling = "federated"`, or agreed numbers)'
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # names of clients are also names of files
NAME_RULE = "must consist of letters, digits, '.', '_' and '-', and begin with a letter or digit"
SCALINGS = [rule.value for rule in ScalingRule]
GROUP_KEYS = ("sd_scale", "sd_df", "sd_scales", "correlation_eta")
RENAMED_IN_MODEL = {"kind": "family"}
RENAMED_IN_ALGORITHM = {"family": "covariance"}


def read_study(path: str | os.PathLike[str], *, allow_models: Collection[str] = ()) -> Study:
    """Read a study file.

    Args:
        path: of the file.
        allow_models: full names of the modules that `model.function` may be imported from at this site. Give only those
            that you trust: a study file comes from others, and importing a module runs it.

    Returns:
        The study.

    Raises:
        StudyError: with all problems, each with its key and line.
    """
    path = Path(path)
    if path.suffix.lower() == ".csv":
        raise StudyError(f"{path}: this is a data file; give a study file, such as `cavity study new` writes")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise StudyError(f"{path}: the file is not text in UTF-8; save it so") from None
    except FileNotFoundError:
        raise StudyError(f"{path}: file not found; check the path, or write one with `cavity study new`") from None
    except IsADirectoryError:
        raise StudyError(f"{path}: this is a folder; give the study file in it") from None
    return parse_study(text, allow_models=allow_models)


def parse_study(text: str, *, allow_models: Collection[str] = ()) -> Study:
    """Read the text of a study file; arguments and errors as in `read_study`."""
    match allow_models:
        case str():
            raise StudyError(f"allow_models is a list of names of modules; give [{allow_models!r}]")
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and deeply nested lists
        problem = printable(str(error))
        raise StudyError(
            f"the file cannot be read as TOML: {problem}; texts go between quotes, each table and key occurs once"
        ) from None
    page = Page(text)
    top = Section(page, (), values)
    model = _model(top.section("model", required=True))
    prior_section = top.section("prior")
    study = Study(
        name=top.required_text("name"),
        id=_id(top),
        clients=_clients(top),
        min_rows=top.whole("min_rows", MIN_ROWS, least=1),
        max_total_rows=top.whole("max_total_rows", None, least=1),
        model=model,
        scaling=_study_scaling(top, model),
        columns=_columns(top.section("columns", required=model.formula is not None)),
        prior=_prior(top, prior_section, model),
        algorithm=_algorithm(top.section("algorithm"), model),
        run=_run(top.section("run")),
        allow_models=tuple(allow_models),
    )
    top.close()
    page.finish()
    for path, message in contradictions(study):
        page.problem(path, message)
    page.finish()
    family = model.family
    if family is not None and family.scales_outcome and study.outcome_rule == ScalingRule.NONE:
        for_groups = ["sd_scale"] if study.prior is not None and study.prior.group is not None else []
        for key in ("scale", "intercept_scale", *for_groups, *family.extra_scales(outcome_is_scaled=False)):
            if not prior_section.has(key):
                page.problem(("prior", key), NO_DEFAULT)
    page.finish()
    return study


def _id(top: Section) -> str:
    name = top.required_text("id")
    if not NAME.fullmatch(name):
        top.problem("id", f"{name!r} {NAME_RULE}")
    return name


def _clients(top: Section) -> tuple[str, ...]:
    clients = top.texts("clients")
    if top.has("clients") and not clients:
        top.problem("clients", "name at least one client")
    for name in clients:
        if not NAME.fullmatch(name):
            top.problem("clients", f"{name!r} {NAME_RULE}, because it is also the name of a file")
    return clients


def _model(section: Section) -> ModelChoice:
    function = section.text("function", None)
    if function is not None:
        if not re.fullmatch(r"[\w.]+:\w+", function):
            section.problem("function", f"{function!r} must be `module:function`")
        arguments, formula = section.plain("arguments"), section.text("formula", None)
        choice = ModelChoice(None, _one_line(formula), function, tuple(sorted(arguments.items())))
    else:
        family, formula = read_family(section), _one_line(section.required_text("formula")) or ""
        formula = with_client_effects(formula, section.word("client_effects", TERMS, "none"))
        choice = ModelChoice(family, formula, weights=section.text("weights", None))
    section.close(RENAMED_IN_MODEL)
    return choice


def _one_line(formula: str | None) -> str | None:
    return None if formula is None else " ".join(formula.split())


def _columns(section: Section) -> tuple[Column, ...]:
    columns = [_column(name, table) for name, table in section.each()]
    return tuple(column for column in columns if column is not None)


def _column(name: str, section: Section) -> Column | None:
    cls = registry.COLUMNS.get(section.required_word("type", registry.COLUMNS, hint=type_hint) or "")
    choices = [choice.value for choice in Missing if choice != Missing.LEVEL or cls is Category]
    unit = section.text("unit", "")
    missing = Missing(section.word("missing", choices, Missing.REFUSE.value))
    codes = section.texts("missing_codes", required=False)
    if cls is None:
        return None  # the other keys depend on the type
    if cls is Category:
        levels, reference = _levels(section)
        if missing == Missing.LEVEL and MISSING_LEVEL in levels:
            section.problem("levels", f"{MISSING_LEVEL!r} is the name of the level for missing values; rename it")
        column: Column = Category(
            name=name, unit=unit, missing=missing, missing_codes=codes, levels=levels, reference=reference
        )
    elif issubclass(cls, Numeric):
        limits, scaling = section.interval("range"), _scaling(section)
        column = cls(name=name, unit=unit, missing=missing, missing_codes=codes, range=limits, scaling=scaling)
    else:
        plain = Boolean if cls is Boolean else Text
        column = plain(name=name, unit=unit, missing=missing, missing_codes=codes)
    section.close()
    return column


def _levels(section: Section) -> tuple[tuple[str, ...], str]:
    levels = section.texts("levels")
    if section.has("levels") and len(levels) < 2:
        section.problem("levels", "list at least two levels, all that any client may have")
    reference = section.text("reference", levels[0] if levels else "")
    if levels and reference not in levels:
        section.problem("reference", f"{reference!r} is not one of the levels: {', '.join(levels)}")
    return levels, reference


def _scaling(section: Section) -> FixedScaling | ScalingRule | None:
    if not section.is_table("scaling"):
        rule = section.word("scaling", SCALINGS, None)
        return None if rule is None else ScalingRule(rule)
    fixed = section.section("scaling")
    scaling = FixedScaling(fixed.required_number("centre"), fixed.required_positive("scale"))
    fixed.close()
    return scaling


def _study_scaling(top: Section, model: ModelChoice) -> ScalingRule:
    default = ScalingRule.FEDERATED if model.function is None else ScalingRule.NONE
    return ScalingRule(top.word("scaling", SCALINGS, default.value))


def _prior(top: Section, section: Section, model: ModelChoice) -> PriorChoice | None:
    if model.function is not None:
        for key in ("prior", "priors"):
            top.refuse(key, "a model of your own has its own prior; remove this table")
        return None
    family = model.family
    kind, df = _prior_family(section)
    default = default_scale(kind, SLOPE_SCALE if family is None else family.slope_scale)
    scale = section.positive("scale", default)
    intercept = section.positive("intercept_scale", INTERCEPT_SCALE if family is None else family.intercept_scale)
    extra = {} if family is None else family.extra_scales(outcome_is_scaled=True)
    chosen = tuple((key, section.positive(key, default)) for key, default in extra.items())
    single = section.section("scales")
    scales = tuple((name, single.required_positive(name)) for name in sorted(single.names()))
    group = _group_prior(section, model)
    if family is not None:  # otherwise the keys are not known
        section.close()
    priors = tuple((name, _slope_prior(own)) for name, own in sorted(top.section("priors").each()))
    for name in sorted(dict(priors).keys() & dict(scales).keys()):
        section.problem("scales", f"'{name}' has a prior of its own in [priors.{name}]; give its scale there")
    return PriorChoice(scale, intercept, chosen, scales, group, kind, df, priors)


def _prior_family(section: Section) -> tuple[str, float | None]:
    """The keys `family` and `df` of a prior."""
    kind, df = section.word("family", PRIOR_FAMILIES, NORMAL), section.positive("df", None)
    if problem := prior_problem(kind, df):
        section.problem("df", problem)
    return kind, df


def _slope_prior(section: Section) -> SlopePrior:
    """The prior of one slope."""
    kind, df = _prior_family(section)
    found = SlopePrior(kind, section.positive("scale", None), df)
    section.close()
    return found


def _group_prior(section: Section, model: ModelChoice) -> GroupPriorChoice | None:
    """The keys for the effects that vary between groups."""
    try:
        has_groups = model.formula is not None and bool(parse_formula(model.formula).groups)
    except StudyError:  # said when the formula is checked
        section.ignore(*GROUP_KEYS)
        return None
    if not has_groups:
        for key in GROUP_KEYS:
            section.refuse(key, "it is for formulas with group terms such as `(1 | ward)`")
        return None
    sd_scale, sd_df = section.positive("sd_scale", SD_SCALE), section.positive("sd_df", None)
    eta, single = section.positive("correlation_eta", CORRELATION_ETA), section.section("sd_scales")
    sd_scales = tuple((name, single.required_positive(name)) for name in sorted(single.names()))
    return GroupPriorChoice(sd_scale, sd_df, eta, sd_scales)


def _algorithm(section: Section, model: ModelChoice) -> AlgorithmChoice:
    method = section.word("method", registry.METHODS, "pvi")
    has_factors, is_fedgvi = method in ("pvi", "fedgvi"), method == "fedgvi"
    takes_steps, averages = method in ("sfvi", "sfvi-avg"), method == "sfvi-avg"
    kl, divergences = Part("kl"), registry.DIVERGENCES
    choice = AlgorithmChoice(
        method,
        covariance=section.word("covariance", registry.COVARIANCES, "full") if model.function is None else None,
        damping=section.part("damping", registry.DAMPINGS, Part("adaptive")) if has_factors else None,
        loss=section.part("loss", registry.LOSSES) if is_fedgvi else None,
        divergence=section.part("divergence", divergences, kl) if is_fedgvi else None,
        server_divergence=section.part("server_divergence", divergences, kl) if is_fedgvi else None,
        step_size=section.positive("step_size", 0.02) if takes_steps else None,
        local_steps=section.whole("local_steps", 1000, least=1) if averages else None,
        total=section.required_whole("total", least=1) if averages else None,
        factors=section.word("factors", ("server", "clients"), "server") if has_factors else None,
    )
    section.close(RENAMED_IN_ALGORITHM)
    return choice


def _run(section: Section) -> RunChoice:
    synchronous = Part("synchronous")
    choice = RunChoice(
        section.part("schedule", registry.SCHEDULES, synchronous) or synchronous,
        section.whole("rounds", None, least=1),
        section.positive("tolerance", 1e-6),
        section.whole("seed", 0),
    )
    section.close()
    return choice
