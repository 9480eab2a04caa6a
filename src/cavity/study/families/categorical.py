"""One of several classes: softmax regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cavity.core import Likelihood
from cavity.likelihoods import CategoricalLogit
from cavity.study.columns import Category, Column
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Curvature
from cavity.study.families.regression_family import Predictor, RegressionFamily
from cavity.study.guessing import RawColumn


@dataclass(frozen=True)
class Categorical(RegressionFamily):
    """P(y = c) proportional to exp(x . beta_c), with beta = 0 for the reference level."""

    name: ClassVar[str] = "categorical"
    aliases: ClassVar[tuple[str, ...]] = ("softmax",)
    title: ClassVar[str] = "softmax regression"
    ratio: ClassVar[str | None] = "odds ratio"
    draft_model: ClassVar[str] = '# if the levels are ordered: family = "ordinal", with levels from low to high\n'

    @classmethod
    def recognises(cls, column: Column, num_levels: int) -> bool:
        return column.type_name == "category" and num_levels > 2

    @classmethod
    def draft_column(cls, column: Column) -> Column:
        return Category(name=column.name, levels=(), reference="") if column.is_numeric else column

    def outcome_problem(self, outcome: tuple[Column, ...]) -> str | None:
        return None if outcome[0].level_names else "the outcome of softmax regression is a category"

    def outcome_column(self, raw: RawColumn, position: int) -> Column:
        return raw.category()

    def predictors(self, outcome: tuple[Column, ...]) -> tuple[Predictor, ...]:
        return tuple(Predictor(level) for level in outcome[0].level_names[1:])

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        return CategoricalLogit(len(encoding.outcome[0].level_names))

    @property
    def is_log_concave(self) -> bool:
        return True

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        return Curvature(0.25)
