"""The parameters in which gradient descent represents a distribution."""

from __future__ import annotations

import abc
from typing import TypeVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from cavity.distributions import DiagonalGaussian
from cavity.distributions.gaussian import Gaussian, GaussianDensity
from cavity.distributions.mean_scale import MeanScale

G = TypeVar("G", bound=Gaussian)


class Coordinates(eqx.Module):
    """A map between Gaussians of a family and a pytree that an optimiser may change freely."""

    @abc.abstractmethod
    def of(self, q: GaussianDensity) -> PyTree:
        """The coordinates of a member."""

    @abc.abstractmethod
    def member(self, coordinates: PyTree, like: Gaussian) -> GaussianDensity:
        """The density with these coordinates, in a form in which it is cheap to evaluate."""

    @abc.abstractmethod
    def natural(self, coordinates: PyTree, like: G) -> G:
        """The member of the family of `like` with these coordinates."""


class NaturalCoordinates(Coordinates):
    """The natural parameters themselves, in which one step of all clients is one of global VI (PVI, property 3.1).

    A large step may give an improper member.
    """

    def of(self, q: GaussianDensity) -> PyTree:
        return q

    def member(self, coordinates: PyTree, like: Gaussian) -> GaussianDensity:
        return coordinates

    def natural(self, coordinates: PyTree, like: G) -> G:
        return coordinates


class MeanRoot(eqx.Module):
    """A Gaussian with correlations, or with one scale for all coordinates, as an optimiser represents it.

    Attributes:
        mean: mu.
        log_scale: the logs of the diagonal of a root L of the covariance, Sigma = L L'.
        below: L below its diagonal, for the family that has one.
    """

    mean: Float[Array, " d"]
    log_scale: Float[Array, ...]
    below: Float[Array, "d d"] | None


class MomentCoordinates(Coordinates):
    """A mean and the logs of scales: every step stays proper, and the mean's gradient is independent of the precision.

    A mean-field Gaussian is a `MeanScale`, all others are a `MeanRoot`.
    """

    def of(self, q: GaussianDensity) -> PyTree:
        if isinstance(q, MeanScale):
            return q
        if isinstance(q, DiagonalGaussian):
            return MeanScale.of(q)
        scale, below = q.root
        return MeanRoot(q.mean, jnp.log(scale), below)

    def member(self, coordinates: PyTree, like: Gaussian) -> GaussianDensity:
        return coordinates if is_mean_field(coordinates) else self.natural(coordinates, like)

    def natural(self, coordinates: PyTree, like: G) -> G:
        if is_mean_field(coordinates):
            return coordinates.natural
        return like.from_root(coordinates.mean, jnp.exp(coordinates.log_scale), coordinates.below)


def is_mean_field(coordinates: PyTree) -> bool:
    """Whether these are the coordinates of a mean-field Gaussian, which every divergence can evaluate directly."""
    return isinstance(coordinates, MeanScale)
