"""In which numbers gradient descent sees a distribution."""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class Coordinates(eqx.Module):
    """A map between Gaussians of a family and a pytree that an optimiser may change freely."""

    @abc.abstractmethod
    def of(self, q: Any) -> PyTree:
        """The coordinates of a member."""

    @abc.abstractmethod
    def member(self, coordinates: PyTree, like: Any) -> Any:
        """The member of `like`'s family with these coordinates."""


class NaturalCoordinates(Coordinates):
    """The natural parameters themselves, in which one step of all clients is one of global VI (PVI, property 3.1).

    A large step may leave the proper members.
    """

    def of(self, q: Any) -> PyTree:
        return q

    def member(self, coordinates: PyTree, like: Any) -> Any:
        return coordinates


class Moments(eqx.Module):
    """A Gaussian as an optimiser sees it.

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

    def of(self, q: Any) -> Moments:
        scale, below = q.root
        return Moments(q.mean, jnp.log(scale), below)

    def member(self, coordinates: Moments, like: Any) -> Any:
        return like.from_root(coordinates.mean, jnp.exp(coordinates.log_scale), coordinates.below)
