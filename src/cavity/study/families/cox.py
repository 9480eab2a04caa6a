"""Times to an event: Cox regression stratified by client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cavity.core import LatentModel
from cavity.distributions.gaussian import Gaussian
from cavity.errors import StudyError
from cavity.models.glm.regression import gaussian_prior
from cavity.models.survival.cox import CoxRegression
from cavity.models.survival.ties import TIES
from cavity.study.columns import Column
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Curvature
from cavity.study.families.regression_family import coefficient_scales
from cavity.study.families.survival import SurvivalFamily
from cavity.study.formula import Formula
from cavity.study.priors import PriorChoice
from cavity.study.sections import Section


@dataclass(frozen=True)
class Cox(SurvivalFamily):
    """Hazard at time t = baseline hazard of the client at t * exp(x . beta).

    Attributes:
        ties: the approximation for several events at one time, "efron" or "breslow".
    """

    ties: str = TIES[0]

    name: ClassVar[str] = "cox"
    title: ClassVar[str] = "Cox regression stratified by client"
    ratio: ClassVar[str | None] = "hazard ratio"

    def __post_init__(self) -> None:
        if self.ties not in TIES:
            raise StudyError(f"unknown ties {self.ties!r}; choose one of: {', '.join(TIES)}")

    @classmethod
    def read(cls, section: Section) -> Cox:
        return cls(section.word("ties", TIES, TIES[0]))

    @property
    def has_intercept(self) -> bool:
        return False

    def formula_problem(self, formula: Formula) -> str | None:
        return hazard_ratios_problem("a Cox model", formula)

    def model(self, encoding: FormulaEncoding, prior: PriorChoice, covariance: type[Gaussian] | None) -> CoxRegression:
        scales = slope_scales(self, encoding, prior)
        form = gaussian_prior(len(scales), scales, covariance)
        return CoxRegression(form, encoding.design.names, ties=self.ties, encoding=encoding)

    def grouped_model(self, encoding: FormulaEncoding, prior: PriorChoice) -> LatentModel:
        raise StudyError(
            "a Cox model cannot have group terms such as `(1 | ward)`: rows of different groups are in one risk set, "
            "so the effects of a group cannot be integrated out alone. Use the family 'piecewise-exponential' or "
            "'weibull', or make the group a fixed effect"
        )

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        """An event adds the variance of x over its risk set, which is at most the largest square."""
        return Curvature(1.0)


def hazard_ratios_problem(what: str, formula: Formula) -> str | None:
    """Why a formula is none for a model whose baseline is no parameter, or None.

    Args:
        what: the model, for the message.
        formula: of the model.
    """
    if not formula.intercept:
        return f"{what} has no intercept, because its baseline hazard takes this role; leave out `0 +` and `- 1`"
    if getattr(formula, "offsets", ()):
        return f"{what} cannot have an offset; use the family 'weibull' or 'exponential'"
    if not formula.terms and not formula.groups:
        return f"{what} needs at least one predictor"
    return None


def slope_scales(family: SurvivalFamily, encoding: FormulaEncoding, prior: PriorChoice) -> list[float]:
    """Prior scales of the slopes, without that of the intercept."""
    return coefficient_scales(family, encoding, prior)[int(encoding.design.intercept) :]
