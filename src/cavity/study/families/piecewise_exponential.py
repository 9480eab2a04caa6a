"""Times to an event: a hazard that is constant between agreed cut points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cavity.core import LatentModel, Likelihood, Model
from cavity.distributions.gaussian import Gaussian
from cavity.errors import StudyError
from cavity.likelihoods import PiecewiseExponentialTime
from cavity.likelihoods.piecewise_exponential import cuts_problem, interval_names
from cavity.models.glm.regression import gaussian_prior
from cavity.models.survival.client_baseline import ClientBaselineRegression
from cavity.study.columns import Column
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.cox import hazard_ratios_problem, slope_scales
from cavity.study.families.family import Curvature
from cavity.study.families.regression_family import Predictor, RegressionFamily
from cavity.study.families.survival import SurvivalFamily
from cavity.study.formula import Formula
from cavity.study.priors import PriorChoice
from cavity.study.sections import Section

BASELINES = ("shared", "client")
BASELINE_KEY = "log_baseline_scale"
LOG_BASELINE_SCALE = 2.5


@dataclass(frozen=True)
class PiecewiseExponential(SurvivalFamily, RegressionFamily):
    """Hazard in interval j = exp(intercept + log baseline_j + x . beta), where that of the first interval is 0.

    Attributes:
        cuts: the cut points between intervals, in the unit of the time.
        baseline: whether the hazards of the intervals are parameters of all clients, "shared", or each client has its
            own, "client", which are integrated out.
    """

    cuts: tuple[float, ...] = ()
    baseline: str = BASELINES[0]

    name: ClassVar[str] = "piecewise-exponential"
    title: ClassVar[str] = "piecewise exponential regression"
    ratio: ClassVar[str | None] = "hazard ratio"

    def __post_init__(self) -> None:
        object.__setattr__(self, "cuts", tuple(map(float, self.cuts)))
        if (problem := cuts_problem(self.cuts)) is not None:
            raise StudyError(problem)
        if self.baseline not in BASELINES:
            raise StudyError(f"unknown baseline {self.baseline!r}; choose one of: {', '.join(BASELINES)}")

    @classmethod
    def read(cls, section: Section) -> PiecewiseExponential:
        cuts = section.numbers("cuts")
        if (problem := cuts_problem(cuts)) is not None and (not section.has("cuts") or cuts):
            section.problem("cuts", problem)
        return cls((1.0,) if problem is not None else cuts, section.word("baseline", BASELINES, BASELINES[0]))

    @property
    def has_intercept(self) -> bool:
        return self._is_shared

    @property
    def _is_shared(self) -> bool:
        return self.baseline == "shared"

    def formula_problem(self, formula: Formula) -> str | None:
        if self._is_shared and formula.intercept:
            return None
        return hazard_ratios_problem("a piecewise exponential model", formula)

    def extra_scales(self, *, outcome_is_scaled: bool) -> Mapping[str, float]:
        return {BASELINE_KEY: LOG_BASELINE_SCALE} if self._is_shared else {}

    def predictors(self, outcome: tuple[Column, ...]) -> tuple[Predictor, ...]:
        later = interval_names(self.cuts)[1:]
        return Predictor(), *(Predictor(f"log_baseline{name}", BASELINE_KEY, f"baseline{name}") for name in later)

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        return PiecewiseExponentialTime(cuts=self.cuts, late_entry=self.has_late_entry(encoding))

    def model(self, encoding: FormulaEncoding, prior: PriorChoice, covariance: type[Gaussian] | None) -> Model:
        if self._is_shared:
            return super().model(encoding, prior, covariance)
        scales = slope_scales(self, encoding, prior)
        form = gaussian_prior(len(scales), scales, covariance)
        return ClientBaselineRegression(form, encoding.design.names, cuts=self.cuts, encoding=encoding)

    def grouped_model(self, encoding: FormulaEncoding, prior: PriorChoice) -> LatentModel:
        if self._is_shared:
            return super().grouped_model(encoding, prior)
        raise StudyError(
            "group terms such as `(1 | ward)` need a shared baseline: the hazards of a client's own baseline are "
            'integrated out, which ties its groups together. Set baseline = "shared"'
        )

    @property
    def is_log_concave(self) -> bool:
        return self._is_shared

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        """With baselines of clients, an event adds the variance of x over an interval, at most the largest square."""
        return Curvature(None, "a row depends on several baseline hazards") if self._is_shared else Curvature(1.0)
