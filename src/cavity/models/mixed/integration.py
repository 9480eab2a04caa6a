"""The marginal likelihood of each unit, log p(y_u | Z_G), with its l latents integrated out numerically.

With m the mode of log p(y_u, . | Z_G), H its negative Hessian there and R R' = H^-1,

    p(y_u | Z_G)  =  int p(y_u, z | Z_G) dz
                  =  (2 pi)^(l/2) det R  E[ p(y_u, m + R x | Z_G) exp(|x|^2 / 2) ],     x ~ N(0, I)

The rules differ in the points x_k and weights w_k by which the expectation is taken:

| rule | points |
| --- | --- |
| Laplace's method | 0 |
| adaptive Gauss-Hermite quadrature (Pinheiro and Bates, 1995) | a grid of `order` nodes per latent |
| Laplace's method with importance correction | quasi-Monte Carlo points, the same for all units at all times |

Every rule is exact for Gaussian units, whatever its order.

Derivatives. The points move with Z_G through m and R. The mode's derivative is that of one Newton step from the mode
(the implicit function theorem), so the gradient in Z_G is that of the computed value, not only of its limit. Second
derivatives are those of the computed value for Laplace's method, which takes two such steps; elsewhere they lack a
term that vanishes with the error of the rule.

Memory. Points are taken in groups, so that few arrays of the size of a client's rows exist at a time.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PyTree

from cavity.core import Data, LatentModel
from cavity.distributions.quadrature import hermite_grid, in_groups, quasi_normal_points
from cavity.errors import CavityError
from cavity.models.mixed.modes import FIRST, at_latents, inverse_root, solve, unit_modes

LOG_2PI = 1.8378770664093453
AT_ONCE = 1 << 18  # rows (or units) times points that are evaluated together
DEFAULT_ORDERS = {1: 21, 2: 11}  # nodes per latent
DEFAULT_POINTS = 256  # for three or more latents
MOST_LATENTS = 8  # per unit; with more, importance weights of a few hundred points become too uneven


class Rule(eqx.Module):
    """How the latents of a unit are integrated out.

    Attributes:
        order: nodes per latent for one or two latents (1 is Laplace's method), the number of points for more.
    """

    order: int | None = eqx.field(static=True, default=None)

    def points(self, num_local: int) -> tuple[Float[Array, "k l"], Float[Array, " k"]]:
        """The points, and the logs of their weights times exp(|x|^2 / 2)."""
        if self.is_laplace:
            return jnp.zeros((1, num_local)), jnp.zeros(1)
        order = self.order_for(num_local)
        if num_local in DEFAULT_ORDERS:
            nodes, weights = hermite_grid(num_local, order)
        else:
            nodes = quasi_normal_points(num_local, order)
            weights = jnp.full(len(nodes), 1.0 / len(nodes))
        return jnp.asarray(nodes), jnp.log(jnp.asarray(weights)) + 0.5 * jnp.sum(jnp.asarray(nodes) ** 2, axis=1)

    @property
    def is_laplace(self) -> bool:
        """Whether the mode is the only point."""
        return self.order == 1

    def order_for(self, num_local: int) -> int:
        """The order for so many latents."""
        if self.order is not None:
            return self.order
        return DEFAULT_ORDERS.get(num_local, DEFAULT_POINTS)

    def finer(self, num_local: int) -> Rule:
        """A rule with about twice as many nodes per latent, or four times as many points."""
        order = self.order_for(num_local)
        return Rule(2 * order + 1 if num_local in DEFAULT_ORDERS else 4 * order)

    def describe(self, num_local: int) -> str:
        """The rule in words, for a summary."""
        if num_local == 0:
            return "there are no local latents"
        what = f"{num_local} local latent{'' if num_local == 1 else 's'} per unit, integrated out by "
        order = self.order_for(num_local)
        if self.is_laplace:
            return what + "Laplace's method"
        if num_local in DEFAULT_ORDERS:
            return what + f"adaptive Gauss-Hermite quadrature with {order} nodes{' each' if num_local > 1 else ''}"
        return what + f"Laplace's method with importance correction ({order} points)"


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
    if data.units is None:
        raise CavityError("data of a model with local latents have units; prepare them with the model")
    num_units, num_local = len(data.units.weight), model.local_size(data)
    start = jnp.full((num_units, num_local), FIRST, z.dtype)
    if num_local == 0:
        return model.log_joint(theta, z, start, data, jax.random.key(0))
    fixed = jax.lax.stop_gradient
    local = fixed(unit_modes(model, fixed(theta), fixed(z), start, fixed(data)))
    if rule.is_laplace:
        for _ in range(2):
            at = at_latents(model, theta, z, local, data)
            local = local + solve(at.curvature, at.gradient)
    else:
        at = at_latents(model, theta, z, local, data)
        local = local + solve(fixed(at.curvature), at.gradient)
    at = at_latents(model, theta, z, local, data)
    root, log_det = inverse_root(at.curvature)
    scale = log_det + 0.5 * num_local * LOG_2PI
    if rule.is_laplace:
        return at.value + scale
    points, log_weights = (part.astype(z.dtype) for part in rule.points(num_local))

    def joint(point: Float[Array, " l"]) -> Float[Array, " u"]:
        return model.log_joint(theta, z, local + root @ point, data, jax.random.key(0))

    together = AT_ONCE // max(num_units, len(data.weight))
    # in groups, the derivative computes each group again rather than keep what it needs of all of them
    each = in_groups(joint if together >= len(points) else jax.checkpoint(joint), points, together)
    return logsumexp(each + log_weights[:, None], axis=0) + scale


def refinement(model: LatentModel, theta: PyTree, z: Float[Array, " g"], data: Data, rule: Rule) -> Float[Array, ""]:
    """By how much a finer rule changes the log likelihood of a client at Z_G, in nats: the error of the rule."""
    assert data.units is not None
    present = jnp.asarray(data.units.weight) > 0
    here, finer = (
        jnp.where(present, log_marginal(model, theta, z, data, each), 0.0)
        for each in (rule, rule.finer(model.local_size(data)))
    )
    return jnp.sum(finer) - jnp.sum(here)
