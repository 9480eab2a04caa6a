"""Models whose factors share variational parameters: federated sparse Gaussian processes, section 4."""

from __future__ import annotations

import abc
from typing import Generic, TypeVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from cavity.core.dataset import Data
from cavity.core.distribution import A, Density
from cavity.core.model import Model
from cavity.errors import UnsuitableError

C = TypeVar("C", bound=Density)  # the conditional density of theta


class SharedModel(Model, Generic[A, C]):
    """q(theta, phi) = q(theta | phi) q(phi), where phi is a flat vector that the factors of all clients share.

    A client's factor is a Gaussian over phi and, where theta is more than phi, a conditional density of theta. The
    client finds it by gradients in coordinates of its own, in closed form, or both.
    """

    prior: eqx.AbstractVar[A]

    @property
    @abc.abstractmethod
    def start(self) -> Float[Array, " d"]:
        """The initial mean of q(phi). At the prior mean all inducing inputs (or hidden units) would be equal."""

    @property
    @abc.abstractmethod
    def is_auxiliary(self) -> Bool[Array, " d"]:
        """Which entries of phi are variational parameters, whose KL may be weighted; the others are the model's own."""

    @abc.abstractmethod
    def no_factor(self) -> C | None:
        """The conditional part of the unit factor; None where theta is phi."""

    @abc.abstractmethod
    def coordinates(self, conditional: C | None, data: Data) -> PyTree:
        """Where the search for a client's conditional starts: at the current one, or at a first one from its rows."""

    @abc.abstractmethod
    def conditional(self, coordinates: PyTree) -> C | None:
        """The conditional with these coordinates."""

    @abc.abstractmethod
    def bound(self, phi: Float[Array, " d"], cavity: C | None, conditional: C | None, data: Data) -> Float[Array, ""]:
        """E[log p(rows | theta)] - KL(q(theta | phi) : cavity(theta | phi)) under q proportional to cavity * factor."""

    @property
    def has_surrogate_factors(self) -> bool:
        """Whether factors also approximate their rows as functions of phi; then `whole` and `surrogate_residual` exist.

        `solvers/shared_descent.py` uses them.
        """
        return False

    def whole(self, phi: Float[Array, " d"], cavity: C | None, conditional: C | None, data: Data) -> Float[Array, ""]:
        """The bound of all rows given phi, where the factors in the cavity replace the other clients' rows."""
        raise UnsuitableError(f"the factors of {type(self).__name__} do not approximate rows as functions of phi")

    def surrogate_residual(
        self, phi: Float[Array, " d"], cavity: C | None, conditional: C | None, data: Data
    ) -> Float[Array, ""]:
        """The rows' term of the bound minus that of their factor: the error of `whole` at every other client."""
        raise UnsuitableError(f"the factors of {type(self).__name__} do not approximate rows as functions of phi")

    def moved(
        self, phi: Float[Array, " d"], before: C | None, cavity: C | None, conditional: C | None
    ) -> Float[Array, ""]:
        """KL(q(theta | phi) of cavity and factor : q(theta | phi) before); zero where theta is phi."""
        return jnp.zeros((), phi.dtype)

    @property
    def improves_on_all_rows(self) -> bool:
        """Whether `improved` needs all of a client's rows rather than a mini-batch."""
        return False

    def improved(
        self, phi: Float[Array, " d"], cavity: C | None, coordinates: PyTree, data: Data, rate: Float[Array, ""]
    ) -> PyTree:
        """The coordinates after a step of this rate towards the optimum given phi, where it has a closed form."""
        return coordinates

    def remark_on(self, conditional: C | None, data: Data) -> str | None:
        """What the owner of the data should know about a client's factor before it is sent."""
        return None

    def log_prob(self, theta: PyTree, data: Data) -> Float[Array, ""]:
        raise UnsuitableError(f"{type(self).__name__} has a bound for its rows, and no likelihood in closed form")


class SharedProblem(eqx.Module, Generic[A, C]):
    """A client's local problem in such a model; cavity, posterior and factor are over phi and theta.

    Attributes:
        model: with its hyperparameters.
        cavity: posterior / factor.
        posterior: as it was received.
        factor: the client's current factor.
        data: the rows.
        alpha: the weight of KL(q(phi) : prior) for variational parameters, or of KL(q(phi) : cavity) where factors do
            not approximate rows as functions of phi.
    """

    model: SharedModel[A, C]
    cavity: A
    posterior: A
    factor: A
    data: Data
    alpha: Float[Array, ""]


class SharedSolution(eqx.Module, Generic[A]):
    """What a solver of a `SharedProblem` found.

    Attributes:
        factor: the client's new factor.
        objective: the last estimate of what is minimised, in nats.
        steps: iterations taken.
        converged: whether the convergence test ended the solve (otherwise the step limit did).
    """

    factor: A
    objective: Float[Array, ""]
    steps: Int[Array, ""]
    converged: Bool[Array, ""]
