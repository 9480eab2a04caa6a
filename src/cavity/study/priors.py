r"""The prior of a regression in study files and `cavity.regression`: what may be chosen, and the default scales.

Models that are built in Python (`cavity.models.logistic_regression`) have a default of their own, the argument
`prior_scale` in `cavity.models.glm.regression`: they do not know the scales of the data.

The priors are on scaled columns and, for families that scale the outcome (gaussian), on a scaled outcome, as in
rstanarm and bambi. With m and s for mean and standard deviation,

    intercept ~ N(m_y, (2.5 s_y)^2),     slope ~ N(0, (2.5 s_y / s_x)^2),     log noise ~ N(log s_y, 2.5^2)

where the intercept is the value at the means of all columns. Log odds and log rates have a scale of their own: a slope
is N(0, 2.5^2) per standard deviation of a number and per level (Gelman et al., 2008), an intercept N(0, 10^2), which
covers rates from exp(-20) to exp(20).

The prior of slopes is normal unless the study chooses another family, for all of them or for single ones:

| family | density of slope / scale | default scale |
| --- | --- | --- |
| normal | N(0, 1) | 2.5 |
| student-t | t with `df` degrees of freedom, 3 by default | 2.5 |
| laplace | exp(-\|b\|) / 2 | 2.5 |
| horseshoe | N(0, (local tau)^2), local and tau half-Cauchy, one tau for all such slopes | 1 |

Standard deviations of effects that vary between groups are half-normal, as in bambi, with the scale that the prior of
the fixed effect would have: 2.5 s_y for an intercept and 2.5 s_y / s_x for a slope, without s_y for log odds and log
rates, and there per level of a category. With `sd_df` they are half-t. Correlations are LKJ(2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cavity.errors import StudyError

SLOPE_SCALE = 2.5
INTERCEPT_SCALE = 10.0  # of log odds and log rates
SCALED_INTERCEPT_SCALE = 2.5  # of a scaled outcome
SD_SCALE = 2.5
CORRELATION_ETA = 2.0


NORMAL, STUDENT_T, LAPLACE, HORSESHOE = "normal", "student-t", "laplace", "horseshoe"
PRIOR_FAMILIES = (NORMAL, STUDENT_T, LAPLACE, HORSESHOE)
PRIOR_DF = 3.0
HORSESHOE_SCALE = 1.0


@dataclass(frozen=True)
class SlopePrior:
    """The prior of one slope.

    Attributes:
        family: "normal", "student-t", "laplace" or "horseshoe".
        scale: per unit of the scaled predictor or per level; None is the scale of all slopes, or the default of the
            family if it is another.
        df: degrees of freedom of a student-t prior; None for others.
    """

    family: str = NORMAL
    scale: float | None = None
    df: float | None = None


@dataclass(frozen=True)
class GroupPriorChoice:
    """Priors of the standard deviations and correlations of effects that vary between groups.

    Attributes:
        sd_scale: the scale for every standard deviation: in sd(y) for a scaled outcome, per standard deviation of a
            number and per level.
        sd_df: degrees of freedom of a half-t prior; None is half-normal.
        correlation_eta: eta of LKJ.
        sd_scales: that of single standard deviations, by name (`1|ward`), per unit of the data, in sd(y) if the outcome
            is scaled.
    """

    sd_scale: float = SD_SCALE
    sd_df: float | None = None
    correlation_eta: float = CORRELATION_ETA
    sd_scales: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class PriorChoice:
    """Priors around zero for the coefficients, on scaled columns and a scaled outcome where these are scaled.

    Attributes:
        scale: of every slope; the standard deviation of a normal prior.
        intercept_scale: that of intercepts, which are the values at the centres of the columns.
        extra: that of parameters beside the coefficients, by the key of the family (`log_noise_scale`).
        scales: that of single coefficients, by name.
        group: for formulas with group terms; None for all others.
        family: of the prior of every slope.
        df: degrees of freedom of a student-t prior; None for others.
        priors: of single slopes, by name.
    """

    scale: float
    intercept_scale: float
    extra: tuple[tuple[str, float], ...] = ()
    scales: tuple[tuple[str, float], ...] = ()
    group: GroupPriorChoice | None = None
    family: str = NORMAL
    df: float | None = None
    priors: tuple[tuple[str, SlopePrior], ...] = ()

    @property
    def is_normal(self) -> bool:
        """Whether all priors are normal."""
        return {self.family, *(own.family for _, own in self.priors)} == {NORMAL}

    def of(self, name: str) -> SlopePrior:
        """The family and degrees of freedom of the prior of a slope, and its own scale if it has one."""
        own = dict(self.priors).get(name)
        if own is not None:
            return own
        return SlopePrior(self.family, dict(self.scales).get(name), self.df)


def default_scale(family: str, normal: float) -> float:
    """The scale of a prior if none is given.

    Args:
        family: of the prior.
        normal: the default of normal priors in the family of the outcome.
    """
    return HORSESHOE_SCALE if family == HORSESHOE else normal


def prior_problem(family: str, df: float | None) -> str | None:
    """What is wrong with a prior, or None."""
    if family not in PRIOR_FAMILIES:
        return f"unknown prior family {family!r}; choose one of: {', '.join(PRIOR_FAMILIES)}"
    if df is not None and family != STUDENT_T:
        return f"a {family} prior has no df; it is for student-t"
    return None


def slope_prior(name: str, given: Mapping[str, float | int | str]) -> SlopePrior:
    """The prior of one slope as it is given in Python. Raises StudyError.

    Args:
        name: of the slope.
        given: with the keys `family`, `scale` and `df`, or some of them.
    """
    if unknown := sorted(given.keys() - {"family", "scale", "df"}):
        raise StudyError(f"the prior of '{name}' has no key {unknown[0]!r}; it may have family, scale and df")
    numbers = {}
    for key in ("scale", "df"):
        value = given.get(key)
        if value is not None and (isinstance(value, str) or not value > 0):
            raise StudyError(f"the {key} of the prior of '{name}' must be a positive number, not {value!r}")
        numbers[key] = None if value is None else float(value)
    return SlopePrior(str(given.get("family", NORMAL)), **numbers)
