"""Numbers with heavy tails: regression that a few outliers hardly change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cavity.core import Likelihood
from cavity.errors import StudyError
from cavity.likelihoods import StudentTUnknownScale
from cavity.study.columns import Column, Number
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Curvature
from cavity.study.families.gaussian import LOG_NOISE_SCALE, NOISE_FLOOR, WIDE_LOG_NOISE_SCALE
from cavity.study.families.regression_family import Predictor, RegressionFamily
from cavity.study.guessing import RawColumn
from cavity.study.priors import SCALED_INTERCEPT_SCALE
from cavity.study.sections import Section

DEFAULT_DF = 4.0
LEARNED = "learned"
SCALE_KEY, DF_KEY = "log_sigma_scale", "log_df_scale"
LOG_DF_MEAN, LOG_DF_SCALE = 2.73, 0.8  # mean and sd of the log of a gamma(2, 0.1) variable, the prior of brms


@dataclass(frozen=True)
class StudentT(RegressionFamily):
    """y = x . beta + sigma t, with t of `df` degrees of freedom and an unknown scale sigma.

    Attributes:
        df: the degrees of freedom, or "learned" to estimate them.
    """

    df: float | int | str = DEFAULT_DF

    name: ClassVar[str] = "student-t"
    aliases: ClassVar[tuple[str, ...]] = ("student_t",)
    title: ClassVar[str] = "Student t regression"
    scales_outcome: ClassVar[bool] = True
    intercept_scale: ClassVar[float] = SCALED_INTERCEPT_SCALE
    draft_model: ClassVar[str] = '# df = "learned"  # or a number; without it 4\n'

    def __post_init__(self) -> None:
        match self.df:
            case "learned":
                return
            case int() | float() if self.df > 1:
                return
        raise StudyError(f'df is a number above 1 or "{LEARNED}", not {self.df!r}')

    @classmethod
    def read(cls, section: Section) -> StudentT:
        if section.is_text("df"):
            return cls(section.word("df", (LEARNED,), DEFAULT_DF))
        df = section.positive("df", DEFAULT_DF)
        if df <= 1:
            section.problem("df", "a t distribution has a mean with more than 1 degree of freedom")
            df = DEFAULT_DF
        return cls(df)

    @property
    def _known_df(self) -> float | None:
        return None if isinstance(self.df, str) else float(self.df)

    def outcome_problem(self, outcome: tuple[Column, ...]) -> str | None:
        return None if outcome[0].is_numeric else "the outcome of Student t regression is a number"

    def outcome_column(self, raw: RawColumn, position: int) -> Column:
        return Number(name=raw.name, missing=raw.missing)

    def extra_scales(self, *, outcome_is_scaled: bool) -> Mapping[str, float]:
        scale = {SCALE_KEY: LOG_NOISE_SCALE if outcome_is_scaled else WIDE_LOG_NOISE_SCALE}
        return scale if self._known_df is not None else scale | {DF_KEY: LOG_DF_SCALE}

    def predictors(self, outcome: tuple[Column, ...]) -> tuple[Predictor, ...]:
        scale = Predictor("log_sigma", SCALE_KEY, "sigma", in_outcome_units=True)
        if self._known_df is not None:
            return Predictor(), scale
        return Predictor(), scale, Predictor("log_df", DF_KEY, "df", prior_mean=LOG_DF_MEAN)

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        if encoding.scaling.outcome is None:
            return StudentTUnknownScale(self._known_df)
        # without an intercept the outcome is in units of its size, which may be many times its spread
        floor = NOISE_FLOOR if encoding.design.intercept else NOISE_FLOOR / 100
        return StudentTUnknownScale(self._known_df, floor)

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        return Curvature(None, "the scale of the noise is unknown")
