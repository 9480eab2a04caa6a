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
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PyTree

from cavity.divergences.kl import KL
from cavity.interfaces import Divergence, MultipleOfKL
from cavity.solvers.coordinates import MomentCoordinates

MAX_STEPS = 500
TOLERANCE = 1e-9  # of the largest entry of the gradient, in nats per unit of a coordinate
GOOD_ENOUGH = 1e-4  # of the same, after the last step
WIDEST = 1e12  # times the prior's variance: what is wider is on its way to infinity


def combine(divergence: Divergence, prior: Any, factors: Any) -> Any:
    """The minimiser of E_q[-log factors] + divergence(q : prior), of the prior's family. It may be traced."""
    if isinstance(divergence, KL):
        return prior * factors
    if isinstance(divergence, MultipleOfKL):
        return prior * factors ** (1.0 / divergence.weight)
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((prior, factors))):
        return _minimise(divergence, prior, factors)
    with jax.enable_x64(True):
        divergence, prior, factors = jax.tree.map(jnp.asarray, (divergence, prior, factors))
        return jax.device_get(_compiled(divergence, prior, factors))


class _State(eqx.Module):
    coordinates: PyTree
    optimiser: PyTree
    slope: Float[Array, ""]


def _minimise(divergence: Divergence, prior: Any, factors: Any) -> Any:
    import optax

    system, lbfgs = MomentCoordinates(), optax.lbfgs()
    product = prior * factors
    proper = product.is_proper
    start = jax.tree.map(lambda q, p: jnp.where(proper, q, p), product, prior)
    coordinates: Any = system.of(divergence.inside(start, prior))

    def objective(coordinates: PyTree) -> Float[Array, ""]:
        q = system.natural(coordinates, prior)
        return -q.cross(factors) + divergence.objective(q, prior)

    def step(state: _State) -> _State:
        value, gradient = optax.value_and_grad_from_state(objective)(state.coordinates, state=state.optimiser)
        updates, optimiser = lbfgs.update(
            gradient, state.optimiser, state.coordinates, value=value, grad=gradient, value_fn=objective
        )
        slope = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(gradient)]))
        return _State(jax.tree.map(jnp.add, state.coordinates, updates), optimiser, slope)

    def unfinished(carry: tuple[Array, _State]) -> Bool[Array, ""]:
        steps, state = carry
        return (state.slope > TOLERANCE) & (steps < MAX_STEPS)

    first = _State(coordinates, lbfgs.init(coordinates), jnp.asarray(jnp.inf, start.mean.dtype))
    _, last = jax.lax.while_loop(unfinished, lambda carry: (carry[0] + 1, step(carry[1])), (jnp.asarray(0), first))
    q = system.natural(last.coordinates, prior)
    # with factors of negative precision there may be no minimum: an improper answer makes the server damp more
    found = (last.slope < GOOD_ENOUGH) & jnp.all(q.variance < WIDEST * prior.variance)
    return jax.tree.map(lambda leaf: jnp.where(found, leaf, jnp.nan), q)


_compiled = eqx.filter_jit(_minimise)
