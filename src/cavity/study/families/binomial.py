"""Successes out of a number of trials: `deaths | trials(patients) ~ age`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from cavity.core import Likelihood
from cavity.likelihoods import BinomialTrials
from cavity.study.columns import Column, Integer
from cavity.study.encoding import FormulaEncoding
from cavity.study.families import links
from cavity.study.families.family import Curvature
from cavity.study.families.regression_family import RegressionFamily
from cavity.study.guessing import RawColumn
from cavity.study.sections import Section


@dataclass(frozen=True)
class Binomial(RegressionFamily):
    """Each of n trials of a row succeeds with the probability F(x . beta).

    Attributes:
        link: "logit", "probit" or "cloglog", as in `Bernoulli`.
    """

    link: str = links.LOGIT

    name: ClassVar[str] = "binomial"
    title: ClassVar[str] = "binomial regression"
    ratio: ClassVar[str | None] = "odds ratio"
    draft_range: ClassVar[str | None] = "range = [0, inf]  # successes"
    outcome_function: ClassVar[str | None] = "trials"
    left_hint: ClassVar[str] = ": write `deaths | trials(patients) ~ ...`; for outcomes 0 and 1 use bernoulli"

    def __post_init__(self) -> None:
        links.check_link(self.link)

    @classmethod
    def read(cls, section: Section) -> Binomial:
        return cls(links.read_link(section))

    @classmethod
    def draft_left(cls, outcome: str) -> str:
        return f"{outcome} | trials(FILL_IN)"

    @property
    def description(self) -> str:
        return f"binomial {links.TITLES[self.link]}"

    @property
    def coefficient_ratio(self) -> str | None:
        return links.RATIOS[self.link]

    def outcome_problem(self, outcome: tuple[Column, ...]) -> str | None:
        if len(outcome) != 2:
            return "trials() takes two columns, as in `deaths | trials(patients)`"
        for column in outcome:
            match column:
                case Integer(range=(low, _)) if low >= 0:
                    continue
            return f"successes and trials are integers with a range from 0, such as [0, inf]; see '{column.name}'"
        return None

    def outcome_column(self, raw: RawColumn, position: int) -> Column:
        return Integer(name=raw.name, missing=raw.missing, range=(0.0, math.inf))

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        return BinomialTrials(links.trial_likelihood(self.link))

    @property
    def is_log_concave(self) -> bool:
        return True

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        of_trial, most = links.LARGEST_CURVATURE.get(self.link), (outcome[1].limits or (0.0, math.inf))[1]
        if of_trial is None:
            return Curvature(None, links.NO_CURVATURE_BOUND)
        if not math.isfinite(most):
            return Curvature(None, f"column '{outcome[1].name}' has no largest number of trials declared")
        return Curvature(of_trial * max(most, 1.0))
