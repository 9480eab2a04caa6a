"""The contract of a loss: what a client minimises in expectation."""

from __future__ import annotations

import abc

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from cavity.core.dataset import Data, weighted_sum
from cavity.core.distribution import Distribution
from cavity.core.fields import Number
from cavity.core.likelihood import Likelihood, Outcomes
from cavity.core.model import Model


class Loss(eqx.Module):
    """What a client minimises in expectation: the negative log likelihood, or a robust loss of single rows."""

    @abc.abstractmethod
    def check(self, model: Model) -> None:
        """Raise UnsuitableError where the loss is not defined for a model. Called at construction."""

    @abc.abstractmethod
    def __call__(self, model: Model, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        """The loss of each row at theta, for models whose likelihood is a sum over rows (`RowModel`)."""

    def total(self, model: Model, theta: PyTree, data: Data) -> Float[Array, ""]:
        """The weighted sum of the loss over all rows, at theta."""
        return weighted_sum(data, self(model, theta, data.batch))

    @abc.abstractmethod
    def of_predictor(self, likelihood: Likelihood, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        """The loss as a function of the predictor, elementwise."""

    def expected(
        self, likelihood: Likelihood, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Outcomes
    ) -> Float[Array, " n"] | None:
        """E[loss] for f ~ N(mean, covariance) in closed form; None where there is none and quadrature is used."""
        return None

    @property
    def needs_proper_cavity(self) -> bool:
        """Whether the cavity must be proper: the loss is bounded (no minimiser otherwise), or uses its mean."""
        return False

    @property
    def likelihood_power(self) -> Number | None:
        """The multiple of the negative log likelihood that this loss is; None if it is not such a multiple."""
        return None

    def in_context(self, model: Model, cavity: Distribution, data: Data) -> tuple[Loss, Data]:
        """The loss and the rows given a cavity. Most losses do not depend on it and return their arguments."""
        return self, data
