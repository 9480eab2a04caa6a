"""Numbers with normal noise: linear regression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cavity.core import Likelihood
from cavity.errors import StudyError
from cavity.likelihoods import GaussianNoise, GaussianUnknownNoise
from cavity.study.columns import Column, Number
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Curvature
from cavity.study.families.regression_family import Predictor, RegressionFamily
from cavity.study.guessing import RawColumn
from cavity.study.priors import SCALED_INTERCEPT_SCALE
from cavity.study.sections import Section

LOG_NOISE_SCALE = 2.5
WIDE_LOG_NOISE_SCALE = 10.0  # of an outcome that is not scaled
NOISE_FLOOR = 3e-4  # sd(y): the least noise; otherwise a client whose outcomes are all equal would pull it to 0
NOISE_KEY = "log_noise_scale"


@dataclass(frozen=True)
class Gaussian(RegressionFamily):
    """y ~ N(x . beta, noise_sd^2).

    Attributes:
        noise_sd: the standard deviation of the noise; None estimates it.
    """

    noise_sd: float | None = None

    name: ClassVar[str] = "gaussian"
    aliases: ClassVar[tuple[str, ...]] = ("linear",)
    title: ClassVar[str] = "linear regression"
    scales_outcome: ClassVar[bool] = True
    intercept_scale: ClassVar[float] = SCALED_INTERCEPT_SCALE
    same_sums_everywhere: ClassVar[bool] = True
    draft_model: ClassVar[str] = (
        "# noise_sd = 1.0  # if it is known; without it the noise is estimated\n"
        '# for positive amounts such as costs: family = "gamma"; with outliers: family = "student-t"\n'
    )

    def __post_init__(self) -> None:
        if self.noise_sd is not None and not self.noise_sd > 0:
            raise StudyError(f"noise_sd must be positive, not {self.noise_sd} (leave it out to estimate it)")

    @classmethod
    def read(cls, section: Section) -> Gaussian:
        return cls(section.positive("noise_sd", None))

    @classmethod
    def recognises(cls, column: Column, num_levels: int) -> bool:
        return column.type_name == "number"

    def outcome_problem(self, outcome: tuple[Column, ...]) -> str | None:
        return None if outcome[0].is_numeric else "the outcome of linear regression is a number"

    def outcome_column(self, raw: RawColumn, position: int) -> Column:
        return Number(name=raw.name, missing=raw.missing)

    def extra_scales(self, *, outcome_is_scaled: bool) -> Mapping[str, float]:
        if self.noise_sd is not None:
            return {}
        return {NOISE_KEY: LOG_NOISE_SCALE if outcome_is_scaled else WIDE_LOG_NOISE_SCALE}

    def predictors(self, outcome: tuple[Column, ...]) -> tuple[Predictor, ...]:
        noise = Predictor("log_noise_sd", NOISE_KEY, "sigma", reports_log=True, in_outcome_units=True)
        return (Predictor(),) if self.noise_sd is not None else (Predictor(), noise)

    def likelihood(self, encoding: FormulaEncoding) -> Likelihood:
        if self.noise_sd is not None:
            return GaussianNoise(self.noise_sd / encoding.outcome_units[1])
        if encoding.scaling.outcome is None:
            return GaussianUnknownNoise()
        # without an intercept the outcome is in units of its size, which may be many times its spread
        return GaussianUnknownNoise(NOISE_FLOOR if encoding.design.intercept else NOISE_FLOOR / 100)

    @property
    def is_log_concave(self) -> bool:
        return self.noise_sd is not None

    def curvature(self, outcome: tuple[Column, ...], outcome_scale: float) -> Curvature:
        if self.noise_sd is None:
            return Curvature(None, "the noise is unknown")
        return Curvature((outcome_scale / self.noise_sd) ** 2)
