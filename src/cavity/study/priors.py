"""The prior of a regression in study files and `cavity.regression`: what may be chosen, and the default scales.

Models that are built in Python (`cavity.models.logistic_regression`) have a default of their own, the argument
`prior_scale` in `cavity.models.glm.regression`: they do not know the scales of the data.

The priors are on scaled columns and, for families that scale the outcome (gaussian), on a scaled outcome, as in
rstanarm and bambi. With m and s for mean and standard deviation,

    intercept ~ N(m_y, (2.5 s_y)^2),     slope ~ N(0, (2.5 s_y / s_x)^2),     log noise ~ N(log s_y, 2.5^2)

where the intercept is the value at the means of all columns. Log odds and log rates have a scale of their own: a slope
is N(0, 2.5^2) per standard deviation of a number and per level (Gelman et al., 2008), an intercept N(0, 10^2), which
covers rates from exp(-20) to exp(20).
"""

from __future__ import annotations

from dataclasses import dataclass

SLOPE_SCALE = 2.5
INTERCEPT_SCALE = 10.0  # of log odds and log rates
SCALED_INTERCEPT_SCALE = 2.5  # of a scaled outcome


@dataclass(frozen=True)
class PriorChoice:
    """Normal priors around zero for the coefficients, on scaled columns and a scaled outcome where these are scaled.

    Attributes:
        scale: the standard deviation for every slope.
        intercept_scale: that of intercepts, which are the values at the centres of the columns.
        extra: that of parameters beside the coefficients, by the key of the family (`log_noise_scale`).
        scales: that of single coefficients, by name.
    """

    scale: float
    intercept_scale: float
    extra: tuple[tuple[str, float], ...] = ()
    scales: tuple[tuple[str, float], ...] = ()
