"""A hierarchical variational model: a Gaussian over what factors share, and factors that depend on it.

Federated sparse Gaussian processes, section 4:  q(theta, phi) = q(theta | phi) q(phi), where theta is what the model is
about, and phi what all factors t_k(theta | phi) have in common (inducing inputs, hyperparameters, a network's weights).

Where a factor of theta stands in for its rows as a function of phi too (`SharedModel.others_stand_in`), what it leaves
unsaid of phi is kept beside it: a slope and a bend of each entry, as natural parameters.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.natural import product

CERTAIN = 1e14  # the precision of a point


class Hierarchical(eqx.Module):
    """A prior, a posterior, a factor or a cavity of it.

    Attributes:
        shared: over phi.
        conditional: over theta given phi, such as `PseudoObservations`; None where theta is phi.
        pull: what the rows say of phi beyond `conditional`, not proper, and to be read by `solvers/shared_descent.py`
            alone; None where that is not asked.
    """

    shared: DiagonalGaussian
    conditional: Any = None
    pull: DiagonalGaussian | None = None

    def __mul__(self, other: Hierarchical) -> Hierarchical:
        return self._with(other, operator.mul)

    def __truediv__(self, other: Hierarchical) -> Hierarchical:
        return self._with(other, operator.truediv)

    def __pow__(self, exponent: Any) -> Hierarchical:
        return self._with(self, lambda part, _: part**exponent)

    def towards(self, other: Hierarchical, share: Any) -> Hierarchical:
        """The way to another factor, this share of it: a fixed point stays one."""

        def way(one: Any, two: Any) -> Any:
            line = isinstance(one, DiagonalGaussian)  # in natural parameters
            return one ** (1.0 - share) * two**share if line else one.towards(two, share)

        return self._with(other, way)

    @property
    def is_proper(self) -> Bool[Array, ""]:
        """Whether phi has a proper distribution; theta has one, given phi, as precisions are never negative."""
        finite = True if self.conditional is None else self.conditional.is_finite
        pulls = [jnp.all(jnp.isfinite(jnp.asarray(eta))) for eta in jax.tree.leaves(self.pull)]
        return self.shared.is_proper & jnp.all(jnp.stack([jnp.asarray(finite), *pulls]))

    def _with(self, other: Hierarchical, operate: Callable[[Any, Any], Any]) -> Hierarchical:
        """Part by part; a pull that one of them lacks is lacking."""
        conditional = None if self.conditional is None else operate(self.conditional, other.conditional)
        pull = None if self.pull is None or other.pull is None else operate(self.pull, other.pull)
        return Hierarchical(operate(self.shared, other.shared), conditional, pull)


def joint(prior: Hierarchical, rows: Sequence[Hierarchical]) -> Hierarchical:
    """The prior times all factors."""
    shared = prior.shared * product([row.shared for row in rows])
    conditionals = [row.conditional for row in rows]
    together = None if conditionals[0] is None else conditionals[0].together(conditionals)
    pulls = [q.pull for q in (prior, *rows) if q.pull is not None]
    return Hierarchical(shared, together, product(pulls) if len(pulls) == 1 + len(rows) else None)


def certain(phi: Any) -> DiagonalGaussian:
    """A point, as a Gaussian of next to no width."""
    phi = np.asarray(phi)
    return DiagonalGaussian(CERTAIN * phi, np.full_like(phi, CERTAIN))
