"""In which numbers gradient descent sees a distribution."""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from cavity.distributions import DiagonalGaussian
from cavity.distributions.mean_scale import MeanScale


class Coordinates(eqx.Module):
    """A map between Gaussians of a family and a pytree that an optimiser may change freely."""

    @abc.abstractmethod
    def of(self, q: Any) -> PyTree:
        """The coordinates of a member."""

    @abc.abstractmethod
    def member(self, coordinates: PyTree, like: Any) -> Any:
        """The density with these coordinates, in a form in which it is cheap to evaluate."""

    @abc.abstractmethod
    def natural(self, coordinates: PyTree, like: Any) -> Any:
        """The member of `like`'s family with these coordinates."""


class NaturalCoordinates(Coordinates):
    """The natural parameters themselves, in which one step of all clients is one of global VI (PVI, property 3.1).

    A large step may leave the proper members.
    """

    def of(self, q: Any) -> PyTree:
        return q

    def member(self, coordinates: PyTree, like: Any) -> Any:
        return coordinates

    def natural(self, coordinates: PyTree, like: Any) -> Any:
        return coordinates


class MeanRoot(eqx.Module):
    """A Gaussian with correlations, or with one scale for all, as an optimiser sees it.

    Attributes:
        mean: mu.
        log_scale: the logs of the diagonal of a root L of the covariance, Sigma = L L'.
        below: L below its diagonal, for the family that has one.
    """

    mean: Float[Array, " d"]
    log_scale: Float[Array, ...]
    below: Float[Array, "d d"] | None


class MomentCoordinates(Coordinates):
    """A mean and the logs of scales: every step stays proper, and the mean's gradient is free of the precision."""

    def of(self, q: Any) -> MeanScale | MeanRoot:
        if isinstance(q, MeanScale):
            return q
        if isinstance(q, DiagonalGaussian):
            return MeanScale.of(q)
        scale, below = q.root
        return MeanRoot(q.mean, jnp.log(scale), below)

    def member(self, coordinates: MeanScale | MeanRoot, like: Any) -> Any:
        return coordinates if isinstance(coordinates, MeanScale) else self.natural(coordinates, like)

    def natural(self, coordinates: MeanScale | MeanRoot, like: Any) -> Any:
        if isinstance(coordinates, MeanScale):
            return coordinates.natural
        return like.from_root(coordinates.mean, jnp.exp(coordinates.log_scale), coordinates.below)
