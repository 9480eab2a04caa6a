"""Families whose model is a `Regression`: linear predictors, and a likelihood of one outcome given them."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cavity.core import LatentModel, Likelihood, Model
from cavity.distributions.gaussian import Gaussian
from cavity.errors import StudyError
from cavity.likelihoods import WithOffset
from cavity.models.glm.auxiliary import Auxiliary
from cavity.models.glm.coefficient_priors import InUnits, PriorBlocks, StudentTPrior
from cavity.models.glm.regression import Regression, gaussian_prior
from cavity.models.glm.shrinkage import CoefficientPrior, Horseshoe, Laplace
from cavity.models.glm.shrinkage_regression import ShrinkageRegression, with_shrinkage_prior
from cavity.models.mixed.grouped_regression import ONE, GroupedRegression, GroupEffects
from cavity.study.columns import Column
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Family
from cavity.study.nesting import several_groups_problem
from cavity.study.priors import (
    LAPLACE,
    NORMAL,
    PRIOR_DF,
    STUDENT_T,
    GroupPriorChoice,
    PriorChoice,
    SlopePrior,
    default_scale,
)
from cavity.study.spelling import did_you_mean


@dataclass(frozen=True)
class Predictor:
    """One of the numbers that a likelihood depends on.

    Attributes:
        name: in front of the names of its coefficients; empty for the only one.
        prior_key: None if it has an intercept and slopes. Otherwise it is one parameter for all rows, and this is the
            key of `[prior]` that holds its scale.
        natural_name: of the exponential of such a parameter, under which it is reported.
        reports_log: report the parameter itself, except in models with group terms.
        in_outcome_units: whether the exponential is in the units of the outcome.
        prior_mean: of such a parameter.
    """

    name: str = ""
    prior_key: str | None = None
    natural_name: str = ""
    reports_log: bool = False
    in_outcome_units: bool = False
    prior_mean: float = 0.0


class RegressionFamily(Family):
    """A family with linear predictors and a likelihood of one row."""

    @abc.abstractmethod
    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        """Of one outcome given its predictors, in the units that the model computes in."""

    def predictors(self, outcome: tuple[Column, ...]) -> tuple[Predictor, ...]:
        """The predictors of the likelihood, in their order."""
        return (Predictor(),)

    def thresholds(self, outcome: tuple[Column, ...]) -> tuple[str, ...]:
        """Names of the thresholds between ordered levels, of which the first is minus the intercept; mostly none."""
        return ()

    def _with_offset(self, encoding: FormulaEncoding) -> Likelihood:
        found = self.likelihood(encoding)
        return WithOffset(found) if encoding.adds_offset else found

    def num_blocks(self, outcome: tuple[Column, ...]) -> int:
        return sum(predictor.prior_key is None for predictor in self.predictors(outcome))

    def model(self, encoding: FormulaEncoding, prior: PriorChoice, covariance: type[Gaussian] | None) -> Model:
        design, predictors = encoding.design, self.predictors(encoding.outcome)
        extra = dict(self.extra_scales(outcome_is_scaled=encoding.scaling.outcome is not None)) | dict(prior.extra)
        block = coefficient_scales(self, encoding, prior)
        scales = np.concatenate([block if p.prior_key is None else [extra[p.prior_key]] for p in predictors])
        mean = np.concatenate([np.full(1 if p.prior_key else len(block), p.prior_mean) for p in predictors])
        found = Regression(
            gaussian_prior(len(scales), scales, covariance, mean),
            self._with_offset(encoding),
            design.names,
            design.intercept,
            tuple(predictor.name for predictor in predictors),
            tuple(predictor.prior_key is not None for predictor in predictors),
            encoding=encoding,
            log_outcome_scale=math.log(encoding.outcome_units[1]),
            auxiliary=tuple(
                Auxiliary("" if p.reports_log else p.natural_name, p.in_outcome_units)
                for p in predictors
                if p.prior_key is not None
            ),
            thresholds=self.thresholds(encoding.outcome),
        )
        return found if prior.is_normal else with_slope_priors(found, design.names, block, prior)

    def grouped_model(self, encoding: FormulaEncoding, prior: PriorChoice) -> LatentModel:
        first, *others = self.predictors(encoding.outcome)
        if first.name or first.prior_key is not None or any(other.prior_key is None for other in others):
            raise StudyError(f"the family {self.name!r} has several linear predictors; it cannot have group terms yet")
        if not prior.is_normal:
            raise StudyError("a formula with group terms has normal priors of its coefficients")
        if self.thresholds(encoding.outcome):
            raise StudyError(f"the family {self.name!r} cannot have group terms yet")
        if (problem := several_groups_problem(encoding.parsed)) is not None:
            raise encoding.parsed.refusal_at(*problem)
        design, choice = encoding.design, prior.group or GroupPriorChoice()
        extra = dict(self.extra_scales(outcome_is_scaled=encoding.scaling.outcome is not None)) | dict(prior.extra)
        own = any(effects.term.stratified and effects.term.intercept for effects in encoding.group_design.effects)
        fixed_scale = coefficient_scales(self, encoding, prior)
        return GroupedRegression(
            likelihood=self._with_offset(encoding),
            features=design.names,
            effects=tuple(
                GroupEffects(effects.names, effects.term.group, effects.term.correlated, effects.term.stratified)
                for effects in encoding.group_design.effects
            ),
            fixed_scale=fixed_scale[1:] if own and design.intercept else fixed_scale,
            family_scale=[extra[other.prior_key] for other in others if other.prior_key is not None],
            sd_scale=effect_scales(self, encoding, prior),
            sd_df=choice.sd_df,
            eta=choice.correlation_eta,
            intercept=design.intercept and not own,
            family_names=tuple(other.natural_name or f"exp({other.name})" for other in others),
            family_mean=[other.prior_mean for other in others],
            family_in_units=tuple(other.in_outcome_units for other in others),
            effect_units=encoding.effect_units,
            encoding=encoding,
        )


def with_slope_priors(
    model: Regression, names: Sequence[str], scales: Sequence[float], prior: PriorChoice
) -> ShrinkageRegression:
    """The regression with the study's priors of its slopes.

    Args:
        model: with normal priors.
        names: of the slopes of one linear predictor.
        scales: of their priors, that of the intercept first if there is one.
        prior: the study's choice, not all of it normal.
    """
    scale_of = dict(zip(names, scales[len(scales) - len(names) :], strict=True))
    blocks: dict[SlopePrior, list[str]] = {}
    slopes = [name for name in model.parameter_names if name.rsplit(": ", 1)[-1] in scale_of or name in scale_of]
    short = {name: name if name in scale_of else name.rsplit(": ", 1)[-1] for name in slopes}
    for name in slopes:
        own = prior.of(short[name])
        if own.family != NORMAL:
            blocks.setdefault(replace(own, scale=None), []).append(name)
    chosen = [name for members in blocks.values() for name in members]
    priors = tuple(
        InUnits(_standard_prior(kind), [scale_of[short[name]] for name in members]) for kind, members in blocks.items()
    )
    places = {name: place for place, name in enumerate(chosen)}
    members = tuple(tuple(places[name] for name in own) for own in blocks.values())
    return with_shrinkage_prior(model, PriorBlocks(priors, members), chosen)


def _standard_prior(kind: SlopePrior) -> CoefficientPrior:
    """The prior of a slope over its scale."""
    if kind.family == STUDENT_T:
        return StudentTPrior(1.0, PRIOR_DF if kind.df is None else kind.df)
    return Laplace(1.0) if kind.family == LAPLACE else Horseshoe(1.0)


def effect_scales(family: Family, encoding: FormulaEncoding, prior: PriorChoice) -> list[float]:
    """Scales of the priors of standard deviations, for the columns that the model computes with.

    These are the columns of the group terms over their standard deviations. The common scale is per standard deviation,
    but per level of a category if the family does not scale the outcome. Single scales are in the units of the data.
    Coefficients of each client's own have the prior of a coefficient, which is their known standard deviation.

    Args:
        family: of the outcome.
        encoding: with the group terms and their scaling.
        prior: the study's choice.

    Returns:
        One per effect.
    """
    choice = prior.group or GroupPriorChoice()
    design, single = encoding.group_design, dict(choice.sd_scales)
    if unknown := sorted(single.keys() - set(design.names)):
        raise StudyError(f"prior for an unknown effect {unknown[0]!r}; choose one of: {', '.join(design.names)}")
    units = iter(encoding.effect_units)
    found = []
    for effects in design.effects:
        scale = prior.scale if effects.term.stratified else choice.sd_scale
        is_number = (*([False] if effects.term.intercept else []), *effects.is_numeric)
        for name, full_name, number in zip(effects.names, effects.full_names, is_number, strict=True):
            unit = next(units)
            if full_name in single:
                found.append(single[full_name] * unit / encoding.predictor_units[1])
            elif effects.term.stratified and name == ONE:
                found.append(prior.intercept_scale)
            else:
                found.append(scale if number or family.scales_outcome else scale * unit)
    return found


def coefficient_scales(family: Family, encoding: FormulaEncoding, prior: PriorChoice) -> list[float]:
    """Prior scales of the intercept and the slopes, for the columns that the model computes with.

    These are the columns of the formula's matrix over their standard deviations. The scale of a slope is per standard
    deviation for families that scale the outcome; for others, and for single coefficients, it is per unit of the
    matrix's column.

    Args:
        family: of the outcome.
        encoding: with the formula's matrix and its scaling.
        prior: the study's choice.

    Returns:
        One standard deviation per coefficient, that of the intercept first.
    """
    design = encoding.design
    given = {*dict(prior.scales), *dict(prior.priors)}
    if unknown := sorted(given - set(design.names)):
        hint = did_you_mean(unknown[0], design.names)
        names = ", ".join(design.names)
        raise StudyError(f"prior for an unknown coefficient {unknown[0]!r}{hint}; choose one of: {names}")
    units = {column.name: column.scale for column in encoding.scaling.design}
    slopes = []
    for name in design.names:
        unit, own = units.get(name, 1.0), prior.of(name)
        scale = prior.scale if own.family == prior.family else default_scale(own.family, family.slope_scale)
        common = scale if family.scales_outcome else scale * unit
        slopes.append(common if own.scale is None else own.scale * unit)
    return [prior.intercept_scale, *slopes] if design.intercept else slopes
