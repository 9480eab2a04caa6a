"""The evidence lower bound of a structured model, split into the server's part and the clients' (SFVI, S1).

    L   = L_0 + sum over clients of L_j
    L_0 = log p(Z_G) - log q(Z_G)
    L_j = sum over units of log 1/K sum_k  p(y_u, Z_uk | Z_G) / q(Z_uk | Z_G)

With K = 1 this is the paper's bound (its Algorithm 1 drops the prior of the local latents; eq. S4 has it). With K > 1
it is the locally enhanced bound of Geffner and Domke (2022), which is tighter and still a sum over units, since each
unit has importance samples of its own.

Gradients do not pass through the parameters of log q, only through its arguments: sticking the landing (eq. 6) for
K = 1, and for K > 1 its doubly reparameterised form, in which the path through Z_uk to the parameters of q(Z_u | Z_G)
is weighted once more by the sample's share w_k. The path through Z_uk to Z_G is not, because Z_G is an argument of both
densities.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Data, LatentModel
from cavity.core.random import normal_of
from cavity.core.types import Leaf
from cavity.distributions.structured import GlobalGaussian, LocalGaussian


class Globals(eqx.Module):
    """What all clients share: q(Z_G) and the learned parameters."""

    q: GlobalGaussian
    theta: PyTree


def server_gradient(
    model: LatentModel, shared: Globals, noise: Float[Array, "s e"]
) -> tuple[Float[Array, ""], Globals]:
    """L_0 and its gradient, means over draws."""

    def bound(shared: Globals) -> Float[Array, ""]:
        fixed = jax.lax.stop_gradient(shared.q)

        def one(noise: Array) -> Array:
            z = shared.q.draw(noise)
            return model.log_prior(shared.theta, z) - fixed.log_prob(z)

        return jnp.mean(jax.vmap(one)(noise))

    return jax.value_and_grad(bound)(shared)


def client_gradient(
    model: LatentModel,
    shared: Globals,
    local: LocalGaussian,
    noise: Float[Array, "s e"],
    local_noise: Float[Array, "s k u l"],
    data: Data,
    key: PRNGKeyArray,
    joint_scale: Leaf | None = None,
) -> tuple[Float[Array, ""], Globals, LocalGaussian]:
    """L_j and its gradients in the shared parameters (S5, S8) and in the client's own (S6), means over draws.

    `joint_scale` multiplies log p(y_u, Z_u | Z_G) alone. Where the model encodes its units (amortised inference), the
    gradient in the client's own parameters is propagated to the inference network in theta.
    """
    q, back = jax.vjp(lambda theta, own: local_family(model, theta, own, data), shared.theta, local)
    each = jax.vmap(lambda noise, own: _one_draw(model, shared, q, noise, own, data, key, joint_scale))
    outcome = each(noise, local_noise)
    value, gradient, to_local = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), outcome)
    through_network, own_gradient = back(to_local)
    to_theta = jax.tree.map(jnp.add, gradient.theta, through_network)
    return value, Globals(gradient.q, to_theta), own_gradient


def local_family(model: LatentModel, theta: PyTree, own: LocalGaussian, data: Data) -> LocalGaussian:
    """q(Z_L | Z_G) of a client: by the model's inference network if it has one, else the client's own."""
    encoded = model.encode(theta, data)
    return own if encoded is None else LocalGaussian(*encoded)


def _one_draw(
    model: LatentModel,
    shared: Globals,
    local: LocalGaussian,
    noise: Float[Array, " e"],
    local_noise: Float[Array, "k u l"],
    data: Data,
    key: PRNGKeyArray,
    joint_scale: Leaf | None,
) -> tuple[Float[Array, ""], Globals, LocalGaussian]:
    assert data.units is not None
    centre, fixed = shared.q.mean, jax.lax.stop_gradient(local)
    z_global, back_to_q = jax.vjp(lambda q: q.draw(noise), shared.q)
    z_local, back_from_local = jax.vjp(
        lambda local, centre, z: local.draw(z - centre, local_noise), local, centre, z_global
    )

    def log_weights(theta: PyTree, z_global: Array, z_local: Array) -> Float[Array, "k u"]:
        joint = jax.vmap(lambda z: model.log_joint(theta, z_global, z, data, key))(z_local)
        joint = joint.astype(z_global.dtype)  # a model in double precision beside latents in single
        joint = joint if joint_scale is None else jnp.asarray(joint_scale) * joint
        return joint - fixed.log_prob(z_local, z_global - centre)

    log_w, back = jax.vjp(log_weights, shared.theta, z_global, z_local)
    present = data.units.weight > 0
    share = jnp.where(present, jax.nn.softmax(log_w, axis=0), 0.0).astype(log_w.dtype)
    bounds = jax.scipy.special.logsumexp(log_w, axis=0) - jnp.log(jnp.asarray(log_w.shape[0], log_w.dtype))
    to_theta, to_global, to_local = back(share)
    _, _, through_local = back_from_local(to_local)
    local_gradient, to_centre, _ = back_from_local(to_local * share[..., None])
    (to_q,) = back_to_q(to_global + through_local)
    to_q = eqx.tree_at(lambda q: q.mean, to_q, to_q.mean + to_centre)
    value = jnp.sum(jnp.where(present, bounds, 0.0))
    return value, Globals(to_q, to_theta), local_gradient


def unit_noise(
    key: PRNGKeyArray, exchange: PRNGKeyArray, units: Data, shape: tuple[int, int, int], dtype: DTypeLike
) -> Array:
    """Noise [draws, samples, units, latents] that belongs to the units.

    The noise of a unit with a label depends on the exchange's key and the label, so it is the same at every client. For
    units without labels it depends on the client's key and the unit's position.
    """
    num_draws, num_samples, num_local = shape
    count, size = len(units.weight), num_draws * num_samples * num_local
    if units.batch is None:
        numbers = jnp.stack([jnp.arange(count, dtype=jnp.uint32), jnp.zeros(count, jnp.uint32)], axis=1)
        flat = normal_of(key, numbers, size, dtype)
    else:
        flat = normal_of(exchange, jnp.asarray(units.batch), size, dtype)
    return jnp.moveaxis(flat.reshape(count, num_draws, num_samples, num_local), 0, 2)
