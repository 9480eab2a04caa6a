"""Anderson acceleration of a fixed-point iteration over Gaussians.

The iteration is q <- target(q). With residuals r_i = target(q_i) - q_i in natural parameters, the next q is

    q + r + sum_i c_i ((q_i - q) + (r_i - r)),     c = argmin | r + sum_i c_i (r_i - r) |

over the last few q_i (Walker and Ni, 2011): for a linear iteration this is GMRES. It cures oscillation and slow drift,
both of which the natural gradient shows where a posterior is far from Gaussian. Lengths are measured by the second
order of KL at q, so that the units of the parameters do not matter:

    | (dh, dLambda) |^2  =  1/2 |L' (dh - dLambda mu)|^2 + 1/4 |L' dLambda L|^2,     L L' = Sigma
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cavity.distributions.full import FullGaussian

MEMORY = 5
RIDGE = 1e-10  # relative, in the normal equations of c


class Memory(eqx.Module):
    """The last members of an iteration and their residuals, stacked.

    Attributes:
        members: q_i.
        residuals: target(q_i) / q_i, as natural parameters.
        count: how many have been added so far.
    """

    members: FullGaussian
    residuals: FullGaussian
    count: Int[Array, ""]

    @classmethod
    def empty(cls, like: FullGaussian) -> Memory:
        """A memory of members such as this one, without any."""
        zeros = jax.tree.map(lambda leaf: jnp.zeros((MEMORY, *leaf.shape), leaf.dtype), like)
        return cls(zeros, zeros, jnp.asarray(0))

    def added(self, q: FullGaussian, residual: FullGaussian, wanted: Bool[Array, ""]) -> Memory:
        """With one more member in place of the oldest one, where it is wanted."""
        place = self.count % MEMORY

        def put(stack: FullGaussian, new: FullGaussian) -> FullGaussian:
            return jax.tree.map(
                lambda all_, one: jnp.where(
                    wanted & (jnp.arange(MEMORY) == place).reshape(-1, *[1] * one.ndim), one, all_
                ),
                stack,
                new,
            )

        return Memory(put(self.members, q), put(self.residuals, residual), self.count + wanted)

    def next(self, q: FullGaussian, residual: FullGaussian) -> FullGaussian:
        """The accelerated step from q, whose residual is given; q * residual where nothing is remembered."""
        known = (jnp.arange(MEMORY) < self.count).astype(q.precision.dtype)

        def differences(stack: FullGaussian, here: FullGaussian) -> FullGaussian:
            return jax.tree.map(lambda all_, one: (all_ - one) * known.reshape(-1, *[1] * one.ndim), stack, here)

        of_members, of_residuals = differences(self.members, q), differences(self.residuals, residual)
        mean, root = q.mean, jnp.linalg.cholesky(q.covariance)

        def white(change: FullGaussian) -> Float[Array, " n"]:
            matrix = root.T @ change.precision @ root
            vector = root.T @ (change.precision_mean - change.precision @ mean)
            return jnp.concatenate([jnp.sqrt(0.5) * vector, 0.5 * matrix.reshape(-1)])

        columns, here = jax.vmap(white)(of_residuals), white(residual)
        gram = columns @ columns.T
        ridge = RIDGE * jnp.trace(gram) + jnp.finfo(gram.dtype).tiny
        c = -jnp.linalg.solve(gram + ridge * jnp.eye(MEMORY, dtype=gram.dtype), columns @ here)

        def moved(start: Array, step: Array, member: Array, change: Array) -> Array:
            return start + step + jnp.tensordot(c, member + change, axes=1)

        return jax.tree.map(moved, q, residual, of_members, of_residuals)
