"""A hierarchical variational model: a Gaussian over what factors share, and factors that depend on it.

Federated sparse Gaussian processes, section 4:  q(theta, phi) = q(theta | phi) q(phi), where theta is what the model is
about, and phi what all factors t_k(theta | phi) have in common (inducing inputs, hyperparameters, a network's weights).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.natural import product


class Hierarchical(eqx.Module):
    """A prior, a posterior, a factor or a cavity of it.

    Attributes:
        shared: over phi.
        conditional: over theta given phi, such as `PseudoObservations`; None where theta is phi.
    """

    shared: DiagonalGaussian
    conditional: Any = None

    def __mul__(self, other: Hierarchical) -> Hierarchical:
        both = None if self.conditional is None else self.conditional * other.conditional
        return Hierarchical(self.shared * other.shared, both)

    def __truediv__(self, other: Hierarchical) -> Hierarchical:
        rest = None if self.conditional is None else self.conditional / other.conditional
        return Hierarchical(self.shared / other.shared, rest)

    def __pow__(self, exponent: Any) -> Hierarchical:
        power = None if self.conditional is None else self.conditional**exponent
        return Hierarchical(self.shared**exponent, power)

    def towards(self, other: Hierarchical, share: Any) -> Hierarchical:
        """The way to another factor, this share of it: a fixed point stays one."""
        way = None if self.conditional is None else self.conditional.towards(other.conditional, share)
        return Hierarchical(self.shared ** (1.0 - share) * other.shared**share, way)

    @property
    def is_proper(self) -> Bool[Array, ""]:
        """Whether phi has a proper distribution; theta has one, given phi, as precisions are never negative."""
        finite = True if self.conditional is None else self.conditional.is_finite
        return self.shared.is_proper & jnp.asarray(finite)


def joint(prior: Hierarchical, rows: Sequence[Hierarchical]) -> Hierarchical:
    """The prior times all factors."""
    shared = prior.shared * product([row.shared for row in rows])
    conditionals = [row.conditional for row in rows]
    return Hierarchical(shared, None if conditionals[0] is None else conditionals[0].together(conditionals))
