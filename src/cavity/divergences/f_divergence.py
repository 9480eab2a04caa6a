"""Any f-divergence between Gaussians, by quadrature in few dimensions and by fixed draws in more (FedGVI, 3.3).

    D(q : p) = E_p[f(q / p)],     f convex, f(1) = 0

Subtracting the tangent of f at 1, which integrates to zero, gives h(u) = f(u) - f'(1) (u - 1) >= 0, so that every sum
over nodes is non-negative. The nodes are those of q, with E_p[h(q / p)] = E_q[(p / q) h(q / p)].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cavity.core import Distribution, Divergence
from cavity.core.fields import is_traced
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.natural import require_proper
from cavity.distributions.quadrature import normal_nodes
from cavity.divergences.families import require_gaussian
from cavity.errors import CavityError, ImproperError

HUGE = 1e15  # nats: a larger sum over nodes means that the integral does not exist


class FDivergence(Divergence):
    """E_p[f(q / p)] for a convex function f of the user.

    Up to three dimensions it is computed by Gauss-Hermite quadrature, in more dimensions with fixed antithetic draws,
    whose error falls slowly. Use it to try out a divergence; implement one with a closed form as a class of its own.

    Attributes:
        f: convex on (0, inf), in JAX, elementwise, with f(1) = 0. Define it once: a new function is compiled again.

    Example:
        >>> from cavity.distributions import DiagonalGaussian
        >>> hellinger = FDivergence(lambda u: (jnp.sqrt(u) - 1.0) ** 2)
        >>> q = DiagonalGaussian.from_moments(jnp.zeros(1), jnp.ones(1))
        >>> float(hellinger(q, q))
        0.0
    """

    needs_proper_cavity: ClassVar[bool] = True
    f: Callable[[Array], Array] = eqx.field(static=True)

    def __check_init__(self) -> None:
        at_one = jnp.asarray(self.f(jnp.ones(())))
        if not abs(float(at_one)) < 1e-6:
            raise CavityError(f"f(1) must be 0 for an f-divergence, but it is {float(at_one)}")

    def check(self, family: Distribution) -> None:
        require_gaussian(family, "an f-divergence")

    def __call__(self, q: Gaussian, p: Gaussian) -> Float[Array, ""]:
        value = self.objective(q, require_proper(p, "take an f-divergence from"))
        if not is_traced(value) and not jnp.isfinite(value):
            raise ImproperError("this f-divergence is infinite here: the tails of q are too heavy for p, or too light")
        return value

    def objective(self, q: Gaussian, p: Gaussian) -> Float[Array, ""]:
        nodes, weights = normal_nodes(q.dimension)
        theta = q.reparameterise(jnp.asarray(nodes, q.mean.dtype))
        log_u = jax.vmap(lambda t: _log_density(q, t) - _log_density(p, t))(theta)
        bound = 0.4 * jnp.log(jnp.finfo(log_u.dtype).max)  # prevents overflow at distant nodes, whose weights are tiny
        log_u = jnp.clip(log_u, -bound, bound)
        u = jnp.exp(log_u)
        slope = jax.grad(self.f)(jnp.ones((), u.dtype))
        terms = jnp.exp(-log_u) * (self.f(u) - slope * (u - 1.0))
        value = jnp.asarray(weights, u.dtype) @ terms
        return jnp.asarray(jnp.where(value < HUGE, value, jnp.inf))


def _log_density(q: Gaussian, theta: Float[Array, " d"]) -> Float[Array, ""]:
    return q.log_factor(theta) - q.log_partition
