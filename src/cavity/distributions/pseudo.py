"""A client's factor in a Gaussian process: a density over u = f(Z), for any inducing inputs Z and any kernel.

Federated sparse Gaussian processes, section 5.1. Decoupled pseudo-observations {V, m, S} are (equation 12)

    t(u | Z, beta) = N(K_VZ K_ZZ^-1 u; m, S)

as if m had been observed at V with noise S; coupled ones are N(u; m, S) for every Z. Both are stored as S^-1 and
S^-1 m, so that a missing observation is a precision of zero. The product of decoupled factors is their union, the
product of coupled ones is the sum of their natural parameters; a power scales S^-1.

A decoupled factor has the same information about u as rows with outcomes m at V, each observed S^-1 times (in units of
the noise, where S is a multiple of it). It can therefore replace its rows as a function of Z and beta too (`squares`).

With K_ZZ = L L' and u = L v, v ~ N(0, I), rows x depend on u through their features k(x, Z) L^-T, and a factor is
exp(g . v - v' P v / 2) with

    P = A' S^-1 A,   g = A' S^-1 m,   A = K_VZ L^-T  (L where they are coupled)
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from cavity.core import Density
from cavity.core.fields import Number, is_traced
from cavity.core.types import Leaf

O = TypeVar("O", bound="Observations")  # noqa: E741
Features = Callable[[Float[Array, "*batch d"]], Float[Array, "*batch m"]]
Kernel = Callable[..., Array]  # k(x) is the variance at each x, k(x, x') the covariances
RIDGE = 1e-10  # relative to a trace, where a matrix of full noise is inverted


class Observations(Density):
    """A factor over the values of a function at inducing inputs, as an algebraic object."""

    @classmethod
    @abc.abstractmethod
    def together(cls: type[O], several: Sequence[O]) -> O:
        """The product of several factors."""

    def __mul__(self: O, other: O) -> O:
        """The product of two factors."""
        return self.together([self, other])

    def __truediv__(self: O, other: O) -> O:
        """The quotient of two factors."""
        return self.together([self, other**-1.0])

    @abc.abstractmethod
    def __pow__(self: O, exponent: Number) -> O:
        """The factor as if it had been observed `exponent` times."""

    @abc.abstractmethod
    def towards(self: O, other: O, share: Number) -> O:
        """The factor that lies this share of the way to another one; inputs that only the other has are its own."""

    @abc.abstractmethod
    def seen(self, root: Float[Array, "m m"], features: Features) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
        """(P, g) of the equation above, given L and the features of inputs."""

    @property
    @abc.abstractmethod
    def is_finite(self) -> Bool[Array, ""]:
        """Whether all numbers are finite."""

    @property
    def is_proper(self) -> Bool[Array, ""]:
        """Whether the factor times a Gaussian process is proper: precisions are never negative by construction."""
        return self.is_finite


class PseudoObservations(Observations):
    """Decoupled pseudo-observations of one client, or of several as groups.

    Attributes:
        inputs: V.
        shift: S^-1 m.
        precision: S^-1, its diagonal or all of it.
    """

    inputs: Float[Leaf, "groups k d"]
    shift: Float[Leaf, "groups k"]
    precision: Float[Leaf, "groups k *k"]

    @classmethod
    def none(cls, groups: int, size: int, dimension: int, *, full: bool) -> PseudoObservations:
        """The unit factor."""
        square = (size, size) if full else (size,)
        zeros = [jnp.zeros((groups, *shape)) for shape in ((size, dimension), (size,), square)]
        return cls(*zeros)

    @classmethod
    def together(cls, several: Sequence[PseudoObservations]) -> PseudoObservations:
        traced = any(is_traced(leaf) for leaf in jax.tree.leaves(list(several)))

        def union(*leaves: Leaf) -> Leaf:
            return jnp.concatenate(leaves, axis=0) if traced else np.concatenate(leaves, axis=0)

        return jax.tree.map(union, *several)

    def __pow__(self, exponent: Number) -> PseudoObservations:
        return PseudoObservations(self.inputs, exponent * self.shift, exponent * self.precision)

    def towards(self, other: PseudoObservations, share: Number) -> PseudoObservations:
        def way(here: Leaf, there: Leaf) -> Leaf:
            return here + share * (there - here)

        is_unit = np.all(np.asarray(self.precision) == 0)
        inputs = other.inputs if is_unit else way(self.inputs, other.inputs)
        return PseudoObservations(inputs, way(self.shift, other.shift), way(self.precision, other.precision))

    def seen(self, root: Float[Array, "m m"], features: Features) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
        inputs, shift, precision = (jnp.asarray(leaf) for leaf in (self.inputs, self.shift, self.precision))
        a = features(inputs)
        if precision.ndim == 2:
            flat = a.reshape(-1, a.shape[-1])
            return flat.T @ (precision.reshape(-1, 1) * flat), shift.reshape(-1) @ flat
        return jnp.einsum("gkm,gkl,gln->mn", a, precision, a), jnp.einsum("gk,gkm->m", shift, a)

    def squares(self, kernel: Kernel) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """(tr S^-1 K_VV, m' S^-1 m, the number of rows that these replace), each the sum over groups.

        The number of rows is tr S^-1 where S is diagonal and a multiple of the noise. Where S is full, its trace is
        arbitrary, and the number is that of the inputs in use. A factor that was divided out counts negatively.
        """
        inputs, shift, precision = (jnp.asarray(leaf) for leaf in (self.inputs, self.shift, self.precision))
        if precision.ndim == 2:
            flat, weight = inputs.reshape(-1, inputs.shape[-1]), precision.reshape(-1)
            m = shift / jnp.where(precision == 0, 1.0, precision)
            return weight @ kernel(flat), jnp.sum(shift * m), jnp.sum(weight)
        traces = jnp.trace(precision, axis1=1, axis2=2)
        # S^-1 may be singular; the ridge has the sign of S^-1, which is negative for a factor that was divided out
        size = precision.shape[-1]
        least = max(RIDGE, 10 * size * float(jnp.finfo(precision.dtype).eps))
        ridge = jnp.where(traces == 0, 1.0, least * traces / max(size, 1))[:, None, None]
        m = jnp.linalg.solve(precision + ridge * jnp.eye(size, dtype=precision.dtype), shift[..., None])[..., 0]
        covariances = jax.vmap(lambda v: kernel(v, v))(inputs)
        in_use = jnp.sign(jnp.diagonal(precision, axis1=1, axis2=2))
        return jnp.sum(precision * covariances), jnp.sum(shift * m), jnp.sum(in_use)

    @property
    def is_finite(self) -> Bool[Array, ""]:
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(self)]))

    @property
    def outcomes(self) -> Float[np.ndarray, "groups k"]:
        """M = S (S^-1 m); NaN where there is no observation."""
        shift, precision = np.asarray(self.shift), np.asarray(self.precision)
        if precision.ndim == 3:
            return np.stack([np.linalg.pinv(p) @ h for p, h in zip(precision, shift, strict=True)])
        return np.divide(shift, precision, out=np.full_like(shift, np.nan), where=precision > 0)


class CoupledObservations(Observations):
    """N(u; m, S), for any inducing inputs.

    Attributes:
        shift: S^-1 m.
        precision: S^-1.
    """

    shift: Float[Leaf, " m"]
    precision: Float[Leaf, "m m"]

    @classmethod
    def none(cls, size: int) -> CoupledObservations:
        """The unit factor."""
        return cls(jnp.zeros(size), jnp.zeros((size, size)))

    @classmethod
    def together(cls, several: Sequence[CoupledObservations]) -> CoupledObservations:
        return jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *several)

    def __pow__(self, exponent: Number) -> CoupledObservations:
        return CoupledObservations(exponent * self.shift, exponent * self.precision)

    def towards(self, other: CoupledObservations, share: Number) -> CoupledObservations:
        return self ** (1.0 - share) * other**share

    def seen(self, root: Float[Array, "m m"], features: Features) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
        return root.T @ self.precision @ root, root.T @ self.shift

    @property
    def is_finite(self) -> Bool[Array, ""]:
        return jnp.all(jnp.isfinite(jnp.asarray(self.shift))) & jnp.all(jnp.isfinite(jnp.asarray(self.precision)))
