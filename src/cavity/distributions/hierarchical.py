"""A hierarchical variational model: a Gaussian over shared parameters, and factors that depend on them.

Federated sparse Gaussian processes, section 4:  q(theta, phi) = q(theta | phi) q(phi). Here theta is the quantity of
interest, and phi the parameters that all factors t_k(theta | phi) share (inducing inputs, hyperparameters, the weights
of a network).

Where a factor of theta also approximates its rows as a function of phi (`SharedModel.has_surrogate_factors`), the error
of this approximation is kept beside it as a correction: a slope and a curvature of each entry, as natural parameters.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from cavity.core import Density
from cavity.core.fields import Number
from cavity.core.types import Leaf
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.natural import product
from cavity.distributions.pseudo import Observations

CERTAIN = 1e14  # the precision of a point
P = TypeVar("P", bound=Density)


class Hierarchical(Density):
    """A prior, posterior, factor or cavity of such a model.

    Attributes:
        shared: the density of phi.
        conditional: the density of theta given phi, such as `PseudoObservations`; None where theta is phi.
        pull: the correction, the information of the rows about phi that `conditional` lacks. It is not proper, and only
            `solvers/shared_descent.py` uses it; None where it is not needed.
    """

    shared: DiagonalGaussian
    conditional: Observations | None = None
    pull: DiagonalGaussian | None = None

    def __mul__(self, other: Hierarchical) -> Hierarchical:
        return Hierarchical(
            self.shared * other.shared,
            _both(operator.mul, self.conditional, other.conditional),
            _both(operator.mul, self.pull, other.pull),
        )

    def __truediv__(self, other: Hierarchical) -> Hierarchical:
        return Hierarchical(
            self.shared / other.shared,
            _both(operator.truediv, self.conditional, other.conditional),
            _both(operator.truediv, self.pull, other.pull),
        )

    def __pow__(self, exponent: Number) -> Hierarchical:
        conditional = None if self.conditional is None else self.conditional**exponent
        return Hierarchical(self.shared**exponent, conditional, None if self.pull is None else self.pull**exponent)

    def concentrated(self) -> Hierarchical:
        """The shared parameters are fixed at their mean; the conditional part keeps its variance."""
        return replace(self, shared=self.shared.concentrated())

    def towards(self, other: Hierarchical, share: Number) -> Hierarchical:
        """The factor that lies this share of the way to another one, so that a fixed point stays one."""

        def between(one: DiagonalGaussian, two: DiagonalGaussian) -> DiagonalGaussian:
            return one ** (1.0 - share) * two**share  # a line in natural parameters

        return Hierarchical(
            between(self.shared, other.shared),
            _both(lambda one, two: one.towards(two, share), self.conditional, other.conditional),
            _both(between, self.pull, other.pull),
        )

    @property
    def is_proper(self) -> Bool[Array, ""]:
        """Whether phi has a proper distribution. Given phi, theta has one, since precisions are never negative."""
        finite = True if self.conditional is None else self.conditional.is_finite
        pulls = [jnp.all(jnp.isfinite(jnp.asarray(eta))) for eta in jax.tree.leaves(self.pull)]
        return self.shared.is_proper & jnp.all(jnp.stack([jnp.asarray(finite), *pulls]))


def _both(operate: Callable[[P, P], P], one: P | None, two: P | None) -> P | None:
    """The operation on two parts; None where one of them is missing."""
    return None if one is None or two is None else operate(one, two)


def joint(prior: Hierarchical, rows: Sequence[Hierarchical]) -> Hierarchical:
    """The prior times all factors; at least one factor is needed."""
    shared = prior.shared * product([row.shared for row in rows])
    conditionals = [row.conditional for row in rows if row.conditional is not None]
    together = conditionals[0].together(conditionals) if conditionals else None
    pulls = [q.pull for q in (prior, *rows) if q.pull is not None]
    return Hierarchical(shared, together, product(pulls) if len(pulls) == 1 + len(rows) else None)


def certain(phi: Float[Leaf, " d"]) -> DiagonalGaussian:
    """A point as a Gaussian with a negligible variance."""
    phi = np.asarray(phi)
    return DiagonalGaussian(CERTAIN * phi, np.full_like(phi, CERTAIN))
