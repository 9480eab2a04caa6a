"""Times to an event: Weibull, log-normal and exponential accelerated failure time, as in R's `survreg`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cavity.core import Likelihood
from cavity.likelihoods import ExponentialTime, LogNormalTime, WeibullTime
from cavity.study.columns import Column
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Curvature
from cavity.study.families.regression_family import Predictor, RegressionFamily
from cavity.study.families.survival import SurvivalFamily

SCALE_KEY = "log_scale_scale"
LOG_SCALE_SCALE = 2.5
SCALE_FLOOR = 3e-4  # of log time: the least scale; otherwise a client whose times are all equal would pull it to 0


@dataclass(frozen=True)
class FailureTimeFamily(SurvivalFamily, RegressionFamily):
    """log T = x . beta + scale W."""

    ratio: ClassVar[str | None] = "time ratio"

    def extra_scales(self, *, outcome_is_scaled: bool) -> Mapping[str, float]:
        return {SCALE_KEY: LOG_SCALE_SCALE}

    def predictors(self, outcome: tuple[Column, ...]) -> tuple[Predictor, ...]:
        return Predictor(), Predictor("log_scale", SCALE_KEY, "scale")

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        return Curvature(None, "the scale of log times is unknown")


@dataclass(frozen=True)
class Weibull(FailureTimeFamily):
    """W has a smallest extreme value distribution; a coefficient over -scale is a log hazard ratio."""

    name: ClassVar[str] = "weibull"
    title: ClassVar[str] = "Weibull regression"

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        return WeibullTime(floor=SCALE_FLOOR, late_entry=self.has_late_entry(encoding))


@dataclass(frozen=True)
class LogNormal(FailureTimeFamily):
    """W is standard normal."""

    name: ClassVar[str] = "lognormal"
    title: ClassVar[str] = "log-normal regression of times"

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        return LogNormalTime(floor=SCALE_FLOOR, late_entry=self.has_late_entry(encoding))


@dataclass(frozen=True)
class Exponential(FailureTimeFamily):
    """As Weibull, with the scale 1: a constant hazard. The time ratio is one over the hazard ratio."""

    name: ClassVar[str] = "exponential"
    title: ClassVar[str] = "exponential regression of times"

    def extra_scales(self, *, outcome_is_scaled: bool) -> Mapping[str, float]:
        return {}

    def predictors(self, outcome: tuple[Column, ...]) -> tuple[Predictor, ...]:
        return (Predictor(),)

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        return ExponentialTime(late_entry=self.has_late_entry(encoding))

    @property
    def is_log_concave(self) -> bool:
        return True

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        """The expected number of events of a row, which the likelihood equations tie to the observed: twice 1."""
        return Curvature(2.0)
