"""The 2-Wasserstein barycentre of Gaussians: an average of their information, whereas a product adds it up.

    argmin over q of sum_j w_j W2(q, q_j)^2,    q_j = N(m_j, Sigma_j)

It is the Gaussian with mean sum_j w_j m_j whose covariance S solves (Agueh and Carlier 2011)

    S = sum_j w_j (S^1/2 Sigma_j S^1/2)^1/2

For diagonal covariances S^1/2 = sum_j w_j Sigma_j^1/2. For others it is the limit of the iteration (Alvarez-Esteban,
del Barrio, Cuesta-Albertos and Matran 2016, "A fixed-point approach to barycenters in Wasserstein space")

    S <- S^-1/2 (sum_j w_j (S^1/2 Sigma_j S^1/2)^1/2)^2 S^-1/2

from any positive definite start. It is computed on roots, S = L L' and Sigma_j = R_j R_j', for which it reads

    L <- sum_j w_j R_j U_j,    U_j the orthogonal factor of R_j' L = U_j (L' Sigma_j L)^1/2

because L^-T (L' Sigma_j L)^1/2 = L^-T (R_j' L)' U_j = R_j U_j. So each root is rotated to align with the current one,
and the average is taken. No covariance is formed and nothing is inverted, which would cost the digits of the narrow
directions.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from cavity.core.fields import is_traced
from cavity.distributions.natural import ArrayLike

MAX_STEPS = 1000
_SUM_TOLERANCE = 1e-5  # of weights computed in single precision


def diagonal_barycentre(
    means: Float[ArrayLike, "j d"], scales: Float[ArrayLike, "j d"], weights: Float[ArrayLike, " j"] | None = None
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """The barycentre of Gaussians without correlations: the average mean and the average standard deviation.

    Args:
        means: Shape [j, d].
        scales: Standard deviations, shape [j, d]. A negative one gives NaN.
        weights: Non-negative and of sum 1, shape [j]; equal if None. Others are a ValueError, or NaN inside `jit`,
            where values cannot be looked at.

    Returns:
        The mean and the standard deviations of the barycentre, each of shape [d].

    Example:
        >>> means, scales = np.array([[0.0, 2.0], [4.0, 2.0]]), np.array([[1.0, 1.0], [3.0, 1.0]])
        >>> mean, scale = diagonal_barycentre(means, scales, np.array([0.75, 0.25]))
        >>> mean.tolist(), scale.tolist()
        ([1.0, 2.0], [1.5, 1.0])
    """
    means, scales, weights = _checked(means, scales, weights)
    return weights @ means, weights @ jnp.where(scales < 0, jnp.nan, scales)


def full_barycentre(
    means: Float[ArrayLike, "j d"], roots: Float[ArrayLike, "j d d"], weights: Float[ArrayLike, " j"] | None = None
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """The barycentre of Gaussians with full covariances, by the fixed-point iteration of the module's docstring.

    It ends when no row of L moves by more than eps^(3/4) of its length (2e-12 in double precision). The root is NaN if
    `MAX_STEPS` steps do not get there. At least one covariance of positive weight must be positive definite. There is
    no reverse-mode derivative.

    Args:
        means: Shape [j, d].
        roots: Lower-triangular Cholesky factors of the covariances, shape [j, d, d]. What is above the diagonal must
            be zero: it is read.
        weights: Non-negative and of sum 1, shape [j]; equal if None. Others are a ValueError, or NaN inside `jit`,
            where values cannot be looked at.

    Returns:
        The mean, shape [d], and the lower-triangular Cholesky factor of the covariance, shape [d, d].

    Example:
        >>> roots = np.array([[[1.0, 0.0], [0.0, 2.0]], [[3.0, 0.0], [0.0, 4.0]]])
        >>> mean, root = full_barycentre(np.zeros((2, 2)), roots)
        >>> np.round(np.diag(root), 6).tolist()
        [2.0, 3.0]
    """
    means, roots, weights = _checked(means, roots, weights)
    return weights @ means, _fixed_point(roots, weights)


class _Iterate(NamedTuple):
    """L, the largest move of a row in units of its length, and how many steps there were."""

    root: Float[Array, "d d"]
    moved: Float[Array, ""]
    steps: Int[Array, ""]


@jax.jit
def _fixed_point(roots: Float[Array, "j d d"], weights: Float[Array, " j"]) -> Float[Array, "d d"]:
    dtype = roots.dtype
    tolerance = float(jnp.finfo(dtype).eps) ** 0.75
    # From the widest coordinate to the narrowest R_j' L is graded, and its SVD accurate in each coordinate's units.
    order = jnp.argsort(-jnp.einsum("j,jik,jik->i", weights, roots, roots))
    roots = _triangular(roots[:, order])

    def unfinished(iterate: _Iterate) -> Bool[Array, ""]:
        return (iterate.moved > tolerance) & (iterate.steps < MAX_STEPS)

    def step(iterate: _Iterate) -> _Iterate:
        facing = roots @ _orthogonal_factor(jnp.matrix_transpose(roots) @ iterate.root)
        root = jnp.tensordot(weights, facing, 1)
        length = jnp.linalg.norm(root, axis=1)
        moves = jnp.linalg.norm(root - iterate.root, axis=1) / jnp.where(length == 0, 1, length)
        return _Iterate(_triangular(root), jnp.max(moves), iterate.steps + 1)

    # Where scales are orders of magnitude apart this is nearly the answer: the optimal maps become triangular.
    start = _Iterate(jnp.tensordot(weights, roots, 1), jnp.asarray(jnp.inf, dtype), jnp.asarray(0))
    last = jax.lax.while_loop(unfinished, step, start)
    root = _triangular(last.root[jnp.argsort(order)])
    return jnp.where(last.moved <= tolerance, root, jnp.nan)


def _orthogonal_factor(matrix: Float[Array, "*j d d"]) -> Float[Array, "*j d d"]:
    """U of the polar decomposition U (A'A)^1/2. By QR iteration: divide and conquer ignores the grading."""
    left, _, right = jax.lax.linalg.svd(matrix, full_matrices=False, algorithm=jax.lax.linalg.SvdAlgorithm.QR)
    return left @ right


def _triangular(root: Float[Array, "*j d d"]) -> Float[Array, "*j d d"]:
    """The lower-triangular L with non-negative diagonal and L L' = root root'."""
    upper = jnp.linalg.qr(jnp.matrix_transpose(root), mode="r")
    sign = jnp.where(jnp.diagonal(upper, axis1=-2, axis2=-1) < 0, -1, 1)
    return jnp.matrix_transpose(upper) * sign[..., None, :]


def _checked(means: ArrayLike, spreads: ArrayLike, weights: ArrayLike | None) -> tuple[Array, Array, Array]:
    """Arrays of one type, and weights that are NaN if they are traced and bad, or a ValueError about what is wrong."""
    if means.ndim != 2 or len(means) == 0 or spreads.shape != (means.shape + means.shape[1:])[: spreads.ndim]:
        raise ValueError(
            f"means [j, d] and scales [j, d] or roots [j, d, d] are needed; shapes are {means.shape}, {spreads.shape}"
        )
    num_gaussians, dtype = len(means), jnp.result_type(means, spreads)
    if weights is None:
        weights = jnp.full(num_gaussians, 1 / num_gaussians, dtype)
    if weights.shape != (num_gaussians,):
        raise ValueError(f"there must be one weight for each of {num_gaussians} Gaussians; shape is {weights.shape}")
    if not is_traced(weights) and not _are_weights(weights):
        raise ValueError(f"weights must be non-negative and sum to 1; they are {np.asarray(weights).tolist()}")
    weights = jnp.where(_are_weights(weights), weights, jnp.nan)
    return jnp.asarray(means, dtype), jnp.asarray(spreads, dtype), weights.astype(dtype)


def _are_weights(weights: ArrayLike) -> Bool[Array, ""]:
    return jnp.all(weights >= 0) & (jnp.abs(jnp.sum(weights) - 1) <= _SUM_TOLERANCE)
