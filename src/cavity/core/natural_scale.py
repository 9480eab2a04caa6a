"""Parameters on the scale that people know, where the model computes with their logs.

    natural = A theta + B exp(theta),     theta ~ N(m, V) in the units of the data

A shape is exp(log_shape). The thresholds of ordered levels are sums of such terms. Means and covariances are exact:
with E = exp(m + diag(V) / 2), Cov(theta_i, e^theta_j) = V_ij E_j and Cov(e^theta_i, e^theta_j) = E_i E_j (e^V_ij - 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cavity.core.intervals import half_width, tails

DRAWS = 40_000  # for quantiles of sums of several terms


@dataclass(frozen=True)
class NaturalScale:
    """A map from the parameters of a model, in the units of the data, to those that are reported.

    Attributes:
        names: of what is reported.
        linear: A, one row per reported parameter.
        exponential: B.
        logs: the names of the parameters whose exponentials are reported.
    """

    names: tuple[str, ...]
    linear: Float[np.ndarray, "m d"]
    exponential: Float[np.ndarray, "m d"]
    logs: tuple[str, ...]

    def apply(self, theta: Float[np.ndarray, "*s d"]) -> Float[np.ndarray, "*s m"]:
        """The reported parameters at some values of the model's."""
        used = np.where((self.exponential != 0).any(axis=0), theta, 0.0)
        return theta @ self.linear.T + np.exp(used) @ self.exponential.T

    def moments(
        self, mean: Float[np.ndarray, " d"], covariance: Float[np.ndarray, "d d"]
    ) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m m"]]:
        """Mean and covariance of the reported parameters, for theta ~ N(mean, covariance)."""
        used = (self.exponential != 0).any(axis=0)
        expected = np.where(used, np.exp(np.where(used, mean + np.diagonal(covariance) / 2, 0.0)), 0.0)
        between = np.where(used[:, None] & used, covariance, 0.0)
        of_exponentials = np.outer(expected, expected) * np.expm1(between)
        crossed = self.linear @ (covariance * expected) @ self.exponential.T
        found = self.linear @ covariance @ self.linear.T + crossed + crossed.T
        found = found + self.exponential @ of_exponentials @ self.exponential.T
        return self.linear @ mean + self.exponential @ expected, found

    def interval(
        self, mean: Float[np.ndarray, " d"], covariance: Float[np.ndarray, "d d"], level: float
    ) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
        """Central intervals: exact for a parameter of one term, by draws for a sum of several."""
        sd = np.sqrt(np.diagonal(covariance))
        half = half_width(level)
        ends = []
        for sign in (-1.0, 1.0):
            at = self.apply(mean + sign * half * sd * np.eye(len(mean)))  # one parameter moved at a time
            still = self.apply(mean)
            ends.append(still + np.sum(at - still, axis=0))
        lower, upper = np.minimum(*ends), np.maximum(*ends)
        several = np.flatnonzero(((self.linear != 0) | (self.exponential != 0)).sum(axis=1) > 1)
        if len(several):
            noise = np.random.default_rng(0).standard_normal((DRAWS // 2, len(mean)))
            root = np.linalg.cholesky(covariance)
            draws = self.apply(mean + np.concatenate([noise, -noise]) @ root.T)[:, several]
            lower[several], upper[several] = np.quantile(draws, tails(level), axis=0)
        return lower, upper
