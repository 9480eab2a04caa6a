"""The modes of units' latents given Z_G: Newton's method for all units of a client at once.

Units do not share latents, so the gradient and the Hessian of the sum of their log joint densities are those of each
unit. Matrices of one or two latents are written out, since a batch of small matrices is slow in LAPACK.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, PyTree

from cavity.core import Data, LatentModel

FIRST = 1e-3  # where the search starts: at 0 NumPyro's Binomial has a kink and a wrong gradient
MOST_STEPS = 60
DAMPING = 1e-4  # of the first step, as a share of the curvature
LARGEST_DAMPING = 1e9


class AtLatents(NamedTuple):
    """Each unit's log joint density at some latents, with its gradient and negative Hessian there."""

    value: Float[Array, " u"]
    gradient: Float[Array, "u l"]
    curvature: Float[Array, "u l l"]


def at_latents(
    model: LatentModel, theta: PyTree, z: Float[Array, " g"], local: Float[Array, "u l"], data: Data
) -> AtLatents:
    """The log joint density of each unit and its derivatives in the unit's own latents."""

    def slope(local: Array) -> tuple[Array, Array]:
        def total(local: Array) -> tuple[Array, Array]:
            each = model.log_joint(theta, z, local, data, jax.random.key(0))
            return jnp.sum(each), each

        return jax.grad(total, has_aux=True)(local)

    def along(direction: Array) -> tuple[Array, Array, Array]:
        return jax.jvp(slope, (local,), (jnp.broadcast_to(direction, local.shape),), has_aux=True)

    if local.shape[1] == 1:
        gradient, column, value = along(jnp.ones(1, local.dtype))
        return AtLatents(value, gradient, -column[..., None])
    directions = jnp.eye(local.shape[1], dtype=local.dtype)
    gradient, columns, value = jax.vmap(along, out_axes=(None, 2, None))(directions)
    return AtLatents(value, gradient, -0.5 * (columns + jnp.swapaxes(columns, 1, 2)))


class _Search(NamedTuple):
    local: Float[Array, "u l"]
    at: AtLatents
    damping: Float[Array, " u"]
    is_open: Bool[Array, " u"]
    steps: Array


def unit_modes(
    model: LatentModel, theta: PyTree, z: Float[Array, " g"], start: Float[Array, "u l"], data: Data
) -> Float[Array, "u l"]:
    """The mode of each unit's latents given Z_G, by Newton's method with damping per unit; not differentiable.

    It ends when a Newton step of every unit would gain less than the root of rounding errors. The error of the mode
    is then squared by one more step, undamped, which the caller takes.
    """
    small = jnp.finfo(start.dtype).eps ** 0.5

    def look(local: Array) -> AtLatents:
        found = at_latents(model, theta, z, local, data)
        finite = jnp.isfinite(found.value) & jnp.all(jnp.isfinite(found.gradient), axis=1)
        return found._replace(value=jnp.where(finite, found.value, -jnp.inf))

    def step(search: _Search) -> _Search:
        local, at = search.local, search.at
        move = solve(raised(at.curvature, search.damping), at.gradient)
        gain = 0.5 * jnp.sum(move * at.gradient, axis=1)
        trial = local + jnp.where(search.is_open[:, None], move, 0.0)
        there = look(trial)
        better = there.value >= at.value
        at = jax.tree.map(lambda new, old: jnp.where(_like(better, new), new, old), there, at)
        damping = jnp.where(better, search.damping / 10.0, jnp.minimum(search.damping * 8.0, LARGEST_DAMPING))
        is_open = search.is_open & ((search.steps == 0) | (gain > small * (1.0 + jnp.abs(at.value))))
        is_open = is_open & (damping < LARGEST_DAMPING)  # no step is better, or the density is not finite anywhere
        return _Search(jnp.where(better[:, None], trial, local), at, damping, is_open, search.steps + 1)

    def unfinished(search: _Search) -> Bool[Array, ""]:
        return jnp.any(search.is_open) & (search.steps < MOST_STEPS)

    num_units = start.shape[0]
    present = jnp.ones(num_units, bool) if data.units is None else jnp.asarray(data.units.weight) > 0
    # the first step evaluates the start: its gradient of zero moves nothing
    unknown = jnp.full(num_units, -jnp.inf, start.dtype)
    identity = jnp.broadcast_to(jnp.eye(start.shape[1], dtype=start.dtype), (*start.shape, start.shape[1]))
    at = AtLatents(unknown, jnp.zeros_like(start), identity)
    first = _Search(start, at, jnp.full_like(unknown, DAMPING), present, jnp.asarray(0))
    return jax.lax.while_loop(unfinished, step, first).local


