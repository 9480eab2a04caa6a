"""Counts that vary more than those of a Poisson distribution: negative binomial regression."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cavity.core import Likelihood
from cavity.likelihoods import NegativeBinomialLog
from cavity.study.columns import Column, Integer
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Curvature
from cavity.study.families.regression_family import Predictor, RegressionFamily
from cavity.study.guessing import RawColumn

SHAPE_KEY = "log_shape_scale"
LOG_SHAPE_SCALE = 2.5  # a shape between 0.007 and 130, in 95 %


@dataclass(frozen=True)
class NegativeBinomial(RegressionFamily):
    """y has the mean m = exp(x . beta) and the variance m + m^2 / shape, with an unknown shape."""

    name: ClassVar[str] = "negative-binomial"
    aliases: ClassVar[tuple[str, ...]] = ("negative_binomial",)
    title: ClassVar[str] = "negative binomial regression"
    ratio: ClassVar[str | None] = "rate ratio"
    draft_range: ClassVar[str | None] = "range = [0, inf]  # counts"

    def outcome_problem(self, outcome: tuple[Column, ...]) -> str | None:
        match outcome[0]:
            case Integer(range=(low, _)) if low >= 0:
                return None
        return "the outcome of negative binomial regression is an integer with a range from 0, such as [0, inf]"

    def outcome_column(self, raw: RawColumn, position: int) -> Column:
        return Integer(name=raw.name, missing=raw.missing, range=(0.0, math.inf))

    def extra_scales(self, *, outcome_is_scaled: bool) -> Mapping[str, float]:
        return {SHAPE_KEY: LOG_SHAPE_SCALE}

    def predictors(self, outcome: tuple[Column, ...]) -> tuple[Predictor, ...]:
        return Predictor(), Predictor("log_shape", SHAPE_KEY, "shape")

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        return NegativeBinomialLog()

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        return Curvature(None, "the shape is unknown")
