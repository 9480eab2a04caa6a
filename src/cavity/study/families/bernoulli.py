"""Yes or no: logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cavity.core import Likelihood
from cavity.likelihoods import BernoulliLogit
from cavity.study.columns import Boolean, Category, Column, Integer
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Curvature
from cavity.study.families.regression_family import RegressionFamily
from cavity.study.guessing import RawColumn


@dataclass(frozen=True)
class Bernoulli(RegressionFamily):
    """P(y = 1) = 1 / (1 + exp(-x . beta))."""

    name: ClassVar[str] = "bernoulli"
    aliases: ClassVar[tuple[str, ...]] = ("logistic",)
    title: ClassVar[str] = "logistic regression"
    ratio: ClassVar[str | None] = "odds ratio"

    @classmethod
    def recognises(cls, column: Column, num_levels: int) -> bool:
        return column.type_name == "boolean" or (column.type_name in ("category", "text") and num_levels <= 2)

    def outcome_problem(self, outcome: tuple[Column, ...]) -> str | None:
        match outcome[0]:
            case Boolean() | Integer(range=(0.0, 1.0)):
                return None
            case Category(level_names=(_, _)):
                return None
        return "the outcome of logistic regression is boolean, a category of two levels, or 0 and 1"

    def outcome_column(self, raw: RawColumn, position: int) -> Column:
        if raw.levels is None and raw.is_numeric:
            return Integer(name=raw.name, missing=raw.missing, range=(0.0, 1.0))
        return raw.category()

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        return BernoulliLogit()

    @property
    def is_log_concave(self) -> bool:
        return True

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        return Curvature(0.25)
