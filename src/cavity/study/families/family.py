"""The contract of an outcome family: all that a study has to know about the distribution of the outcome.

A new family is one file: a frozen dataclass whose fields are the settings that a study may agree on (`noise_sd`), with
the methods below, registered by `register_family`. Study files, `cavity.regression`, checks, drafts and the network's
bounds ask the family; none of them knows a family by name. A family whose model has linear predictors and a likelihood
of one row is a `RegressionFamily`, which needs fewer methods.

    [model]                               family = Family.read(section)
    family = "gaussian"        ->         Gaussian(noise_sd=2.0)
    noise_sd = 2.0
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cavity.core import LatentModel, Model
from cavity.distributions.gaussian import Gaussian
from cavity.errors import StudyError
from cavity.study.columns import Column
from cavity.study.encoding import FormulaEncoding
from cavity.study.formula import Formula
from cavity.study.guessing import RawColumn
from cavity.study.priors import INTERCEPT_SCALE, SLOPE_SCALE, PriorChoice
from cavity.study.sections import Section


@dataclass(frozen=True)
class Curvature:
    """A bound on the curvature of one row's log likelihood in its linear predictor.

    Attributes:
        bound: the largest value; None if there is no bound.
        reason: why there is none.
    """

    bound: float | None
    reason: str = ""


@dataclass(frozen=True)
class Family(abc.ABC):
    """A family of outcomes. The fields of a subclass are the keys that `[model]` has beside `family` and `formula`.

    Attributes:
        name: in study files and in Python.
        aliases: other names that mean the same.
        title: of the model, for messages ("logistic regression").
        outcome_function: the function on the left of the formula if the outcome has several columns (`Surv`); None for
            one column.
        left_hint: how to write the left side, at the end of a message that refuses it.
        scales_outcome: whether the outcome is scaled as numeric predictors are. The prior of a slope is then in
            standard deviations of the outcome per standard deviation of the column; otherwise per unit of the column.
        divides_outcome: whether the model computes with the outcome over its mean, as a log link allows. Then the unit
            of the outcome does not matter, and the intercept's prior is around the log of the mean.
        ratio: what exp(coefficient) is ("odds ratio"), or None.
        slope_scale: the default standard deviation of a slope's prior.
        intercept_scale: that of an intercept.
        is_binary: whether the outcome is 0 or 1, so that predictors may separate it.
        same_sums_everywhere: whether a client's factor does not depend on the posterior that it is asked about.
        needs_all_levels: whether every level of the outcome must occur at some client. Each client says which levels it
            has, and no counts.
        draft_model: lines for `[model]` in a draft of a study file.
        draft_range: the line for the outcome's range in a draft; None has none.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    title: ClassVar[str]
    outcome_function: ClassVar[str | None] = None
    left_hint: ClassVar[str] = ""
    scales_outcome: ClassVar[bool] = False
    divides_outcome: ClassVar[bool] = False
    ratio: ClassVar[str | None] = None
    slope_scale: ClassVar[float] = SLOPE_SCALE
    intercept_scale: ClassVar[float] = INTERCEPT_SCALE
    is_binary: ClassVar[bool] = False
    same_sums_everywhere: ClassVar[bool] = False
    needs_all_levels: ClassVar[bool] = False
    draft_model: ClassVar[str] = ""
    draft_range: ClassVar[str | None] = None

    @abc.abstractmethod
    def outcome_problem(self, outcome: tuple[Column, ...]) -> str | None:
        """Why these columns cannot be the outcome, or None.

        Args:
            outcome: the columns on the left of the formula; one, unless the family has an `outcome_function`.
        """

    def formula_problem(self, formula: Formula) -> str | None:
        """Why this formula cannot be one of the family, or None; its left side is checked already."""
        return None

    @abc.abstractmethod
    def outcome_column(self, raw: RawColumn, position: int) -> Column:
        """The type of an outcome's column, for data in Python that no study describes.

        Args:
            raw: the cells of all clients.
            position: of the column among those of the outcome.
        """

    @abc.abstractmethod
    def model(self, encoding: FormulaEncoding, prior: PriorChoice, covariance: type[Gaussian] | None) -> Model:
        """The model that all clients fit.

        Args:
            encoding: from a table to features and outcomes.
            prior: of its parameters.
            covariance: the form of the Gaussian posterior; None chooses by the number of coefficients.
        """

    def grouped_model(self, encoding: FormulaEncoding, prior: PriorChoice) -> LatentModel:
        """The model of a formula with group terms, `(1 | ward)`, whose effects stay at the clients. Raises StudyError.

        Args:
            encoding: from a table to features, outcomes and groups.
            prior: of its parameters.
        """
        raise StudyError(f"the family {self.name!r} cannot have group terms such as `(1 | ward)`")

    @classmethod
    def read(cls, section: Section) -> Family:
        """The family with the settings that `[model]` has; problems go to the section."""
        return cls()

    @classmethod
    def recognises(cls, column: Column, num_levels: int) -> bool:
        """Whether a draft of a study should choose this family for an outcome of this type.

        Args:
            column: as the cells of one file suggest it.
            num_levels: the number of different values in that file.
        """
        return False

    @classmethod
    def draft_left(cls, outcome: str) -> str:
        """The left side of the formula in a draft of a study, for this column of the outcome."""
        return outcome if cls.outcome_function is None else f"{cls.outcome_function}({outcome}, FILL_IN)"

    @classmethod
    def draft_column(cls, column: Column) -> Column:
        """The type of the outcome in a draft of a study, whose cells suggest this type."""
        return column

    @property
    def description(self) -> str:
        """The model with these settings, in a few words."""
        return self.title

    @property
    def coefficient_ratio(self) -> str | None:
        """What exp(coefficient) is with these settings, or None."""
        return self.ratio

    def extra_scales(self, *, outcome_is_scaled: bool) -> Mapping[str, float]:
        """Keys of `[prior]` for parameters beside the coefficients, with their default standard deviations."""
        return {}

    @property
    def is_log_concave(self) -> bool:
        """Whether every row's log likelihood is concave, so that factors are positive semidefinite."""
        return False

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        """The largest curvature of one row's log likelihood in its linear predictor.

        Args:
            outcome: the columns on the left of the formula.
            outcome_scale: the model computes with outcomes over this scale.
        """
        return Curvature(None, f"the curvature of the family '{self.name}' is not known")

    @property
    def has_intercept(self) -> bool:
        """Whether an intercept of the formula is a parameter; otherwise it only decides how categories are coded."""
        return True

    def num_blocks(self, outcome: tuple[Column, ...]) -> int:
        """The number of linear predictors that have an intercept and slopes of their own."""
        return 1
