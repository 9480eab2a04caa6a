"""Whether predictors separate a binary outcome, so that no maximum-likelihood estimate exists.

Complete separation (Albert and Anderson, Biometrika 71, 1984, 1-10): some beta has (2 y_i - 1) x_i . beta > 0 in every
row. Then the likelihood grows without bound along beta, and the prior alone keeps a posterior finite. Newton's method
on the logistic likelihood goes in such a direction if there is one; the signs in every row prove that it is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from cavity.core import Data
from cavity.evaluation import psis
from cavity.likelihoods import BernoulliCloglog, BernoulliLogit, BernoulliProbit
from cavity.models.glm.regression import Regression

if TYPE_CHECKING:
    from cavity.fit.fit import Fit

MOST_STEPS = 40  # of Newton's method
RIDGE = 1e-10  # per row
FIRST_ROWS = 5_000  # rows that are tried first: if these are not separated, all rows are not
REMARK = (
    "the predictors separate the outcome: a linear combination of them has one sign where it is 1 and the other where "
    "it is 0, so the prior alone keeps the estimates finite. Leave out a predictor that follows from the outcome; if "
    "there is none, report that the size of the estimates depends on the prior"
)


def separating_direction(
    x: Float[np.ndarray, "n p"], y: Float[np.ndarray, " n"], *, intercept: bool = True
) -> Float[np.ndarray, " d"] | None:
    """Coefficients that separate the rows with outcome 1 from those with outcome 0, or None.

    Args:
        x: the predictors, without a column of ones.
        y: the outcomes, 0 or 1.
        intercept: whether the model has one.

    Returns:
        The intercept, if there is one, and slopes, of standardised predictors; None if no direction was
        found, or all outcomes are equal.
    """
    y = np.asarray(y, float)
    if len(np.unique(y)) < 2:
        return None
    z = x - np.mean(x, axis=0) if intercept else np.asarray(x)
    scale = np.sqrt(np.mean(z**2, axis=0))
    z = np.hstack([np.ones((len(x), int(intercept))), z / np.where(scale > 0, scale, 1.0)])
    signs = 2.0 * y - 1.0
    if len(z) > 2 * FIRST_ROWS:
        some = np.random.default_rng(0).choice(len(z), FIRST_ROWS, replace=False)
        first = _newton(z[some], signs[some])
        if len(np.unique(signs[some])) == 2 and first is None:
            return None
    return _newton(z, signs)


def separating_column(x: Float[np.ndarray, "n p"], y: Float[np.ndarray, " n"]) -> int | None:
    """The first column that separates the outcome on its own, or None.

    Args:
        x: the predictors, without a column of ones.
        y: the outcomes, 0 or 1, each at least once.
    """
    for column, values in enumerate(np.asarray(x).T):
        low, high = values[y == 0], values[y == 1]
        if low.max() < high.min() or high.max() < low.min():
            return column
    return None


def _newton(z: Float[np.ndarray, "n d"], signs: Float[np.ndarray, " n"]) -> Float[np.ndarray, " d"] | None:
    beta, ridge = np.zeros(z.shape[1]), RIDGE * len(z) * np.eye(z.shape[1])
    value = len(z) * np.log(2.0)
    for _ in range(MOST_STEPS):
        margin = signs * (z @ beta)
        if margin.min() > 0:
            return beta
        off = 1.0 / (1.0 + np.exp(np.clip(margin, -500, 500)))  # the probability of the other outcome
        gradient = z.T @ (signs * off) - ridge @ beta
        step = np.linalg.lstsq((z * (off * (1 - off))[:, None]).T @ z + ridge, gradient)[0]
        found = _loss(z, signs, beta + step, ridge)
        for _ in range(30):
            if found < value:
                break
            step = step / 2
            found = _loss(z, signs, beta + step, ridge)
        if value - found < 1e-9 * len(z):
            return None
        beta, value = beta + step, found
    return None


def _loss(
    z: Float[np.ndarray, "n d"],
    signs: Float[np.ndarray, " n"],
    beta: Float[np.ndarray, " d"],
    ridge: Float[np.ndarray, "d d"],
) -> float:
    return float(np.logaddexp(0.0, -signs * (z @ beta)).sum() + 0.5 * beta @ ridge @ beta)


def remark(fit: Fit) -> str | None:
    """What a summary says about separation; None where there is nothing to say, or it would take long.

    Args:
        fit: of a regression of a binary outcome, or of anything else.
    """
    model = fit.algorithm.model
    match model:
        case Regression(likelihood=BernoulliLogit() | BernoulliProbit() | BernoulliCloglog()) if (
            fit.clients is not None and fit.history
        ):
            population = fit.population("check for separation")
        case _:
            return None
    if not population.num_rows * len(model.parameter_names) ** 2 <= psis.AFFORDABLE:
        return None
    pairs = [_rows(data) for chunk in population.chunks() for data in chunk.values()]
    if any(pair is None for pair in pairs):
        return None
    x, y = (np.concatenate(parts) for parts in zip(*(pair for pair in pairs if pair is not None), strict=True))
    return None if separating_direction(x, y, intercept=model.intercept) is None else REMARK


def _rows(data: Data) -> tuple[np.ndarray, np.ndarray] | None:
    """The predictors and outcomes of rows with a weight; None if they are not such a pair."""
    match data.batch:
        case (x, y) if np.ndim(x) == 2 and np.ndim(y) == 1:
            kept = np.asarray(data.weight) > 0
            return np.asarray(x)[kept], np.asarray(y)[kept]
        case _:
            return None
