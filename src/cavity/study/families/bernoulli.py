"""Yes or no: logistic regression, and others by their link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cavity.core import Likelihood
from cavity.errors import DataError
from cavity.study.columns import Boolean, Category, Column, Integer
from cavity.study.encoding import FormulaEncoding
from cavity.study.families import links
from cavity.study.families.family import Curvature
from cavity.study.families.regression_family import RegressionFamily
from cavity.study.guessing import RawColumn
from cavity.study.sections import Section

MANY = 5  # different numbers; fewer are shown with their rows


@dataclass(frozen=True)
class Bernoulli(RegressionFamily):
    """P(y = 1) = F(x . beta).

    Attributes:
        link: "logit", F(f) = 1 / (1 + exp(-f)); "probit", the normal distribution function; or "cloglog",
            F(f) = 1 - exp(-exp(f)).
    """

    link: str = links.LOGIT

    name: ClassVar[str] = "bernoulli"
    aliases: ClassVar[tuple[str, ...]] = ("logistic",)
    title: ClassVar[str] = "logistic regression"
    is_binary: ClassVar[bool] = True
    ratio: ClassVar[str | None] = "odds ratio"
    draft_model: ClassVar[str] = '# link = "probit"  # or "cloglog"; without it "logit"\n'

    def __post_init__(self) -> None:
        links.check_link(self.link)

    @classmethod
    def read(cls, section: Section) -> Bernoulli:
        return cls(links.read_link(section))

    @classmethod
    def recognises(cls, column: Column, num_levels: int) -> bool:
        return column.type_name == "boolean" or (column.type_name == "category" and num_levels == 2)

    @classmethod
    def draft_column(cls, column: Column) -> Column:
        return Category(name=column.name, levels=(), reference="") if column.is_numeric else column

    @property
    def description(self) -> str:
        return links.TITLES[self.link]

    @property
    def coefficient_ratio(self) -> str | None:
        return links.RATIOS[self.link]

    def outcome_problem(self, outcome: tuple[Column, ...]) -> str | None:
        match outcome[0]:
            case Boolean() | Integer(range=(0.0, 1.0)):
                return None
            case Category(level_names=(_, _)):
                return None
        return (
            f"the outcome of {self.description} is boolean, a category of two levels, or 0 and 1; a column that is "
            "coded 1 and 2 is a category with levels = [1, 2]; for more levels use categorical or ordinal"
        )

    def outcome_column(self, raw: RawColumn, position: int) -> Column:
        if raw.levels is None and raw.is_numeric:
            if set(raw.present) == {1, 2}:
                raise DataError(
                    f"column '{raw.name}' is coded 1 and 2; code it as 0 and 1, or give its levels, the first of which "
                    f'means 0: levels={{"{raw.name}": ["1", "2"]}}'
                )
            if len(set(raw.present) - {0, 1}) > MANY:
                raise DataError(
                    f"column '{raw.name}' has many numbers other than 0 and 1, so it is no outcome of "
                    f'{self.description}; choose another family, such as family="gaussian"'
                )
            return Integer(name=raw.name, missing=raw.missing, range=(0.0, 1.0))
        return raw.category()

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        return links.trial_likelihood(self.link)

    @property
    def is_log_concave(self) -> bool:
        return True

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        return Curvature(links.LARGEST_CURVATURE.get(self.link), links.NO_CURVATURE_BOUND)
