"""From words to a model: a regression by a formula, or what a function of the user's own returns."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import types
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_type_hints

import numpy as np

from cavity.core import LatentModel, Model
from cavity.distributions.gaussian import Gaussian
from cavity.errors import CavityError, StudyError
from cavity.likelihoods import GaussianUnknownNoise
from cavity.models.glm.regression import (
    Regression,
    gaussian_prior,
    linear_regression,
    logistic_regression,
    poisson_regression,
    softmax_regression,
)
from cavity.study import registry
from cavity.study.columns import Category
from cavity.study.encoding import FormulaEncoding
from cavity.study.priors import LOG_NOISE_SCALE, NOISE_FLOOR
from cavity.study.scaling import Scaling
from cavity.study.schema import ModelChoice, PriorChoice, Study
from cavity.study.validation import outcome_misfit

ALLOW_MODELS = "CAVITY_ALLOW_MODELS"  # in the environment: names of modules, separated by commas or spaces


def study_model(study: Study, scaling: Scaling) -> Any:
    """The model that all clients fit.

    Args:
        study: what was agreed.
        scaling: of its predictors, as `study_scaling` gives it.
    """
    if study.model.function is not None:
        check_allowed(study)
        return own_model(study.model.function, dict(study.model.arguments))
    assert study.model.formula is not None
    assert study.model.kind is not None
    assert study.prior is not None
    encoding = FormulaEncoding(study.model.formula, study.used_columns, scaling)
    family = registry.FAMILIES[study.algorithm.family or "full"]
    return regression_model(study.model.kind, encoding, study.prior, family=family, noise_sd=study.model.noise_sd)


def regression_model(
    kind: str, encoding: FormulaEncoding, prior: PriorChoice, *, family: type[Gaussian] | None, noise_sd: float | None
) -> Regression:
    """A regression whose features, levels and outcomes have the names of the formula and the columns."""
    outcome, design = encoding.columns[0], encoding.design
    if problem := outcome_misfit(kind, outcome):
        raise StudyError(f"column '{outcome.name}': {problem}")
    outputs: tuple[str, ...] = ("",)
    constant: tuple[bool, ...] = (False,)
    if kind == "softmax":
        assert isinstance(outcome, Category)
        outputs, constant = outcome.ordered[1:], (False,) * (len(outcome.ordered) - 1)
    if kind == "linear" and noise_sd is None:
        outputs, constant = ("", "log_noise_sd"), (False, True)
    block = _prior_scales(kind, encoding, prior)
    every = np.concatenate(
        [[prior.log_noise_scale or LOG_NOISE_SCALE] if is_constant else block for is_constant in constant]
    )
    options: dict[str, Any] = {"prior": gaussian_prior(len(every), every, family), "intercept": design.intercept}
    if kind == "logistic":
        model = logistic_regression(design.names, **options)
    elif kind == "poisson":
        model = poisson_regression(design.names, **options)
    elif kind == "softmax":
        model = softmax_regression(design.names, len(outputs) + 1, **options)
    else:
        _, unit = encoding.outcome_units
        model = linear_regression(design.names, noise_sd=None if noise_sd is None else noise_sd / unit, **options)
        model = replace(model, log_outcome_scale=math.log(unit))
        if noise_sd is None and encoding.scaling.outcome is not None:
            # without an intercept the outcome is in units of its size, which may be many times its spread
            floor = NOISE_FLOOR if design.intercept else NOISE_FLOOR / 100
            model = replace(model, likelihood=GaussianUnknownNoise(floor))
    return replace(model, outputs=outputs, constant=constant, encoding=encoding)


def _prior_scales(kind: str, encoding: FormulaEncoding, prior: PriorChoice) -> list[float]:
    """Of the intercept and the slopes, for the columns that the model computes with.

    These are the columns of the formula's matrix over their standard deviations. The scale of a slope is per standard
    deviation in linear regression; elsewhere, and for single coefficients, it is per unit of the matrix's column.
    """
    design = encoding.design
    scales = dict(prior.scales)
    if unknown := sorted(scales.keys() - set(design.names)):
        raise StudyError(f"there is no coefficient {unknown[0]!r} to have a prior; there are {', '.join(design.names)}")
    units = {column.name: column.scale for column in encoding.scaling.design}
    slopes = []
    for name in design.names:
        unit = units.get(name, 1.0)
        common = prior.scale if kind == "linear" else prior.scale * unit
        slopes.append(scales[name] * unit if name in scales else common)
    return [prior.intercept_scale, *slopes] if design.intercept else slopes


def check_allowed(study: Study) -> None:
    """Raise StudyError unless this site allows the module of a study's own model, if it has one, by exactly that name.

    A module that is imported runs, and a study file comes from others. So nothing is imported before.
    """
    if study.model.function is None:
        return
    module = study.model.function.partition(":")[0]
    if module not in {*study.allow_models, *os.environ.get(ALLOW_MODELS, "").replace(",", " ").split()}:
        raise StudyError(
            f"model.function: the study {study.name!r} wants to import the module {module!r} here, for its model "
            f"{study.model.function!r}, and this site has not allowed it. If you trust what is installed under this "
            f"name, allow it: `--allow-model {module}`, or {ALLOW_MODELS}={module} in the environment; in Python "
            f"`read_study(path, allow_models=[{module!r}])`"
        )


def own_model(function: str, arguments: Mapping[str, Any]) -> Any:
    """What `module:function`, which must be installed and allowed here, returns for these arguments."""
    module_name, _, name = function.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise StudyError(
            f"model.function: there is no module {error.name!r} here; install the package that has {function!r}. No "
            "code comes with a study"
        ) from None
    maker: Any = getattr(module, name, None)
    if not _makes_models(maker):
        raise StudyError(
            f"model.function: the module {module_name!r} has no function {name!r} that says it returns a model; "
            f"annotate it, `def {name}(...) -> cavity.core.Model`, so that a study can call nothing else here"
        )
    try:
        model = maker(**arguments)
    except TypeError as error:
        raise CavityError(f"model.function: {function} cannot be called with [model.arguments]: {error}") from error
    if not isinstance(model, (Model, LatentModel)):
        raise StudyError(
            f"model.function: {function} returned a {type(model).__name__}, and not a model of Cavity's kind"
        )
    return model


def _makes_models(maker: Any) -> bool:
    """Whether it is a model class, or a function whose annotation promises one.

    A study file comes from others, and `os:system` is installed everywhere too.
    """
    if isinstance(maker, type):
        return issubclass(maker, (Model, LatentModel))
    function = inspect.unwrap(maker) if callable(maker) else maker  # it may be cached
    if not isinstance(function, types.FunctionType):
        return False
    try:
        promised = get_type_hints(function).get("return")
    except (NameError, TypeError):
        return False
    return isinstance(promised, type) and issubclass(promised, (Model, LatentModel))


def describe(model: ModelChoice) -> str:
    """The model in a few words."""
    return f"{model.kind} regression, {model.formula}" if model.function is None else f"the model of {model.function}"
