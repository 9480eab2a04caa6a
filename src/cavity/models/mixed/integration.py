"""The marginal likelihood of each unit, log p(y_u | Z_G), with its l latents integrated out numerically.

With m the mode of log p(y_u, . | Z_G), H its negative Hessian there and R R' = H^-1,

    p(y_u | Z_G)  =  int p(y_u, z | Z_G) dz
                  =  (2 pi)^(l/2) det R  E[ p(y_u, m + R x | Z_G) exp(|x|^2 / 2) ],     x ~ N(0, I)

The rules differ in the points x_k and weights w_k by which the expectation is taken (`rules`).
Every rule is exact for Gaussian units, whatever its order.

Derivatives. The points move with Z_G through m and R. The mode's derivative is that of one Newton step from the mode
(the implicit function theorem), so the gradient in Z_G is that of the computed value, not only of its limit. Second
derivatives are those of the computed value for Laplace's method, which takes two such steps; elsewhere they lack a
term that vanishes with the error of the rule.

Memory. Points are taken in groups, so that few arrays of the size of a client's rows exist at a time.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PyTree

from cavity.core import Data, LatentModel
from cavity.distributions.quadrature import in_groups
from cavity.errors import CavityError
from cavity.models.mixed.modes import FIRST, at_latents, inverse_root, solve, times, unit_modes
from cavity.models.mixed.rules import Rule

LOG_2PI = 1.8378770664093453
AT_ONCE = 1 << 18  # rows (or units) times points that are evaluated together


def log_marginal(
    model: LatentModel, theta: PyTree, z: Float[Array, " g"], data: Data, rule: Rule
) -> Float[Array, " u"]:
    """Log p(y_u | Z_G) of each unit of a client; differentiable in Z_G.

    Args:
        model: the model with local latents.
        theta: its learned parameters.
        z: Z_G.
        data: the client's rows and units.
        rule: how latents are integrated out.

    Returns:
        One number per unit; those of padding are to be ignored.
    """
    num_units, num_local = checked_units(model, data)
    start = jnp.full((num_units, num_local), FIRST, z.dtype)
    if num_local == 0:
        return model.log_joint(theta, z, start, data, jax.random.key(0))
    fixed = jax.lax.stop_gradient
    local = fixed(unit_modes(model, fixed(theta), fixed(z), start, fixed(data)))
    if rule.is_laplace:
        for _ in range(2):
            at = at_latents(model, theta, z, local, data)
            local = local + solve(at.curvature, at.gradient)
        at = at_latents(model, theta, z, local, data)
        return at.value + inverse_root(at.curvature)[1] + 0.5 * num_local * LOG_2PI
    local, root, scale = placed(model, theta, z, local, data)
    points, log_weights = (part.astype(z.dtype) for part in rule.points(num_local))

    def joint(point: Float[Array, " l"]) -> Float[Array, " u"]:
        return model.log_joint(
            theta, z, local + times(root, jnp.broadcast_to(point, local.shape)), data, jax.random.key(0)
        )

    together = AT_ONCE // max(num_units, len(data.weight))
    # in groups, the derivative computes each group again rather than keep what it needs of all of them
    each = in_groups(joint if together >= len(points) else jax.checkpoint(joint), points, together)
    return logsumexp(each + log_weights[:, None], axis=0) + scale


def checked_units(model: LatentModel, data: Data) -> tuple[int, int]:
    """The number of units, and of the latents of each. Raises CavityError where the data have no units."""
    if data.units is None:
        raise CavityError("data of a model with local latents have units; prepare them with the model")
    return len(data.units.weight), model.local_size(data)


def placed(
    model: LatentModel, theta: PyTree, z: Float[Array, " g"], modes: Float[Array, "u l"], data: Data
) -> tuple[Float[Array, "u l"], Float[Array, "u l l"], Float[Array, " u"]]:
    """The m and R of each unit, and log det R + l/2 log(2 pi); differentiable in Z_G.

    Args:
        model: the model with local latents.
        theta: its learned parameters.
        z: Z_G.
        modes: as `unit_modes` finds them; not differentiated.
        data: the client's rows and units.
    """
    at = at_latents(model, theta, z, modes, data)
    local = modes + solve(jax.lax.stop_gradient(at.curvature), at.gradient)
    root, log_det = inverse_root(at_latents(model, theta, z, local, data).curvature)
    return local, root, log_det + 0.5 * modes.shape[1] * LOG_2PI
