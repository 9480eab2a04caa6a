"""Families whose model is a `Regression`: linear predictors, and a likelihood of one outcome given them."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import numpy as np

from cavity.core import Likelihood
from cavity.distributions.gaussian import Gaussian
from cavity.errors import StudyError
from cavity.models.glm.regression import Regression, gaussian_prior
from cavity.study.columns import Column
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Family
from cavity.study.priors import PriorChoice


@dataclass(frozen=True)
class Predictor:
    """One of the numbers that a likelihood depends on.

    Attributes:
        name: in front of the names of its coefficients; empty for the only one.
        prior_key: None if it has an intercept and slopes. Otherwise it is one parameter for all rows, and this is the
            key of `[prior]` that holds its scale.
    """

    name: str = ""
    prior_key: str | None = None


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

    def model(self, encoding: FormulaEncoding, prior: PriorChoice, covariance: type[Gaussian] | None) -> Regression:
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
