"""The server's posterior from the prior and the product of all factors (FedGVI, eqs. 6 and 7).

    q_s = argmin over q of E_q[-log factors] + D_s(q : prior)

For KL this is the product, for a multiple of it a power of the factors. For other divergences it is found by L-BFGS,
without noise: the expectation of a Gaussian's log is in closed form.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, PyTree

from cavity.core import Divergence
from cavity.core.fields import is_traced

MAX_STEPS = 500
TOLERANCE = 1e-9  # of the largest entry of the gradient, in nats per unit of a coordinate
GOOD_ENOUGH = 1e-4  # of the same, after the last step
WIDEST = 1e12  # times the prior's variance: what is wider is on its way to infinity


def combine(divergence: Divergence, prior: Any, factors: Any) -> Any:
    """The minimiser of E_q[-log factors] + divergence(q : prior), of the prior's family. It may be traced."""
    if divergence.is_kl:
        return prior * factors
    traced = any(is_traced(leaf) for leaf in jax.tree.leaves((prior, factors)))
    weight = divergence.kl_weight
    if weight is not None:
        return prior * factors ** (1.0 / (weight if traced else np.asarray(weight, np.float64)))
    if traced:
        return _minimise(divergence, prior, factors)
    with jax.enable_x64(True):
        divergence, prior, factors = jax.tree.map(jnp.asarray, (divergence, prior, factors))
        return jax.device_get(_compiled(divergence, prior, factors))


def _seen_from(q: Any, mean: Array, root: Array) -> Any:
    """The density of z where theta = mean + root z; root is a matrix, or the diagonal of one."""
    if root.ndim == 2:
        return type(q)(root.T @ (q.precision_mean - q.precision @ mean), root.T @ q.precision @ root)
    scale = root[0] if q.precision.ndim == 0 else root  # one scale for all
    return type(q)(scale * (q.precision_mean - q.precision * mean), scale * q.precision * scale)


def _seen_back(q: Any, mean: Array, root: Array) -> Any:
    """The density of theta = mean + root z from that of z."""
    if root.ndim == 2:
        inverse = solve_triangular(root, jnp.eye(len(root), dtype=root.dtype), lower=True)
        precision = inverse.T @ q.precision @ inverse
        return type(q)(inverse.T @ q.precision_mean + precision @ mean, precision)
    scale = root[0] if q.precision.ndim == 0 else root
    precision = q.precision / scale**2
    return type(q)(q.precision_mean / scale + precision * mean, precision)


class _State(eqx.Module):
    coordinates: PyTree
    optimiser: PyTree
    slope: Float[Array, ""]


def _minimise(divergence: Divergence, prior: Any, factors: Any) -> Any:
    import optax

    from cavity.solvers.coordinates import MomentCoordinates  # loaded where the minimum has no closed form
    from cavity.solvers.lbfgs import lbfgs_step

    system, lbfgs = MomentCoordinates(), optax.lbfgs()
    product = prior * factors
    proper = product.is_proper
    start = jax.tree.map(lambda q, p: jnp.where(proper, q, p), product, prior)
    # in units of the start, whatever the columns are measured in: divergences do not see the change
    diagonal, below = start.root
    centre = start.mean
    root = jnp.broadcast_to(diagonal, centre.shape) if below is None else below + jnp.diag(diagonal)
    prior, factors, start = (_seen_from(q, centre, root) for q in (prior, factors, start))
    coordinates: Any = system.of(divergence.inside(start, prior))

    def objective(coordinates: PyTree) -> Float[Array, ""]:
        q = system.natural(coordinates, prior)
        return -q.cross(factors) + divergence.objective(q, prior)

    def step(state: _State) -> _State:
        return _State(*lbfgs_step(lbfgs, objective, state.coordinates, state.optimiser))

    def unfinished(carry: tuple[Array, _State]) -> Bool[Array, ""]:
        steps, state = carry
        return (state.slope > TOLERANCE) & (steps < MAX_STEPS)

    first = _State(coordinates, lbfgs.init(coordinates), jnp.asarray(jnp.inf, start.mean.dtype))
    _, last = jax.lax.while_loop(unfinished, lambda carry: (carry[0] + 1, step(carry[1])), (jnp.asarray(0), first))
    q = system.natural(last.coordinates, prior)
    # with factors of negative precision there may be no minimum: an improper answer makes the server damp more
    found = (last.slope < GOOD_ENOUGH) & jnp.all(q.variance < WIDEST * prior.variance)
    return jax.tree.map(lambda leaf: jnp.where(found, leaf, jnp.nan), _seen_back(q, centre, root))


_compiled = eqx.filter_jit(_minimise)
