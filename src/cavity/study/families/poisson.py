"""Counts: Poisson regression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from cavity.core import Likelihood
from cavity.likelihoods import PoissonLog
from cavity.study.columns import Column, Integer
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Curvature
from cavity.study.families.regression_family import RegressionFamily
from cavity.study.guessing import RawColumn


@dataclass(frozen=True)
class Poisson(RegressionFamily):
    """y ~ Poisson(exp(x . beta))."""

    name: ClassVar[str] = "poisson"
    title: ClassVar[str] = "Poisson regression"
    ratio: ClassVar[str | None] = "rate ratio"
    draft_model: ClassVar[str] = '# if counts vary more than their mean: family = "negative-binomial"\n'
    draft_range: ClassVar[str | None] = "range = [0, inf]  # counts"

    def outcome_problem(self, outcome: tuple[Column, ...]) -> str | None:
        match outcome[0]:
            case Integer(range=(low, _)) if low >= 0:
                return None
        return "the outcome of Poisson regression is an integer with a range from 0, such as [0, inf]"

    def outcome_column(self, raw: RawColumn, position: int) -> Column:
        return Integer(name=raw.name, missing=raw.missing, range=(0.0, math.inf))

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        return PoissonLog()

    @property
    def is_log_concave(self) -> bool:
        return True

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        """The expected count, which the likelihood equations tie to the mean outcome: twice the largest declared."""
        largest = (outcome[0].limits or (0.0, math.inf))[1]
        if not math.isfinite(largest):
            return Curvature(None, f"column '{outcome[0].name}' has no largest value declared")
        return Curvature(2.0 * max(largest, 1.0))
