"""The prior of a regression in study files and `cavity.regression`: what may be chosen, and the default scales.

Models that are built in Python (`cavity.models.logistic_regression`) have a default of their own, the argument
`prior_scale` in `cavity.models.glm.regression`: they do not know the scales of the data.

The priors are on scaled columns and, for families that scale the outcome (gaussian), on a scaled outcome, as in
rstanarm and bambi. With m and s for mean and standard deviation,

    intercept ~ N(m_y, (2.5 s_y)^2),     slope ~ N(0, (2.5 s_y / s_x)^2),     log noise ~ N(log s_y, 2.5^2)

where the intercept is the value at the means of all columns. Log odds and log rates have a scale of their own: a slope
is N(0, 2.5^2) per standard deviation of a number and per level (Gelman et al., 2008), an intercept N(0, 10^2), which
covers rates from exp(-20) to exp(20).

Standard deviations of effects that vary between groups are half-normal, as in bambi, with the scale that the prior of
the fixed effect would have: 2.5 s_y for an intercept and 2.5 s_y / s_x for a slope, without s_y for log odds and log
rates, and there per level of a category. With `sd_df` they are half-t. Correlations are LKJ(2).
"""

from __future__ import annotations

from dataclasses import dataclass

SLOPE_SCALE = 2.5
INTERCEPT_SCALE = 10.0  # of log odds and log rates
SCALED_INTERCEPT_SCALE = 2.5  # of a scaled outcome
SD_SCALE = 2.5
CORRELATION_ETA = 2.0


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
    """Normal priors around zero for the coefficients, on scaled columns and a scaled outcome where these are scaled.

    Attributes:
        scale: the standard deviation for every slope.
        intercept_scale: that of intercepts, which are the values at the centres of the columns.
        extra: that of parameters beside the coefficients, by the key of the family (`log_noise_scale`).
        scales: that of single coefficients, by name.
        group: for formulas with group terms; None for all others.
    """

    scale: float
    intercept_scale: float
    extra: tuple[tuple[str, float], ...] = ()
    scales: tuple[tuple[str, float], ...] = ()
    group: GroupPriorChoice | None = None
