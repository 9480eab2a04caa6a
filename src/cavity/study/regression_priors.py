"""The priors of a regression in Python, from its arguments."""

from __future__ import annotations

from collections.abc import Mapping

from cavity.errors import StudyError
from cavity.study.families import Family
from cavity.study.formula import Formula
from cavity.study.priors import (
    CORRELATION_ETA,
    SD_SCALE,
    GroupPriorChoice,
    PriorChoice,
    SlopePrior,
    default_scale,
    prior_problem,
    slope_prior,
)
from cavity.study.scaling import Scaling

Real = float | int


def chosen_prior(
    family: Family,
    scaling: Scaling,
    kind: SlopePrior,
    intercept: Real | None,
    scales: dict[str, Real],
    priors: dict[str, Mapping[str, Real | str]],
) -> PriorChoice:
    """The prior of all coefficients. Raises StudyError.

    Args:
        family: of the outcome.
        scaling: of the columns and the outcome.
        kind: of the slopes, with their common scale.
        intercept: the scale of the intercept; None is the family's.
        scales: those of single coefficients, and of further parameters.
        priors: of single slopes.
    """
    is_scaled, scale = scaling.outcome is not None, kind.scale
    single = {name: slope_prior(name, own) for name, own in priors.items()}
    for own in (kind, *single.values()):
        if problem := prior_problem(own.family, own.df):
            raise StudyError(problem)
    if both := sorted(scales.keys() & single.keys()):
        raise StudyError(f"'{both[0]}' is in prior_scales and in priors; give its scale in priors")
    if family.scales_outcome and not is_scaled and (scale is None or intercept is None):
        raise StudyError(
            "an outcome that is not scaled has no default prior: give prior_scale and intercept_scale in the units of "
            'the outcome, or use scaling="federated"'
        )
    scale = default_scale(kind.family, family.slope_scale) if scale is None else scale
    intercept = family.intercept_scale if intercept is None else intercept
    for name, value in {"prior_scale": scale, "intercept_scale": intercept, **scales}.items():
        if not value > 0:
            raise StudyError(f"the scale of a prior must be positive; {name} is {value}")
    extra = family.extra_scales(outcome_is_scaled=is_scaled)
    of_single = tuple((name, float(value)) for name, value in scales.items() if name not in extra)
    chosen = tuple((key, float(scales.get(key, default))) for key, default in extra.items())
    return PriorChoice(
        float(scale), float(intercept), chosen, of_single, None, kind.family, kind.df, tuple(sorted(single.items()))
    )


def chosen_group_prior(
    formula: Formula,
    family: Family,
    scaling: Scaling,
    scale: Real | None,
    df: Real | None,
    scales: dict[str, Real],
    eta: Real | None,
) -> GroupPriorChoice | None:
    """The prior of standard deviations and correlations of group terms; None without any. Raises StudyError.

    Args:
        formula: of the regression.
        family: of the outcome.
        scaling: of the columns and the outcome.
        scale: of all standard deviations.
        df: of their half-t prior.
        scales: of single standard deviations.
        eta: of the prior of correlations.
    """
    given = {"sd_scale": scale, "sd_df": df, "correlation_eta": eta, **scales}
    given = {name: float(value) for name, value in given.items() if value is not None}
    if not formula.groups:
        if given:
            raise StudyError(f"{next(iter(given))} is for formulas with group terms such as `(1 | ward)`")
        return None
    for name, value in given.items():
        if not value > 0:
            raise StudyError(f"{name} must be positive, not {value}")
    if family.scales_outcome and scaling.outcome is None and scale is None:
        raise StudyError(
            "an outcome that is not scaled has no default prior: give sd_scale in the units of the outcome, or use "
            'scaling="federated"'
        )
    single = tuple((name, float(value)) for name, value in sorted(scales.items()))
    return GroupPriorChoice(
        given.get("sd_scale", SD_SCALE), given.get("sd_df"), given.get("correlation_eta", CORRELATION_ETA), single
    )
