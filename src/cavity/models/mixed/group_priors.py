"""Priors of the standard deviations and correlations of group effects, on the scale that the model computes on.

**Standard deviations** are computed as v = log s. With s half-normal or half-t of scale A,

    log p(v) = log 2 + log N(s; 0, A^2) + v         or         log 2 + log t_df(s / A) - log A + v

**Correlations** of K effects are LKJ(eta), density proportional to det(C)^(eta - 1) (Lewandowski, Kurowicka and Joe,
2009). They are computed as v = atanh(w) of the partial correlations w_ij, i > j, which are independent under this
prior: (w_ij + 1) / 2 ~ Beta(b_j, b_j) with b_j = eta + (K - 2 - j) / 2, j from 0. Then

    log p(v) = b log(1 - w^2) - (2 b - 1) log 2 - log B(b, b)

and C = L L' with L_i0 = w_i0, L_ij = w_ij sqrt(prod over k < j of (1 - w_ik^2)), and on the diagonal the square root
of the whole product.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln, digamma, gammaln, polygamma
from jaxtyping import Array, Float

LOG_2 = math.log(2.0)
LOG_2PI = math.log(2.0 * math.pi)


def num_correlations(size: int) -> int:
    """How many correlations `size` effects have."""
    return size * (size - 1) // 2


def log_sd_density(
    v: Float[Array, " l"], scale: Float[Array, " l"], df: Float[Array, ""] | None = None
) -> Float[Array, " l"]:
    """Log p(v) of v = log s, for s half-normal, or half-t with `df` degrees of freedom.

    Args:
        v: logs of standard deviations.
        scale: of the priors.
        df: None is half-normal.
    """
    z = v - jnp.log(scale)  # s / A = e^z
    if df is None:
        return LOG_2 - 0.5 * LOG_2PI - 0.5 * jnp.exp(2.0 * z) + z
    constant = gammaln(0.5 * (df + 1.0)) - gammaln(0.5 * df) - 0.5 * jnp.log(df * jnp.pi)
    # log(1 + e^(2z) / df), without overflow
    return LOG_2 + constant - 0.5 * (df + 1.0) * jnp.logaddexp(0.0, 2.0 * z - jnp.log(df)) + z


def log_sd_moments(
    scale: Float[Array, " l"], df: Float[Array, ""] | None = None
) -> tuple[Float[Array, " l"], Float[Array, " l"]]:
    """Mean and standard deviation of v = log s under its prior; arguments as in `log_sd_density`."""
    mean = 0.5 * (digamma(0.5) + LOG_2)  # of log |N(0, 1)|
    variance = 0.25 * polygamma(1, 0.5)
    if df is not None:
        mean = mean - 0.5 * (digamma(0.5 * df) + LOG_2 - jnp.log(df))
        variance = variance + 0.25 * polygamma(1, 0.5 * df)
    return jnp.log(scale) + mean, jnp.broadcast_to(jnp.sqrt(variance), jnp.shape(scale))


def _shapes(size: int, eta: Float[Array, ""]) -> Float[Array, " c"]:
    """b_j of each partial correlation, row by row below the diagonal."""
    columns = np.concatenate([np.arange(i) for i in range(size)]) if size > 1 else np.zeros(0)
    return eta + (size - 2 - columns) / 2


def log_lkj_density(v: Float[Array, " c"], size: int, eta: Float[Array, ""]) -> Float[Array, ""]:
    """Log p(v) of the partial correlations of `size` effects, v = atanh(w), under LKJ(eta).

    Args:
        v: row by row below the diagonal.
        size: K.
        eta: 1 is uniform over correlation matrices; larger values prefer small correlations.
    """
    b = _shapes(size, eta)
    # log(1 - tanh(v)^2) = 2 log 2 - 2 v - 2 log(1 + e^(-2 v)), without overflow
    log_one_minus_square = 2.0 * (LOG_2 - jnp.logaddexp(v, -v))
    return jnp.sum(b * log_one_minus_square - (2.0 * b - 1.0) * LOG_2 - betaln(b, b))


def lkj_sd(size: int, eta: Float[Array, ""]) -> Float[Array, " c"]:
    """The standard deviation of each v under LKJ(eta); the mean is 0."""
    return jnp.sqrt(0.5 * polygamma(1, _shapes(size, eta)))


def correlation_root(v: Float[Array, " c"], size: int) -> Float[Array, "k k"]:
    """L, the lower Cholesky root of the correlation matrix.

    Args:
        v: atanh of the partial correlations, row by row below the diagonal.
        size: K.
    """
    rows, start = [], 0
    for i in range(size):
        w = jnp.tanh(v[start : start + i])
        # sqrt(1 - tanh(v)^2) = 1 / cosh(v); the product over the columns before each one
        left = jnp.concatenate([jnp.ones(1, v.dtype), jnp.cumprod(1.0 / jnp.cosh(v[start : start + i]))])
        rows.append(jnp.concatenate([w * left[:i], left[i:], jnp.zeros(size - 1 - i, v.dtype)]))
        start += i
    return jnp.stack(rows)
