"""What a client says about a Gaussian process: a factor over u = f(Z), for any inducing inputs Z and any kernel.

Federated sparse Gaussian processes, section 5.1. Decoupled pseudo-observations {V, m, S} are (equation 12)

    t(u | Z, beta) = N(K_VZ K_ZZ^-1 u; m, S)

as if m had been observed at V with noise S; coupled ones are N(u; m, S) wherever Z is. Both are kept as S^-1 and
S^-1 m, so that no observation is a precision of zero. A product is the union of decoupled ones, and a sum of natural
parameters of coupled ones; a power scales S^-1.

A decoupled factor says the same of u as rows would that are m at V, each seen S^-1 times (in units of the noise, where
S is a multiple of it); so it can stand in for its rows as a function of Z and beta too (`squares`).

With K_ZZ = L L' and u = L v, v ~ N(0, I), rows x see u through their features k(x, Z) L^-T, and a factor is
exp(g . v - v' P v / 2) with

    P = A' S^-1 A,   g = A' S^-1 m,   A = K_VZ L^-T  (L where they are coupled)
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from cavity.distributions.natural import ArrayLike

O = TypeVar("O", bound="Observations")  # noqa: E741
Features = Callable[[Float[Array, "*batch d"]], Float[Array, "*batch m"]]
Kernel = Callable[..., Array]  # k(x) is the variance at each x, k(x, x') the covariances
RIDGE = 1e-10  # relative to a trace, where a matrix of full noise is inverted


class Observations(eqx.Module):
    """A factor over the values of a function at inducing inputs, as an algebraic object."""

    @classmethod
    @abc.abstractmethod
    def together(cls: type[O], several: Sequence[O]) -> O:
        """The product of several factors."""

    def __mul__(self: O, other: O) -> O:
        """Both."""
        return self.together([self, other])

    def __truediv__(self: O, other: O) -> O:
        """Without the other."""
        return self.together([self, other**-1.0])

    @abc.abstractmethod
    def __pow__(self: O, exponent: Any) -> O:
        """Observed so many times."""

    @abc.abstractmethod
    def towards(self: O, other: O, share: Any) -> O:
        """The way to another factor, this share of it; what is there alone counts from the start."""

    @abc.abstractmethod
    def seen(self, root: Float[Array, "m m"], features: Features) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
        """(P, g), with L and the features of inputs."""

    @property
    @abc.abstractmethod
    def is_finite(self) -> Bool[Array, ""]:
        """Whether all of its numbers are."""


class PseudoObservations(Observations):
    """Decoupled pseudo-observations of one client, or of several as groups.

    Attributes:
        inputs: V.
        shift: S^-1 m.
        precision: S^-1, its diagonal or all of it.
    """

    inputs: Float[ArrayLike, "groups k d"]
    shift: Float[ArrayLike, "groups k"]
    precision: Float[ArrayLike, "groups k *k"]

    @classmethod
    def none(cls, groups: int, size: int, dimension: int, *, full: bool) -> PseudoObservations:
        """Observations that say nothing."""
        square = (size, size) if full else (size,)
        zeros = [jnp.zeros((groups, *shape)) for shape in ((size, dimension), (size,), square)]
        return cls(*zeros)

    @classmethod
    def together(cls, several: Sequence[PseudoObservations]) -> PseudoObservations:
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(list(several)))
        concatenate: Any = jnp.concatenate if traced else np.concatenate
        return jax.tree.map(lambda *leaves: concatenate(leaves, axis=0), *several)

    def __pow__(self, exponent: Any) -> PseudoObservations:
        return PseudoObservations(self.inputs, exponent * self.shift, exponent * self.precision)

    def towards(self, other: PseudoObservations, share: Any) -> PseudoObservations:
        def way(here: Any, there: Any) -> Any:
            return here + share * (there - here)

        nowhere = np.all(np.asarray(self.precision) == 0)
        inputs = other.inputs if nowhere else way(self.inputs, other.inputs)
        return PseudoObservations(inputs, way(self.shift, other.shift), way(self.precision, other.precision))

    def seen(self, root: Float[Array, "m m"], features: Features) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
        inputs, shift, precision = (jnp.asarray(leaf) for leaf in (self.inputs, self.shift, self.precision))
        a = features(inputs)
        if precision.ndim == 2:
            flat = a.reshape(-1, a.shape[-1])
            return flat.T @ (precision.reshape(-1, 1) * flat), shift.reshape(-1) @ flat
        return jnp.einsum("gkm,gkl,gln->mn", a, precision, a), jnp.einsum("gk,gkm->m", shift, a)

    def squares(self, kernel: Kernel) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """(tr S^-1 K_VV, m' S^-1 m, the number of rows that these stand for), each the sum over groups.

        The number is tr S^-1 where S is diagonal and a multiple of the noise, and that of places in use where S is
        full, whose trace may be anything. What was divided out of a union counts as taken away.
        """
        inputs, shift, precision = (jnp.asarray(leaf) for leaf in (self.inputs, self.shift, self.precision))
        if precision.ndim == 2:
            flat, weight = inputs.reshape(-1, inputs.shape[-1]), precision.reshape(-1)
            m = shift / jnp.where(precision == 0, 1.0, precision)
            return weight @ kernel(flat), jnp.sum(shift * m), jnp.sum(weight)
        traces = jnp.trace(precision, axis1=1, axis2=2)
        # S^-1 may have no inverse; the ridge has its sign, which is that of having been multiplied or divided out
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
        """M = S (S^-1 m); NaN where nothing is observed."""
        shift, precision = np.asarray(self.shift), np.asarray(self.precision)
        if precision.ndim == 3:
            return np.stack([np.linalg.pinv(p) @ h for p, h in zip(precision, shift, strict=True)])
        return np.divide(shift, precision, out=np.full_like(shift, np.nan), where=precision > 0)


class CoupledObservations(Observations):
    """N(u; m, S), whatever the inducing inputs are.

    Attributes:
        shift: S^-1 m.
        precision: S^-1.
    """

    shift: Float[ArrayLike, " m"]
    precision: Float[ArrayLike, "m m"]

    @classmethod
    def none(cls, size: int) -> CoupledObservations:
        """Observations that say nothing."""
        return cls(jnp.zeros(size), jnp.zeros((size, size)))

    @classmethod
    def together(cls, several: Sequence[CoupledObservations]) -> CoupledObservations:
        return jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *several)

    def __pow__(self, exponent: Any) -> CoupledObservations:
        return CoupledObservations(exponent * self.shift, exponent * self.precision)

    def towards(self, other: CoupledObservations, share: Any) -> CoupledObservations:
        return self ** (1.0 - share) * other**share

    def seen(self, root: Float[Array, "m m"], features: Features) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
        return root.T @ self.precision @ root, root.T @ self.shift

    @property
    def is_finite(self) -> Bool[Array, ""]:
        return jnp.all(jnp.isfinite(jnp.asarray(self.shift))) & jnp.all(jnp.isfinite(jnp.asarray(self.precision)))
