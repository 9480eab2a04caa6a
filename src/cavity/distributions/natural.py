"""Exponential families in natural parameters: q(theta) = exp(eta . T(theta) - A(eta)).

The array leaves of a member *are* its natural parameters eta, so products, quotients and powers of densities are
sums, differences and multiples of leaves (PVI, section 3.3). The leaves may be numpy arrays (the server's, in
float64) or jax arrays (a client's); the algebra returns the kind that it is given.
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Distribution
from cavity.core.fields import Number, is_traced
from cavity.core.messages import Stacked
from cavity.core.types import Leaf
from cavity.errors import ImproperError

ArrayLike = Leaf
D = TypeVar("D", bound=Distribution)
E = TypeVar("E", bound="ExponentialFamily")
LARGE = 4096  # numbers per leaf above which leaves are summed one by one


def require_proper(q: D, action: str) -> D:
    """Return `q`, or raise ImproperError. Inside a compiled function the error is raised when it runs.

    Args:
        q: the member to check.
        action: what needs a proper member, for the message: "cannot {action} an improper ...".
    """
    message = f"cannot {action} an improper {type(q).__name__}: its density has no finite integral"
    if is_traced(q.is_proper):
        return eqx.error_if(q, ~q.is_proper, message)
    if not q.is_proper:
        raise ImproperError(message)
    return q


class ExponentialFamily(Distribution):
    """The algebra of natural parameters, and what follows from the log-partition function A."""

    def __mul__(self: E, other: E) -> E:
        return jax.tree.map(operator.add, self, other)

    def __truediv__(self: E, other: E) -> E:
        return jax.tree.map(operator.sub, self, other)

    def __pow__(self: E, exponent: Number) -> E:
        return jax.tree.map(lambda eta: exponent * eta, self)

    @property
    @abc.abstractmethod
    def log_partition(self) -> Float[Array, ""]:
        """A(eta) = log of the integral of exp(eta . T(theta)); undefined for an improper member."""

    @property
    @abc.abstractmethod
    def mean_parameters(self) -> tuple[Array, ...]:
        """E_q[T(theta)] = dA/deta, one array per leaf, in the order of the leaves."""

    @abc.abstractmethod
    def statistics(self, theta: PyTree) -> tuple[Array, ...]:
        """T(theta), one array per leaf, in the order of the leaves."""

    @abc.abstractmethod
    def transform(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> PyTree:
        """Draws of a member that is known to be proper; differentiable in eta where that is possible."""

    def log_factor(self, theta: PyTree) -> Float[Array, ""]:
        """Eta . T(theta): the log density without its normaliser, defined for improper members too."""
        return inner(self, self.statistics(theta))

    def log_prob(self, theta: PyTree) -> Float[Array, ""]:
        q = require_proper(self, "score with")
        return q.log_factor(theta) - q.log_partition

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> PyTree:
        return require_proper(self, "sample from").transform(key, shape)

    @property
    def entropy(self) -> Float[Array, ""]:
        return self.log_partition - inner(self, self.mean_parameters)

    def cross(self: E, factor: E) -> Float[Array, ""]:
        return inner(factor, self.mean_parameters)


def inner(q: ExponentialFamily, statistics: Sequence[Array]) -> Float[Array, ""]:
    """Eta . t, over all leaves."""
    return total(jnp.sum(eta * t) for eta, t in zip(jax.tree.leaves(q), statistics, strict=True))


def total(values: Iterable[Float[Array, ""]]) -> Float[Array, ""]:
    """The sum of some scalars, from left to right."""
    return reduce(operator.add, values)


def kl_by_log_partition(q: ExponentialFamily, p: ExponentialFamily) -> Float[Array, ""]:
    """KL(q : p) = (eta_q - eta_p) . E_q[T] - A(q) + A(p), the Bregman divergence of A."""
    return inner(q / p, q.mean_parameters) - q.log_partition + p.log_partition


def product(factors: Sequence[D] | Stacked) -> D:
    """The product of several members of one family: the sum of their leaves, where they are natural parameters."""
    if isinstance(factors, Stacked) and isinstance(factors.tree, ExponentialFamily):
        return jax.tree.map(lambda etas: etas.sum(axis=0), factors.tree)
    first = factors[0]
    if isinstance(first, ExponentialFamily):
        return jax.tree.map(_sum, *factors)
    return reduce(operator.mul, (factors[index] for index in range(len(factors))))


def _sum(*etas: Number) -> np.ndarray | np.number:
    """Sum small arrays by a stack and large ones one by one, whose stack would take as much memory as all of them."""
    if np.size(etas[0]) < LARGE:
        return np.sum(np.stack(etas), axis=0)
    total = np.array(etas[0])
    for eta in etas[1:]:
        total += eta
    return total
