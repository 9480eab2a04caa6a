"""Ordered levels, such as grades of severity: cumulative logit and probit regression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from cavity.core import Likelihood
from cavity.errors import DataError
from cavity.likelihoods import OrdinalLogit, OrdinalProbit
from cavity.study.columns import Category, Column, as_text
from cavity.study.encoding import FormulaEncoding
from cavity.study.families import links
from cavity.study.families.family import Curvature
from cavity.study.families.regression_family import Predictor, RegressionFamily
from cavity.study.formula import Formula
from cavity.study.guessing import FEW_LEVELS, RawColumn
from cavity.study.sections import Section

LINKS = (links.LOGIT, links.PROBIT)
GAP_KEY = "log_gap_scale"
LOG_GAP_SCALE = 2.0  # a distance of thresholds between 0.02 and 50, in 95 %


@dataclass(frozen=True)
class Ordinal(RegressionFamily):
    """P(y <= level c) = F(threshold_c - x . beta), with unknown thresholds in increasing order.

    A positive coefficient makes higher levels more probable. With the logit link exp(coefficient) is the ratio of the
    odds of exceeding a level, the same for all levels (proportional odds).

    Attributes:
        link: "logit" or "probit".
    """

    link: str = links.LOGIT

    name: ClassVar[str] = "ordinal"
    title: ClassVar[str] = "ordinal regression"
    ratio: ClassVar[str | None] = "odds ratio of a higher level"
    needs_all_levels: ClassVar[bool] = True
    draft_model: ClassVar[str] = '# link = "probit"  # without it "logit"\n'

    def __post_init__(self) -> None:
        links.check_link(self.link, LINKS)

    @classmethod
    def read(cls, section: Section) -> Ordinal:
        return cls(links.read_link(section, LINKS))

    @classmethod
    def draft_column(cls, column: Column) -> Column:
        return Category(name=column.name, levels=(), reference="") if column.is_numeric else column

    @property
    def description(self) -> str:
        return f"cumulative {self.link} regression"

    @property
    def coefficient_ratio(self) -> str | None:
        return self.ratio if self.link == links.LOGIT else None

    def outcome_problem(self, outcome: tuple[Column, ...]) -> str | None:
        match outcome[0]:
            case Category(levels=(first, _, _, *_), reference=reference) if reference == first:
                return None
            case Category(levels=(_, _)):
                return "two levels have no order to learn; use the family bernoulli"
            case Category():
                return "the reference of an ordinal outcome is its lowest level; leave it out, and order the levels"
        return "the outcome of ordinal regression is a category, with its levels in order from low to high"

    def formula_problem(self, formula: Formula) -> str | None:
        return None if formula.intercept else "an ordinal outcome has thresholds for intercepts; remove `0 +` or `- 1`"

    def outcome_column(self, raw: RawColumn, position: int) -> Column:
        if raw.levels is not None:
            return raw.category()
        if not raw.is_numeric:
            seen = raw.category().level_names
            listed = ", ".join(f'"{level}"' for level in seen)
            raise DataError(
                f"column '{raw.name}' has texts, and their order is not known; give the levels from low to high: "
                f'levels={{"{raw.name}": [...]}} with {listed}'
            )
        numbers = sorted({float(cell) for cell in raw.present if isinstance(cell, (int, float))})
        if len(numbers) > FEW_LEVELS:
            raise DataError(
                f"column '{raw.name}' has {len(numbers)} different numbers; ordinal regression is for few ordered "
                "levels. Use the family gaussian, or give the levels"
            )
        levels = tuple(as_text(number) for number in numbers)
        if len(levels) < 2:
            return raw.category()  # which says what is wrong
        return Category(name=raw.name, missing=raw.missing, levels=levels, reference=levels[0])

    def extra_scales(self, *, outcome_is_scaled: bool) -> Mapping[str, float]:
        return {GAP_KEY: LOG_GAP_SCALE}

    def predictors(self, outcome: tuple[Column, ...]) -> tuple[Predictor, ...]:
        names = self.thresholds(outcome)[1:]
        return Predictor(), *(Predictor(f"log_gap[{name[10:-1]}]", GAP_KEY) for name in names)

    def thresholds(self, outcome: tuple[Column, ...]) -> tuple[str, ...]:
        levels = outcome[0].level_names
        return tuple(f"threshold[{low}|{high}]" for low, high in pairwise(levels))

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        size = len(encoding.outcome[0].level_names)
        return OrdinalLogit(size) if self.link == links.LOGIT else OrdinalProbit(size)

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        return Curvature(None, "the thresholds are unknown")
