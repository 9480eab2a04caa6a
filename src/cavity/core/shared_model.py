"""Models whose factors share variational parameters: federated sparse Gaussian processes, section 4."""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from cavity.core.model import Data, Model
from cavity.errors import UnsuitableError


class SharedModel(Model):
    """q(theta, phi) = q(theta | phi) q(phi), with phi a flat vector that the factors of all clients have in common.

    A client's factor is a Gaussian over phi and, where theta is more than phi, a conditional one over theta, which it
    finds by gradients in coordinates of its own, in closed form, or both.
    """

    @property
    @abc.abstractmethod
    def start(self) -> Float[Array, " d"]:
        """Where the mean of q(phi) starts; its prior mean would leave inducing inputs (or hidden units) alike."""

    @property
    @abc.abstractmethod
    def is_auxiliary(self) -> Bool[Array, " d"]:
        """Which entries of phi are variational parameters, whose KL may be weighed; the others are the model's own."""

    @abc.abstractmethod
    def no_factor(self) -> Any:
        """The conditional part of a factor that says nothing; None where there is none."""

    @abc.abstractmethod
    def coordinates(self, conditional: Any, data: Data) -> PyTree:
        """Where the search for a client's conditional starts: at the one it has, or at a first one from its rows."""

    @abc.abstractmethod
    def conditional(self, coordinates: PyTree) -> Any:
        """The conditional of these coordinates."""

    @abc.abstractmethod
    def bound(self, phi: Float[Array, " d"], cavity: Any, conditional: Any, data: Data) -> Float[Array, ""]:
        """E[log p(rows | theta)] - KL(q(theta | phi) : cavity(theta | phi)) under q proportional to cavity * factor."""

    @property
    def has_surrogate_factors(self) -> bool:
        """Whether factors can stand in for their rows as functions of phi too: then `whole` and `unsaid` are there.

        `solvers/shared_descent.py` says what for.
        """
        return False

    def whole(self, phi: Float[Array, " d"], cavity: Any, conditional: Any, data: Data) -> Float[Array, ""]:
        """The bound of all rows given phi, with the factors in the cavity in the place of the others' rows."""
        raise UnsuitableError(f"the factors of {type(self).__name__} do not stand in for rows")

    def surrogate_residual(
        self, phi: Float[Array, " d"], cavity: Any, conditional: Any, data: Data
    ) -> Float[Array, ""]:
        """The rows' term of the bound minus that of their factor: what `whole` misses of them at any other client."""
        raise UnsuitableError(f"the factors of {type(self).__name__} do not stand in for rows")

    def moved(self, phi: Float[Array, " d"], before: Any, cavity: Any, conditional: Any) -> Float[Array, ""]:
        """KL(q(theta | phi) of cavity and factor : as it was before); zero where theta is phi."""
        return jnp.zeros((), phi.dtype)

    @property
    def improves_on_all_rows(self) -> bool:
        """Whether `improved` needs all of a client's rows, and not a mini-batch of them."""
        return False

    def improved(
        self, phi: Float[Array, " d"], cavity: Any, coordinates: PyTree, data: Data, rate: Float[Array, ""]
    ) -> PyTree:
        """The coordinates after a step of this rate to what is optimal given phi, where that has a closed form."""
        return coordinates

    def remark_on(self, conditional: Any, data: Data) -> str | None:
        """What a client's owner should know of its factor before it leaves."""
        return None

    def log_prob(self, theta: PyTree, data: Data) -> Float[Array, ""]:
        raise UnsuitableError(f"{type(self).__name__} knows its rows by a bound, and not by their likelihood")


class SharedProblem(eqx.Module):
    """All that a solver needs for a client's factor; cavity, posterior and factor are over phi and theta.

    Attributes:
        model: with its hyperparameters.
        cavity: posterior / factor.
        posterior: as it was received.
        factor: as it was.
        data: the rows.
        alpha: the weight of KL(q(phi) : prior), or cavity where others do not stand in, for variational parameters.
    """

    model: SharedModel
    cavity: Any
    posterior: Any
    factor: Any
    data: Data
    alpha: Float[Array, ""]
