"""The scales of priors where a study does not give them.

The priors are on scaled columns and, in linear regression, on a scaled outcome, as in rstanarm and bambi: with m and s
for mean and standard deviation,

    intercept ~ N(m_y, (2.5 s_y)^2),     slope ~ N(0, (2.5 s_y / s_x)^2),     log noise ~ N(log s_y, 2.5^2)

where the intercept is the value at the means of all columns. Log odds and log rates have a scale of their own: a slope
is N(0, 2.5^2) per standard deviation of a number and per level (Gelman et al., 2008), an intercept N(0, 10^2), which
holds rates from exp(-20) to exp(20).
"""

from __future__ import annotations

SLOPE_SCALE = 2.5
INTERCEPT_SCALE, LINEAR_INTERCEPT_SCALE = 10.0, 2.5
LOG_NOISE_SCALE = 2.5
NOISE_FLOOR = 3e-4  # sd(y): noise in any case, else a client whose outcomes are all alike would collapse the noise
WIDE_LOG_NOISE_SCALE = 10.0  # of an outcome that is not scaled


def intercept_scale(kind: str | None) -> float:
    """The standard deviation of an intercept's prior."""
    return LINEAR_INTERCEPT_SCALE if kind == "linear" else INTERCEPT_SCALE
