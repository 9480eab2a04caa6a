"""From a study to its model: a regression by a formula, or the model that a function of the user's own returns."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from typing import get_type_hints

from cavity.core import LatentModel, Model
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.errors import CavityError, StudyError
from cavity.study import registry
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Family
from cavity.study.priors import PriorChoice
from cavity.study.scaling import Scaling
from cavity.study.schema import ModelChoice, Study
from cavity.study.sections import Plain
from cavity.study.validation import FULL_ONLY, left_side_problem

ALLOW_MODELS = "CAVITY_ALLOW_MODELS"  # in the environment: names of modules, separated by commas or spaces


def study_model(study: Study, scaling: Scaling) -> Model | LatentModel:
    """The model that all clients fit.

    Args:
        study: what was agreed.
        scaling: of its columns, as `study_scaling` gives it.
    """
    if study.model.function is not None:
        check_allowed(study)
        return own_model(study.model.function, dict(study.model.arguments))
    assert study.model.formula is not None
    assert study.model.family is not None
    assert study.prior is not None
    encoding = FormulaEncoding(study.model.formula, study.formula_columns, scaling)
    covariance = registry.COVARIANCES[study.algorithm.covariance or "full"]
    return formula_model(study.model.family, encoding, study.prior, covariance)


def formula_model(
    family: Family, encoding: FormulaEncoding, prior: PriorChoice, covariance: type[Gaussian] | None
) -> Model | LatentModel:
    """The model of a family for the formula and columns of an encoding. Raises StudyError.

    Args:
        family: of the outcome.
        encoding: from a table to features and outcomes.
        prior: of the parameters.
        covariance: the form of the Gaussian posterior; None chooses by the number of coefficients.
    """
    if problem := left_side_problem(family, encoding.parsed):
        raise StudyError(problem)
    if problem := family.outcome_problem(encoding.outcome):
        raise StudyError(f"column '{encoding.outcome[0].name}': {problem}")
    if problem := family.formula_problem(encoding.parsed):
        raise StudyError(problem)
    if encoding.parsed.groups:
        if covariance not in (None, FullGaussian):
            raise StudyError(f"covariance: {FULL_ONLY}")
        return family.grouped_model(encoding, prior)
    return family.model(encoding, prior, covariance)


def check_allowed(study: Study) -> None:
    """Raise StudyError if the study has a model of its own whose module this site does not allow by exactly that name.

    Importing a module runs it, and a study file comes from others. So nothing is imported before this check.
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


def own_model(function: str, arguments: Mapping[str, Plain]) -> Model | LatentModel:
    """The model that `module:function` returns for these arguments. It must be installed and allowed here."""
    module_name, _, name = function.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise StudyError(
            f"model.function: there is no module {error.name!r} here; install the package that has {function!r}. A "
            "study file brings no code"
        ) from None
    maker = _model_maker(getattr(module, name, None))
    if maker is None:
        raise StudyError(
            f"model.function: the module {module_name!r} has no function {name!r} that is annotated to return a model; "
            f"annotate it, `def {name}(...) -> cavity.core.Model`, so that a study can call nothing else here"
        )
    try:
        model = maker(**arguments)
    except TypeError as error:
        raise CavityError(f"model.function: {function} cannot be called with [model.arguments]: {error}") from error
    match model:
        case Model() | LatentModel():
            return model
    raise StudyError(f"model.function: {function} returned a {type(model).__name__}, which is not a model")


def _model_maker(maker: object) -> Callable[..., object] | None:
    """The maker if it is a model class, or a function that is annotated to return a model; otherwise None.

    A study file comes from others, and `os:system` is installed everywhere too.
    """
    if not callable(maker):
        return None
    promised: object = maker
    if not inspect.isclass(maker):
        function = inspect.unwrap(maker)  # it may be cached
        if not inspect.isfunction(function):
            return None
        try:
            promised = get_type_hints(function).get("return")
        except (NameError, TypeError):
            return None
    return maker if inspect.isclass(promised) and issubclass(promised, (Model, LatentModel)) else None


def describe(model: ModelChoice) -> str:
    """The model in a few words."""
    if model.family is None:
        return f"the model of {model.function}"
    ratio = model.family.coefficient_ratio
    shown = "" if ratio is None else f"; exp(coefficient): {ratio}"
    return f"{model.family.description}, {model.formula}{shown}"
