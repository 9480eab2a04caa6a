"""Errors of fitted means and standard deviations, from weighted draws.

Draws have weights w for the posterior p and v for the fitted q, each normalised to sum to one. The mean and sd of every
parameter under w are compared with those under v. The draws are the same, so most of the Monte Carlo error cancels, all
the more the closer q is to p. To first order the error of a difference of means in units of sd is the root of
sum_s d_s^2, d_s = w_s z_s - v_s u_s, where z_s and u_s are theta_s standardised under p and q. The error of the log of
a ratio of sds has (z_s^2 - 1) / 2 and (u_s^2 - 1) / 2 in their place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

LARGEST, SMALLEST = 1e30, 1e-300  # of distances in sds, whose squares are still finite; of an sd


@dataclass(frozen=True)
class MomentErrors:
    """Fitted against corrected moments of every parameter.

    Attributes:
        shift: (fitted - corrected mean) / corrected sd.
        ratio: fitted / corrected sd.
        shift_error: the Monte Carlo error of `shift`.
        ratio_error: the Monte Carlo error of log `ratio`.
    """

    shift: Float[np.ndarray, " d"]
    ratio: Float[np.ndarray, " d"]
    shift_error: Float[np.ndarray, " d"]
    ratio_error: Float[np.ndarray, " d"]

    @property
    def mean_error(self) -> float:
        """The largest error of a mean, in corrected sds."""
        return float(np.max(np.abs(self.shift)))

    @property
    def sd_error(self) -> float:
        """The largest relative error of an sd."""
        return float(np.max(np.abs(self.ratio - 1)))

    @property
    def monte_carlo_error(self) -> float:
        """The largest Monte Carlo error of either."""
        return float(max(np.max(self.shift_error), np.max(self.ratio_error)))


def moment_errors(
    theta: Float[np.ndarray, "s d"], log_p: Float[np.ndarray, " s"], log_q: Float[np.ndarray, " s"]
) -> MomentErrors:
    """Compare moments under weights proportional to exp(log_p) with those under exp(log_q).

    Args:
        theta: the draws.
        log_p: log weights of the posterior.
        log_q: log weights of the fitted distribution.

    Returns:
        The errors with their Monte Carlo errors.

    Example:
        >>> theta = np.linspace(-8, 8, 2001)[:, None]
        >>> found = moment_errors(theta, -((theta[:, 0] - 0.1) ** 2) / 8, -theta[:, 0] ** 2 / 2)
        >>> found.shift.round(3), found.ratio.round(2)
        (array([-0.05]), array([0.5]))
    """
    w, v = (np.exp(log - np.max(log)) for log in (log_p, log_q))
    w, v = w / w.sum(), v / v.sum()
    (mean, sd, z), (fitted_mean, fitted_sd, u) = (_standardised(theta, weights) for weights in (w, v))
    ratio = fitted_sd / sd
    w, v = w[:, None], v[:, None]
    return MomentErrors(
        shift=(fitted_mean - mean) / sd,
        ratio=ratio,
        shift_error=np.sqrt(np.sum((w * z - v * u * ratio) ** 2, axis=0)),
        ratio_error=np.sqrt(np.sum((w * (z**2 - 1) - v * (u**2 - 1)) ** 2, axis=0)) / 2,
    )


def _standardised(theta: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    centre = theta[np.argmax(weights)]  # near the mean, so that nothing cancels
    mean = weights @ (theta - centre)
    sd = np.sqrt(weights @ (theta - centre - mean) ** 2)
    away = theta - centre - mean
    sd = np.maximum(sd, np.max(np.abs(away), axis=0) / LARGEST + SMALLEST)  # 0 where one draw has all the weight
    return centre + mean, sd, away / sd
