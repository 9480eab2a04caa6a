"""Exponential families in natural parameters: q(theta) = exp(eta . T(theta) - A(eta)).

A member's array leaves *are* its natural parameters eta, so products, quotients and powers of densities are
sums, differences and multiples of leaves (PVI, section 3.3). The leaves may be numpy arrays (the server's, in
float64) or jax arrays (a client's); the algebra keeps what it is given.
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Distribution
from cavity.core.messages import Stacked
from cavity.errors import ImproperError

ArrayLike = Array | np.ndarray
D = TypeVar("D", bound=Distribution)
E = TypeVar("E", bound="ExponentialFamily")
LARGE = 4096  # numbers


def require_proper(q: D, action: str) -> D:
    """`q` itself, or ImproperError; inside a compiled function the error comes when it runs."""
    message = f"cannot {action} an improper {type(q).__name__}: its density has no finite integral"
    if isinstance(q.is_proper, Tracer):
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

    def __pow__(self: E, exponent: Any) -> E:
        return jax.tree.map(lambda eta: exponent * eta, self)

    @property
    @abc.abstractmethod
    def log_partition(self) -> Float[Array, ""]:
        """A(eta) = log of the integral of exp(eta . T(theta)); meaningless for an improper member."""

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
        """-E_q[log q], in nats."""
        return self.log_partition - inner(self, self.mean_parameters)

    def cross(self: E, factor: E) -> Float[Array, ""]:
        """E_self[log factor(theta)], the factor not normalised and perhaps improper."""
        return inner(factor, self.mean_parameters)


def inner(q: ExponentialFamily, statistics: Sequence[Array]) -> Float[Array, ""]:
    """Eta . t, over all leaves."""
    return sum(jnp.sum(eta * t) for eta, t in zip(jax.tree.leaves(q), statistics, strict=True))  # pyright: ignore[reportReturnType]


def kl_by_log_partition(q: ExponentialFamily, p: ExponentialFamily) -> Float[Array, ""]:
    """KL(q : p) = (eta_q - eta_p) . E_q[T] - A(q) + A(p), the Bregman divergence of A."""
    return inner(q / p, q.mean_parameters) - q.log_partition + p.log_partition


def product(factors: Sequence[D] | Stacked) -> D:
    """The product of several members of one family; a stack and a sum, where their leaves agree in shape."""
    if isinstance(factors, Stacked) and isinstance(factors.tree, ExponentialFamily):
        return jax.tree.map(lambda etas: etas.sum(axis=0), factors.tree)
    first = factors[0]
    if isinstance(first, ExponentialFamily):
        return jax.tree.map(_sum, *factors)
    total: Any = first
    for index in range(1, len(factors)):
        total = total * factors[index]
    return total


def _sum(*etas: Any) -> Any:
    """Of many small arrays by a stack, of large ones one by one: their stack would be as large as all of them."""
    if np.size(etas[0]) < LARGE:
        return np.sum(np.stack(etas), axis=0)
    total = np.array(etas[0])
    for eta in etas[1:]:
        total += eta
    return total
