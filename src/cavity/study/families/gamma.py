"""Positive amounts such as costs and durations: gamma regression with a log link."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cavity.core import Likelihood
from cavity.likelihoods import GammaLog
from cavity.study.columns import Column, Number
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Curvature
from cavity.study.families.negative_binomial import LOG_SHAPE_SCALE, SHAPE_KEY
from cavity.study.families.regression_family import Predictor, RegressionFamily
from cavity.study.guessing import RawColumn

LEAST_VARIATION = 3e-4  # sd / mean; otherwise a client whose outcomes are all equal would pull the shape to infinity


@dataclass(frozen=True)
class Gamma(RegressionFamily):
    """y has a gamma distribution with the mean m = exp(x . beta) and the sd m / sqrt(shape), with an unknown shape."""

    name: ClassVar[str] = "gamma"
    title: ClassVar[str] = "gamma regression"
    divides_outcome: ClassVar[bool] = True
    ratio: ClassVar[str | None] = "ratio of means"
    draft_range: ClassVar[str | None] = "range = [0, inf]  # positive amounts"

    def outcome_problem(self, outcome: tuple[Column, ...]) -> str | None:
        return None if outcome[0].is_numeric else "the outcome of gamma regression is a positive number"

    def outcome_column(self, raw: RawColumn, position: int) -> Column:
        return Number(name=raw.name, missing=raw.missing, range=(0.0, math.inf))

    def extra_scales(self, *, outcome_is_scaled: bool) -> Mapping[str, float]:
        return {SHAPE_KEY: LOG_SHAPE_SCALE}

    def predictors(self, outcome: tuple[Column, ...]) -> tuple[Predictor, ...]:
        return Predictor(), Predictor("log_shape", SHAPE_KEY, "shape")

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        return GammaLog(LEAST_VARIATION)

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        return Curvature(None, "the shape is unknown")
