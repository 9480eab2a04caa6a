"""Sums over the eigenvalues of a symmetric matrix, with derivatives that are right for equal eigenvalues."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian

Spectral = Callable[[Float[Array, ""], Float[Array, " d"]], Float[Array, " d"]]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def spectral_sum(g: Spectral, parameter: Float[Array, ""], matrix: Float[Array, "d d"]) -> Float[Array, ""]:
    """Sum of g(parameter, r) over the eigenvalues r of a symmetric matrix.

    Its derivative is U g'(r) U', which needs no derivative of the eigenvectors U. These are not differentiable where
    eigenvalues are equal, as all are at q = p.
    """
    return jnp.sum(g(parameter, jnp.linalg.eigvalsh(matrix)))


@spectral_sum.defjvp
def _spectral_sum_jvp(g, primals, tangents):
    parameter, matrix = primals
    parameter_dot, matrix_dot = tangents
    r, u = jnp.linalg.eigh(matrix)
    value = jnp.sum(g(parameter, r))
    _, slope = jax.jvp(lambda r: g(parameter, r), (r,), (jnp.ones_like(r),))
    _, by_parameter = jax.jvp(lambda a: jnp.sum(g(a, r)), (parameter,), (parameter_dot,))
    return value, by_parameter + jnp.sum((u * slope) @ u.T * matrix_dot)


def precision_ratio(q: FullGaussian, p: Gaussian) -> Float[Array, "d d"]:
    """R = L^-1 Lambda_p L^-T with Lambda_q = L L': the identity where the precisions are equal."""
    chol = q.cholesky
    left = solve_triangular(chol, jnp.asarray(p.precision_matrix), lower=True)
    ratio = solve_triangular(chol, left.T, lower=True)
    return 0.5 * (ratio + ratio.T)
