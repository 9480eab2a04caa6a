"""What a distribution must be able to do: the algebra of densities."""

from __future__ import annotations

import abc
from typing import Any, TypeVar

import equinox as eqx
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

D = TypeVar("D", bound="Distribution")


class Distribution(eqx.Module):
    """A member of a family, as an algebraic object; improper members (a factor, a cavity) are allowed."""

    @abc.abstractmethod
    def __mul__(self: D, other: D) -> D:
        """The product of two densities, not normalised."""

    @abc.abstractmethod
    def __truediv__(self: D, other: D) -> D:
        """The quotient of two densities, not normalised."""

    @abc.abstractmethod
    def __pow__(self: D, exponent: Any) -> D:
        """The density to a power; `q ** 0` is the factor that says nothing."""

    @property
    @abc.abstractmethod
    def is_proper(self) -> Bool[Array, ""]:
        """Whether the density can be normalised."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> PyTree:
        """Independent draws, with `shape` in front. Raises ImproperError on an improper member."""

    @abc.abstractmethod
    def log_prob(self, theta: PyTree) -> Float[Array, ""]:
        """The normalised log density at one theta. Raises ImproperError on an improper member."""

    @abc.abstractmethod
    def kl(self: D, other: D) -> Float[Array, ""]:
        """KL(self : other) in nats, in a form that does not cancel near equality."""
