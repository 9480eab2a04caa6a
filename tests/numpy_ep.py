"""Power EP row after row, in plain numpy and SciPy: nothing of the library is imported here.

Each row's tilted distribution in f = x . theta is integrated by SciPy; moments are matched in theta, and
the cavity is divided out in d x d matrices, as PVI prints it in Algorithms 2 and 4.
"""

from collections.abc import Callable

import numpy as np
from scipy.integrate import simpson

LogLikelihood = Callable[[np.ndarray, float], np.ndarray]


def tilted_moments(log_likelihood: LogLikelihood, y, mean: float, variance: float, alpha: float) -> tuple[float, float]:
    """Mean and variance of N(f; mean, variance) p(y | f)^alpha, by Simpson's rule where the density is not nothing."""

    def log_density(f):
        return alpha * log_likelihood(f, y) - 0.5 * (f - mean) ** 2 / variance

    grid = mean + np.sqrt(variance) * np.linspace(-15, 15, 3001)
    values = log_density(grid)
    alive = np.flatnonzero(values > values.max() - 40)
    f = np.linspace(grid[max(alive[0] - 1, 0)], grid[min(alive[-1] + 1, 3000)], 4001)
    density = np.exp(log_density(f) - values.max())
    total = simpson(density, x=f)
    first = simpson(f * density, x=f) / total
    return first, simpson((f - first) ** 2 * density, x=f) / total


def matched(log_likelihood, x, y, h, precision, alpha):
    """Natural parameters of the Gaussian with the moments of N(theta; h, precision) p(y | x . theta)^alpha."""
    covariance = np.linalg.inv(precision)
    mean, along = covariance @ h, covariance @ x
    m, v = x @ mean, x @ along
    new_m, new_v = tilted_moments(log_likelihood, y, m, v, alpha)
    # the rest of theta follows f linearly
    new_mean = mean + along * (new_m - m) / v
    new_precision = np.linalg.inv(covariance - np.outer(along, along) * (v - new_v) / v**2)
    new_precision = (new_precision + new_precision.T) / 2  # rounding would grow from sweep to sweep
    return new_precision @ new_mean, new_precision


def power_ep(log_likelihood, x, y, prior, alpha, weight=None, tied=False, num_sweeps=100, tolerance=1e-9):
    """Mean and covariance at the fixed point, from a prior (h, precision); one row after the other.

    A row of weight w is w rows with one factor each, or for w below 1 one row with the power w of the likelihood.
    """
    n, d = x.shape
    weight = np.ones(n) if weight is None else weight
    copies, power = np.maximum(weight, 1), np.minimum(weight, 1)
    shifts, precisions = np.zeros((n, d)), np.zeros((n, d, d))
    for _ in range(num_sweeps):
        before = shifts.copy(), precisions.copy()
        for i in range(n):
            h, precision = prior[0] + copies @ shifts, prior[1] + np.einsum("n,nde->de", copies, precisions)
            own = (shifts.mean(0), precisions.mean(0)) if tied else (shifts[i], precisions[i])
            cavity = h - alpha * own[0], precision - alpha * own[1]
            raised = lambda f, y, i=i: power[i] * log_likelihood(f, y)  # noqa: E731
            tilted = matched(raised, x[i], y[i], *cavity, alpha)
            # (tilted / cavity) ** (1 / alpha); with a tied factor, this row's share of the average is replaced
            shifts[i], precisions[i] = ((t - c) / alpha for t, c in zip(tilted, cavity, strict=True))
        change = max(np.abs(a - b).max() for a, b in zip(before, (shifts, precisions), strict=True))
        if change < tolerance:
            break
    covariance = np.linalg.inv(prior[1] + np.einsum("n,nde->de", copies, precisions))
    return covariance @ (prior[0] + copies @ shifts), covariance
