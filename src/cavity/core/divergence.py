"""The contract of a divergence: how far a posterior may move from the cavity."""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from cavity.core.distribution import D, Distribution
from cavity.core.fields import Number


class Divergence(eqx.Module):
    """D(q : p), non-negative and zero at equality."""

    # whether `objective` uses only the mean, variance, entropy and cross term of q, which every form of q provides
    asks_moments_only: ClassVar[bool] = False
    needs_proper_cavity: ClassVar[bool] = False  # whether the divergence is undefined for an improper p
    is_kl: ClassVar[bool] = False  # whether it is KL itself, rather than a multiple of it

    @abc.abstractmethod
    def __call__(self, q: Distribution, p: Distribution) -> Float[Array, ""]:
        """D(q : p) in nats."""

    @abc.abstractmethod
    def objective(self, q: Distribution, p: Distribution) -> Float[Array, ""]:
        """D(q : p) up to a constant in q. Defined for an improper p wherever the local problem is.

        Where the divergence is infinite, so is this value, but its derivatives are finite, so that a line search steps
        back. For mean-field families the derivatives lead back to where the divergence is finite.
        """

    def check(self, family: Distribution) -> None:
        """Raise UnsuitableError unless the divergence is defined between members of the family of `family`."""
        return

    def inside(self, q: D, p: Distribution) -> D:
        """`q` where D(q : p) is finite; otherwise a narrower member around the same mean, where it is finite."""
        return q

    @property
    def kl_weight(self) -> Number | None:
        """The weight where D(q : p) = weight * KL(q : p); None for all other divergences."""
        return None


class MultipleOfKL(Divergence):
    """Capability: D(q : p) = weight * KL(q : p), so that exp(-loss / weight) is the exact factor."""

    @property
    @abc.abstractmethod
    def weight(self) -> Number:
        """The multiple."""

    @property
    def kl_weight(self) -> Number:
        return self.weight
