"""The contract of a distribution: the algebra of densities, and what a proper density offers besides."""

from __future__ import annotations

import abc
from typing import TypeVar

import equinox as eqx
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from cavity.core.fields import Number

CONCENTRATION = 1e16  # this power of a Gaussian has the same mean and practically no variance
_A = TypeVar("_A", bound="Density")
_D = TypeVar("_D", bound="Distribution")


class Density(eqx.Module):
    """A density as an algebraic object, not normalised: a prior, posterior, factor or cavity, proper or not."""

    @abc.abstractmethod
    def __mul__(self: _A, other: _A) -> _A:
        """The product of two densities, not normalised."""

    @abc.abstractmethod
    def __truediv__(self: _A, other: _A) -> _A:
        """The quotient of two densities, not normalised."""

    @abc.abstractmethod
    def __pow__(self: _A, exponent: Number) -> _A:
        """The density to a power. `q ** 0` is the unit factor, which is constant in theta."""

    @property
    @abc.abstractmethod
    def is_proper(self) -> Bool[Array, ""]:
        """Whether the density can be normalised."""

    def concentrated(self: _A) -> _A:
        """A proper density concentrated at its mean, or at its mode: practically without variance."""
        return self**CONCENTRATION


class Distribution(Density):
    """A member of a family of densities; improper members (a factor, a cavity) are allowed."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> PyTree:
        """Draw independent samples.

        Args:
            key: the random key.
            shape: leading axes of the result.

        Raises:
            ImproperError: the member is improper.
        """

    @abc.abstractmethod
    def log_prob(self, theta: PyTree) -> Float[Array, ""]:
        """The normalised log density at one theta, in nats. Raises ImproperError on an improper member."""

    @abc.abstractmethod
    def kl(self: _D, other: _D) -> Float[Array, ""]:
        """KL(self : other) in nats, computed so that digits do not cancel near equality."""

    @property
    @abc.abstractmethod
    def mean(self) -> PyTree:
        """E[theta], in the form of theta."""

    @property
    @abc.abstractmethod
    def variance(self) -> PyTree:
        """The marginal variances, in the form of theta."""

    @property
    @abc.abstractmethod
    def entropy(self) -> Float[Array, ""]:
        """-E_self[log self], in nats."""

    @abc.abstractmethod
    def cross(self: _D, factor: _D) -> Float[Array, ""]:
        """E_self[log factor(theta)] in nats; the factor is not normalised and may be improper."""


# for other modules: bounds that are classes can be checked anywhere, names only where they are defined
A = TypeVar("A", bound=Density)
D = TypeVar("D", bound=Distribution)
