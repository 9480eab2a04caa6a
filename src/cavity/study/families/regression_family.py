"""Families whose model is a `Regression`: linear predictors, and a likelihood of one outcome given them."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import numpy as np

from cavity.core import LatentModel, Likelihood, Model
from cavity.distributions.gaussian import Gaussian
from cavity.errors import StudyError
from cavity.models.glm.regression import Regression, gaussian_prior
from cavity.models.mixed.grouped_regression import GroupedRegression, GroupEffects
from cavity.study.columns import Column
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Family
from cavity.study.nesting import several_groups_problem
from cavity.study.priors import GroupPriorChoice, PriorChoice


@dataclass(frozen=True)
class Predictor:
    """One of the numbers that a likelihood depends on.

    Attributes:
        name: in front of the names of its coefficients; empty for the only one.
        prior_key: None if it has an intercept and slopes. Otherwise it is one parameter for all rows, and this is the
            key of `[prior]` that holds its scale.
        natural_name: of the exponential of such a parameter, in models with group terms.
    """

    name: str = ""
    prior_key: str | None = None
    natural_name: str = ""


class RegressionFamily(Family):
    """A family with linear predictors and a likelihood of one row."""

    @abc.abstractmethod
    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        """Of one outcome given its predictors, in the units that the model computes in."""

    def predictors(self, outcome: tuple[Column, ...]) -> tuple[Predictor, ...]:
        """The predictors of the likelihood, in their order."""
        return (Predictor(),)

    def num_blocks(self, outcome: tuple[Column, ...]) -> int:
        return sum(predictor.prior_key is None for predictor in self.predictors(outcome))

    def model(self, encoding: FormulaEncoding, prior: PriorChoice, covariance: type[Gaussian] | None) -> Model:
        design, predictors = encoding.design, self.predictors(encoding.outcome)
        extra = dict(self.extra_scales(outcome_is_scaled=encoding.scaling.outcome is not None)) | dict(prior.extra)
        block = coefficient_scales(self, encoding, prior)
        scales = np.concatenate([block if p.prior_key is None else [extra[p.prior_key]] for p in predictors])
        return Regression(
            gaussian_prior(len(scales), scales, covariance),
            self.likelihood(encoding),
            design.names,
            design.intercept,
            tuple(predictor.name for predictor in predictors),
            tuple(predictor.prior_key is not None for predictor in predictors),
            encoding=encoding,
            log_outcome_scale=math.log(encoding.outcome_units[1]),
        )

    def grouped_model(self, encoding: FormulaEncoding, prior: PriorChoice) -> LatentModel:
        first, *others = self.predictors(encoding.outcome)
        if first.name or first.prior_key is not None or any(other.prior_key is None for other in others):
            raise StudyError(f"the family {self.name!r} has several linear predictors; it cannot have group terms yet")
        if (problem := several_groups_problem(encoding.parsed)) is not None:
            raise encoding.parsed.refusal_at(*problem)
        design, choice = encoding.design, prior.group or GroupPriorChoice()
        extra = dict(self.extra_scales(outcome_is_scaled=encoding.scaling.outcome is not None)) | dict(prior.extra)
        return GroupedRegression(
            likelihood=self.likelihood(encoding),
            features=design.names,
            effects=tuple(
                GroupEffects(effects.names, effects.term.group, effects.term.correlated)
                for effects in encoding.group_design.effects
            ),
            fixed_scale=coefficient_scales(self, encoding, prior),
            family_scale=[extra[other.prior_key] for other in others if other.prior_key is not None],
            sd_scale=effect_scales(self, encoding, choice),
            sd_df=choice.sd_df,
            eta=choice.correlation_eta,
            intercept=design.intercept,
            family_names=tuple(other.natural_name or f"exp({other.name})" for other in others),
            effect_units=encoding.effect_units,
            encoding=encoding,
        )


def effect_scales(family: Family, encoding: FormulaEncoding, choice: GroupPriorChoice) -> list[float]:
    """Scales of the priors of standard deviations, for the columns that the model computes with.

    These are the columns of the group terms over their standard deviations. The common scale is per standard deviation,
    but per level of a category if the family does not scale the outcome. Single scales are in the units of the data.

    Args:
        family: of the outcome.
        encoding: with the group terms and their scaling.
        choice: the study's.

    Returns:
        One per effect.
    """
    design, single = encoding.group_design, dict(choice.sd_scales)
    if unknown := sorted(single.keys() - set(design.names)):
        raise StudyError(f"prior for an unknown effect {unknown[0]!r}; choose one of: {', '.join(design.names)}")
    is_number = [
        number
        for effects in design.effects
        for number in (*([False] if effects.term.intercept else []), *effects.is_numeric)
    ]
    found = []
    for name, unit, number in zip(design.names, encoding.effect_units, is_number, strict=True):
        common = choice.sd_scale if number or family.scales_outcome else choice.sd_scale * unit
        found.append(single[name] * unit / encoding.outcome_units[1] if name in single else common)
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
    scales = dict(prior.scales)
    if unknown := sorted(scales.keys() - set(design.names)):
        raise StudyError(f"prior for an unknown coefficient {unknown[0]!r}; choose one of: {', '.join(design.names)}")
    units = {column.name: column.scale for column in encoding.scaling.design}
    slopes = []
    for name in design.names:
        unit = units.get(name, 1.0)
        common = prior.scale if family.scales_outcome else prior.scale * unit
        slopes.append(scales[name] * unit if name in scales else common)
    return [prior.intercept_scale, *slopes] if design.intercept else slopes
