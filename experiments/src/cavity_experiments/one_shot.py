"""Combinations of sites' own logistic regressions in one exchange, to put beside a federated fit.

| method | combination of the modes m_l and precisions A_l of L sites, with the prior N(0, I / p) at each |
| --- | --- |
| BFI (Jonker et al., 2024) | A = sum A_l - (L - 1) p I, mean A^-1 sum A_l m_l: a product of Gaussians, with one prior |
| meta-analysis | each coefficient by itself, weighted by the inverse of its variance |

Both replace a site's likelihood by a Gaussian around its own mode, where it is skewed if the site is small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Columns = Mapping[str, np.ndarray]
LONGEST = 2.0  # of a step of Newton's method, in a coefficient
STEPS = 200


def standardised(frames: Mapping[str, Columns], names: Sequence[str]) -> dict[str, dict[str, np.ndarray]]:
    """The columns, some of them scaled by the pooled mean and standard deviation (with divisor n - 1, as in R)."""
    pooled = {name: np.concatenate([own[name] for own in frames.values()]) for name in names}
    return {
        client: {n: (c - pooled[n].mean()) / pooled[n].std(ddof=1) if n in names else c for n, c in own.items()}
        for client, own in frames.items()
    }


def design(columns: Columns, predictors: Sequence[str], outcome: str) -> tuple[np.ndarray, np.ndarray]:
    """X with its column of ones, and y."""
    y = np.asarray(columns[outcome], float)
    return np.column_stack([np.ones(len(y)), *(columns[name] for name in predictors)]), y


def mode(x: np.ndarray, y: np.ndarray, precision: float) -> tuple[np.ndarray, np.ndarray]:
    """The mode of a logistic regression with the prior N(0, I / precision), and minus the Hessian there.

    Args:
        x: with its column of ones.
        y: 0 or 1.
        precision: of the prior.
    """
    theta, prior = np.zeros(x.shape[1]), precision * np.eye(x.shape[1])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-x @ theta))
        step = np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + prior, x.T @ (y - p) - precision * theta)
        theta = theta + step / max(1.0, np.abs(step).max() / LONGEST)
    p = 1 / (1 + np.exp(-x @ theta))
    return theta, (x * (p * (1 - p))[:, None]).T @ x + prior


def compare(rows: Mapping[str, tuple[np.ndarray, np.ndarray]], precision: float) -> dict[str, np.ndarray]:
    """How far each combination is from the mode of all rows, per coefficient, in posterior sds of the latter.

    Args:
        rows: x and y of each site.
        precision: of the prior.
    """
    x, y = (np.concatenate(parts) for parts in zip(*rows.values(), strict=True))
    pooled, information = mode(x, y, precision)
    sd = np.sqrt(np.diag(np.linalg.inv(information)))
    own = [mode(*each, precision) for each in rows.values()]
    together = sum(a for _, a in own) - (len(own) - 1) * precision * np.eye(x.shape[1])
    bfi = np.linalg.solve(together, sum(a @ m for m, a in own))
    weights = np.stack([1 / np.diag(np.linalg.inv(a)) for _, a in own])
    meta = np.sum(weights * np.stack([m for m, _ in own]), axis=0) / weights.sum(axis=0)
    return {"BFI": (bfi - pooled) / sd, "meta-analysis": (meta - pooled) / sd}
