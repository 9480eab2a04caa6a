"""A hierarchical variational model: a Gaussian over what factors share, and factors that depend on it.

Federated sparse Gaussian processes, section 4:  q(theta, phi) = q(theta | phi) q(phi), where theta is what the model is
about, and phi what all factors t_k(theta | phi) have in common (inducing inputs, hyperparameters, a network's weights).

Where a factor of theta stands in for its rows as a function of phi too (`SharedModel.others_stand_in`), what it leaves
unsaid of phi is kept beside it as exp(pull . phi).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.natural import ArrayLike, product

CERTAIN = 1e14  # the precision of a point


class Hierarchical(eqx.Module):
    """A prior, a posterior, a factor or a cavity of it.

    Attributes:
        shared: over phi.
        conditional: over theta given phi, such as `PseudoObservations`; None where theta is phi.
        pull: the gradient in phi of what the rows say beyond `conditional`; None where that is not asked.
    """

    shared: DiagonalGaussian
    conditional: Any = None
    pull: Float[ArrayLike, " d"] | None = None

    def __mul__(self, other: Hierarchical) -> Hierarchical:
        both = None if self.conditional is None else self.conditional * other.conditional
        return Hierarchical(self.shared * other.shared, both, _mixed(1.0, self.pull, 1.0, other.pull))

    def __truediv__(self, other: Hierarchical) -> Hierarchical:
        rest = None if self.conditional is None else self.conditional / other.conditional
        return Hierarchical(self.shared / other.shared, rest, _mixed(1.0, self.pull, -1.0, other.pull))

    def __pow__(self, exponent: Any) -> Hierarchical:
        power = None if self.conditional is None else self.conditional**exponent
        return Hierarchical(self.shared**exponent, power, None if self.pull is None else exponent * self.pull)

    def towards(self, other: Hierarchical, share: Any) -> Hierarchical:
        """The way to another factor, this share of it: a fixed point stays one."""
        way = None if self.conditional is None else self.conditional.towards(other.conditional, share)
        pull = _mixed(1.0 - share, self.pull, share, other.pull)
        return Hierarchical(self.shared ** (1.0 - share) * other.shared**share, way, pull)

    @property
    def is_proper(self) -> Bool[Array, ""]:
        """Whether phi has a proper distribution; theta has one, given phi, as precisions are never negative."""
        finite = True if self.conditional is None else self.conditional.is_finite
        pulled = True if self.pull is None else jnp.all(jnp.isfinite(jnp.asarray(self.pull)))
        return self.shared.is_proper & jnp.asarray(finite) & pulled


def joint(prior: Hierarchical, rows: Sequence[Hierarchical]) -> Hierarchical:
    """The prior times all factors."""
    shared = prior.shared * product([row.shared for row in rows])
    conditionals = [row.conditional for row in rows]
    together = None if conditionals[0] is None else conditionals[0].together(conditionals)
    pull = prior.pull
    for row in rows:
        pull = _mixed(1.0, pull, 1.0, row.pull)
    return Hierarchical(shared, together, pull)


def certain(phi: Any) -> DiagonalGaussian:
    """A point, as a Gaussian of next to no width."""
    phi = np.asarray(phi)
    return DiagonalGaussian(CERTAIN * phi, np.full_like(phi, CERTAIN))


def _mixed(a: Any, pull: Any, b: Any, other: Any) -> Any:
    return None if pull is None or other is None else a * pull + b * other
