"""From a `study.toml` to a `Study`, or to all that is wrong with the file."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from cavity.errors import StudyError, printable
from cavity.study import registry
from cavity.study.columns import MISSING_LEVEL, Category, Column, FixedScaling, Missing, ScalingRule
from cavity.study.priors import LOG_NOISE_SCALE, SLOPE_SCALE, intercept_scale
from cavity.study.schema import MIN_ROWS, AlgorithmChoice, ModelChoice, Part, PriorChoice, RunChoice, Study
from cavity.study.sections import NEEDED, Page, Section
from cavity.study.validation import misfits

NO_DEFAULT = (
    "it is missing: an outcome that is not scaled has no default prior; give it in the units of the outcome, or scale "
    'the outcome (`scaling = "federated"`, or agreed numbers)'
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # names of clients are names of files too


def read_study(path: str | os.PathLike[str], *, allow_models: Collection[str] = ()) -> Study:
    """The study of a file. Raises StudyError with all problems, each with its key and line.

    Args:
        path: of the file.
        allow_models: modules, by their full names, that `model.function` may be imported from here. Give those that you
            trust: a study file comes from others, and a module that is imported runs.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise StudyError(f"{path}: it is not text in UTF-8") from None
    return parse_study(text, allow_models=allow_models)


def parse_study(text: str, *, allow_models: Collection[str] = ()) -> Study:
    """The study of a file's text; arguments as in `read_study`."""
    if isinstance(allow_models, str):
        raise StudyError(f"allow_models is a list of names of modules; give [{allow_models!r}]")
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, and lists within lists
        raise StudyError(f"it is not TOML that can be read: {printable(error)}") from None
    page = Page(text)
    top = Section(page, (), values)
    parts: dict[str, Any] = {
        "name": top.text("name"),
        "id": _name(top, "id"),
        "clients": _clients(top),
        "min_rows": top.whole("min_rows", MIN_ROWS, least=1),
        "max_total_rows": top.whole("max_total_rows", None, least=1),
        "model": (model := _model(top.section("model", needed=True))),
        "scaling": _study_scaling(top, model),
        "columns": _columns(top.section("columns", needed=model.formula is not None)),
        "prior": _prior(top, model),
        "algorithm": _algorithm(top.section("algorithm"), model),
        "run": _run(top.section("run")),
        "allow_models": tuple(allow_models),
    }
    top.close()
    page.finish()
    study = Study(**parts)
    for path, message in misfits(study):
        page.problem(path, message)
    page.finish()
    if model.kind == "linear" and study.outcome_rule == ScalingRule.NONE:
        noise = () if model.noise_sd is not None else ("log_noise_scale",)
        for key in ("scale", "intercept_scale", *noise):
            if key not in values.get("prior", {}):
                page.problem(("prior", key), NO_DEFAULT)
    page.finish()
    return study


def _name(section: Section, key: str) -> str | None:
    name = section.text(key)
    if name is not None and not NAME.fullmatch(name):
        section.problem(key, f"{name!r} must be letters, digits, '.', '_' and '-', and begin with a letter or digit")
    return name


def _clients(top: Section) -> tuple[str, ...]:
    clients = top.texts("clients")
    if top.has("clients") and not clients:
        top.problem("clients", "name at least one client")
    for name in clients:
        if not NAME.fullmatch(name):
            top.problem("clients", f"{name!r} must be letters, digits, '.', '_' and '-': it is the name of a file too")
    return clients


def _model(section: Section) -> ModelChoice:
    function = section.text("function", None)
    if function is not None and not re.fullmatch(r"[\w.]+:\w+", function):
        section.problem("function", f"{function!r} must be `module:function`")
    if function is None:
        kind, arguments = section.word("kind", registry.REGRESSIONS), {}
        noise_sd = section.positive("noise_sd", None)
        if noise_sd is not None and kind != "linear":
            section.problem("noise_sd", "it is for linear regression only")
    else:
        kind, noise_sd, arguments = None, None, section.plain("arguments")
    formula = section.text("formula", NEEDED if function is None else None)
    section.close()
    formula = None if formula is None else " ".join(formula.split())
    return ModelChoice(kind, formula, noise_sd, function, tuple(sorted(arguments.items())))


def _columns(section: Section) -> tuple[Column, ...]:
    columns = [_column(name, table) for name, table in section.each()]
    return tuple(column for column in columns if column is not None)