def _like(condition: Bool[Array, " u"], value: Array) -> Array:
    return condition.reshape(condition.shape + (1,) * (value.ndim - 1))


def raised(curvature: Float[Array, "u l l"], damping: Float[Array, " u"]) -> Float[Array, "u l l"]:
    """The curvature made positive definite: absolute eigenvalues, increased by a share of them."""
    tiny = jnp.finfo(curvature.dtype).tiny
    share = 1.0 + damping[:, None, None]
    if curvature.shape[-1] == 1:
        return jnp.abs(curvature) * share + tiny
    if curvature.shape[-1] == 2:
        return _absolute_of_two(curvature) * share + tiny * jnp.eye(2, dtype=curvature.dtype)
    values, vectors = jnp.linalg.eigh(curvature)
    absolute = jnp.abs(values) * share[..., 0] + tiny
    return jnp.einsum("uij,uj,ukj->uik", vectors, absolute, vectors)


def _absolute_of_two(matrix: Float[Array, "u 2 2"]) -> Float[Array, "u 2 2"]:
    """|A| of symmetric 2 x 2 matrices: A or -A where it is definite, else (A^2 - det I) / (difference of the roots)."""
    a, b, d = matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 1]
    det, trace = a * d - b * b, a + d
    # |A| = (A^2 + |det| I) / (|l1| + |l2|), by Cayley and Hamilton; the sum is |trace|, or the distance of the roots
    size = jnp.where(det > 0, jnp.abs(trace), jnp.sqrt((a - d) ** 2 + 4.0 * b * b))
    size = jnp.maximum(size, jnp.finfo(matrix.dtype).tiny)
    square = jnp.einsum("uij,ujk->uik", matrix, matrix)
    return (square + jnp.abs(det)[:, None, None] * jnp.eye(2, dtype=matrix.dtype)) / size[:, None, None]


def solve(matrix: Float[Array, "u l l"], right: Float[Array, "u l"]) -> Float[Array, "u l"]:
    """The solution of one small linear system per unit."""
    if right.shape[1] == 1:
        return right / matrix[..., 0]
    if right.shape[1] == 2:
        a, b, c, d = matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 0], matrix[:, 1, 1]
        r, s = right[:, 0], right[:, 1]
        return jnp.stack([d * r - b * s, a * s - c * r], axis=1) / (a * d - b * c)[:, None]
    return jnp.linalg.solve(matrix, right[..., None])[..., 0]


def times(matrix: Float[Array, "*u i j"], vector: Float[Array, "*u j"]) -> Float[Array, "*u i"]:
    """The product of one small matrix and vector per unit; the batch of matrix products is slow."""
    return jnp.sum(matrix * vector[..., None, :], axis=-1)


def products(a: Float[Array, "*u i j"], b: Float[Array, "*u j k"]) -> Float[Array, "*u i k"]:
    """The product of two small matrices per unit."""
    return jnp.sum(a[..., :, :, None] * b[..., None, :, :], axis=-2)


def inverse_root(matrix: Float[Array, "u l l"]) -> tuple[Float[Array, "u l l"], Float[Array, " u"]]:
    """R with R R' = A^-1, and log det R, for positive definite A.

    R is the inverse of the transposed Cholesky factor of A.
    """
    size = matrix.shape[-1]
    if size == 1:
        root = matrix**-0.5
        return root, jnp.log(root[:, 0, 0])
    if size == 2:
        first = jnp.sqrt(matrix[:, 0, 0])
        below = matrix[:, 1, 0] / first
        second = jnp.sqrt(matrix[:, 1, 1] - below**2)
        zero = jnp.zeros_like(first)
        rows = [jnp.stack([1.0 / first, -below / (first * second)], -1), jnp.stack([zero, 1.0 / second], -1)]
        return jnp.stack(rows, -2), -jnp.log(first) - jnp.log(second)
    lower = jnp.linalg.cholesky(matrix)
    identity = jnp.broadcast_to(jnp.eye(size, dtype=matrix.dtype), matrix.shape)
    root = jnp.swapaxes(solve_triangular(lower, identity, lower=True), -1, -2)
    return root, -jnp.sum(jnp.log(jnp.diagonal(lower, axis1=-2, axis2=-1)), axis=-1)
