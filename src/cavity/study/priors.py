"""The scales of priors where a study does not give them."""

from __future__ import annotations

SLOPE_SCALE = 2.5  # of a log odds or log rate ratio (Gelman et al., 2008)
LINEAR_SLOPE_SCALE = 10.0  # in units of the outcome, so a study of any other size should give its own
INTERCEPT_SCALE = 10.0
LOG_NOISE_SCALE = 10.0


def slope_scale(kind: str | None) -> float:
    """The standard deviation of a slope's prior."""
    return LINEAR_SLOPE_SCALE if kind == "linear" else SLOPE_SCALE