def _column(name: str, section: Section) -> Column | None:
    cls = registry.COLUMNS.get(section.word("type", registry.COLUMNS) or "")
    choices = [choice.value for choice in Missing if choice != Missing.LEVEL or cls is Category]
    options: dict[str, Any] = {
        "name": name,
        "unit": section.text("unit", ""),
        "missing": Missing(section.word("missing", choices, Missing.REFUSE.value)),
        "missing_codes": section.texts("missing_codes", ()),
    }
    if cls is Category:
        options |= _levels(section)
        if options["missing"] == Missing.LEVEL and MISSING_LEVEL in options["levels"]:
            section.problem("levels", f"{MISSING_LEVEL!r} is the name of the level for missing values; rename it")
    elif cls in (registry.COLUMNS["number"], registry.COLUMNS["integer"]):
        options |= {"range": section.interval("range"), "scaling": _scaling(section)}
    if cls is not None:
        section.close()
        return cls(**options)
    return None  # what else it may have depends on its type


def _levels(section: Section) -> dict[str, Any]:
    levels = section.texts("levels")
    if section.has("levels") and len(levels) < 2:
        section.problem("levels", "agree on at least two levels; all that any client may have")
    reference = section.text("reference", levels[0] if levels else "")
    if levels and reference not in levels:
        section.problem("reference", f"{reference!r} is not one of the levels: {', '.join(levels)}")
    return {"levels": levels, "reference": reference}


def _scaling(section: Section) -> FixedScaling | ScalingRule | None:
    if not section.is_table("scaling"):
        rule = section.word("scaling", [rule.value for rule in ScalingRule], None)
        return None if rule is None else ScalingRule(rule)
    fixed = section.section("scaling")
    centre, scale = fixed.number("centre"), fixed.positive("scale")
    fixed.close()
    return None if centre is None or scale is None else FixedScaling(centre, scale)


def _study_scaling(top: Section, model: ModelChoice) -> ScalingRule:
    default = ScalingRule.FEDERATED if model.function is None else ScalingRule.NONE
    return ScalingRule(top.word("scaling", [rule.value for rule in ScalingRule], default.value))


def _prior(top: Section, model: ModelChoice) -> PriorChoice | None:
    if model.function is not None:
        if top.has("prior"):
            top.section("prior")
            top.problem("prior", "a model of your own brings its prior; leave this table out")
        return None
    section = top.section("prior")
    scale = section.positive("scale", SLOPE_SCALE)
    intercept = section.positive("intercept_scale", intercept_scale(model.kind))
    estimated = model.kind == "linear" and model.noise_sd is None
    noise = section.positive("log_noise_scale", LOG_NOISE_SCALE) if estimated else None
    single = section.section("scales")
    scales = [(name, single.positive(name)) for name in sorted(single.names())]
    section.close()
    return PriorChoice(scale, intercept, noise, tuple((name, value) for name, value in scales if value is not None))


def _algorithm(section: Section, model: ModelChoice) -> AlgorithmChoice:
    method = section.word("method", registry.METHODS, "pvi")
    options: dict[str, Any] = {}
    if model.function is None:
        options["family"] = section.word("family", registry.FAMILIES, "full")
    if method in ("pvi", "fedgvi"):
        options["damping"] = section.part("damping", registry.DAMPINGS, Part("adaptive"))
        options["factors"] = section.word("factors", ("server", "clients"), "server")
    if method == "fedgvi":
        options["loss"] = section.part("loss", registry.LOSSES)
        options["divergence"] = section.part("divergence", registry.DIVERGENCES, Part("kl"))
        options["server_divergence"] = section.part("server_divergence", registry.DIVERGENCES, Part("kl"))
    if method in ("sfvi", "sfvi-avg"):
        options["step_size"] = section.positive("step_size", 0.02)
    if method == "sfvi-avg":
        options["local_steps"] = section.whole("local_steps", 1000, least=1)
        options["total"] = section.whole("total", least=1)
    section.close()
    return AlgorithmChoice(method, **options)


def _run(section: Section) -> RunChoice:
    choice = RunChoice(
        section.part("schedule", registry.SCHEDULES, Part("synchronous")) or Part("synchronous"),
        section.whole("rounds", None, least=1),
        section.positive("tolerance", 1e-6),
        section.whole("seed", 0),
    )
    section.close()
    return choice
