"""The latents of units given Z_G: Laplace's approximation at a client, and how it moves with Z_G."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from cavity.core import Data, LatentModel, pad
from cavity.distributions.structured import LocalGaussian
from cavity.models.mixed.modes import FIRST, at_latents, raised, solve, unit_modes


def conditional_modes(
    model: LatentModel, theta: PyTree, z: Float[Array, " g"], data: Data
) -> tuple[Array, Array, Array]:
    """Laplace's approximation of q(Z_u | Z_G) at a client: modes [u l], roots of covariances [u l l], slopes [u l g].

    The slope is how the mode moves with Z_G. Rows and units are padded, so that few shapes are compiled.
    """
    assert data.units is not None
    num_units = len(data.units.weight)
    rows, units = (1 << (n - 1).bit_length() for n in (len(data.weight), num_units))
    if num_units == len(data.weight):  # where every row is a unit, it stays one
        units = rows
    modes, roots, slopes = _conditional_modes(model, theta, z, pad(data, rows, units))
    return modes[:num_units], roots[:num_units], slopes[:num_units]


@eqx.filter_jit
def _conditional_modes(
    model: LatentModel, theta: PyTree, z: Float[Array, " g"], data: Data
) -> tuple[Array, Array, Array]:
    data = jax.tree.map(jnp.asarray, data)
    assert data.units is not None
    start = jnp.full((len(data.units.weight), model.local_size(data)), FIRST, z.dtype)
    local = unit_modes(model, theta, z, start, data)
    undamped = jnp.zeros(len(local), local.dtype)
    for _ in range(2):  # the search ends when its value changes by rounding only
        at = at_latents(model, theta, z, local, data)
        local = local + solve(raised(at.curvature, undamped), at.gradient)

    def move(z: Array) -> Array:
        at = at_latents(model, theta, z, local, data)
        return local + solve(at.curvature, at.gradient)

    covariance = jnp.linalg.inv(raised(at_latents(model, theta, z, local, data).curvature, undamped))
    return local, jnp.linalg.cholesky(0.5 * (covariance + jnp.swapaxes(covariance, 1, 2))), jax.jacfwd(move)(z)


class ConditionalLaplace(eqx.Module):
    """Laplace's approximation of p(Z_u | Z_G, y_u) for all units of a client, found anew at every Z_G.

    Attributes:
        model: the model.
        theta: its learned parameters.
        centre: the Z_G from which shifts are counted.
        data: the client's rows and units.
    """

    model: LatentModel
    theta: PyTree
    centre: Float[Array, " g"]
    data: Data

    def given(self, shift: Float[Array, " g"]) -> LocalGaussian:
        """The approximation at Z_G = centre + shift."""
        z, data = self.centre + shift, jax.tree.map(jnp.asarray, self.data)
        assert data.units is not None
        start = jnp.full((len(data.units.weight), self.model.local_size(data)), FIRST, z.dtype)
        local = unit_modes(self.model, self.theta, z, start, data)
        undamped = jnp.zeros(len(local), local.dtype)
        at = at_latents(self.model, self.theta, z, local, data)
        local = local + solve(raised(at.curvature, undamped), at.gradient)
        curvature = raised(at_latents(self.model, self.theta, z, local, data).curvature, undamped)
        root = jnp.linalg.cholesky(jnp.linalg.inv(curvature))
        scale = jnp.diagonal(root, axis1=1, axis2=2)
        below = None if local.shape[1] == 1 else jnp.tril(root / scale[..., None], -1)
        return LocalGaussian(local, jnp.log(scale), below=below)
