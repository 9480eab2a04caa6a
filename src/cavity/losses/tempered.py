"""A loss with a weight relative to the divergence: the learning rate of generalised Bayes (FedGVI, eq. 2)."""

from __future__ import annotations

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from cavity.core import Data, Distribution, Likelihood, Loss, Model
from cavity.core.fields import Number, as_number, require, require_kind
from cavity.core.likelihood import Outcomes
from cavity.losses.nll import NegativeLogLikelihood


class Tempered(Loss):
    """weight * loss. With the negative log likelihood, the default, this is a power of the likelihood.

    Attributes:
        weight: positive; below 1 the data count less than under Bayes' theorem, above 1 more.
        loss: the loss that is weighted.
    """

    weight: Float[Array, ""] = eqx.field(converter=as_number)
    loss: Loss = NegativeLogLikelihood()

    def __check_init__(self) -> None:
        require(self.weight, lambda weight: weight > 0, "the weight of a loss must be positive")
        require_kind(self.loss, Loss, "the weight comes first and a loss second, as in Tempered(2.0, Beta(0.5))")

    def check(self, model: Model) -> None:
        self.loss.check(model)

    def __call__(self, model: Model, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        return self._weigh(self.loss(model, theta, batch))

    def total(self, model: Model, theta: PyTree, data: Data) -> Float[Array, ""]:
        return self._weigh(self.loss.total(model, theta, data))

    def of_predictor(self, likelihood: Likelihood, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        return self._weigh(self.loss.of_predictor(likelihood, f, y))

    def _weigh(self, values: Float[Array, ...]) -> Float[Array, ...]:
        return self.weight.astype(values.dtype) * values

    def expected(
        self, likelihood: Likelihood, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Outcomes
    ) -> Float[Array, " n"] | None:
        values = self.loss.expected(likelihood, mean, covariance, y)
        return None if values is None else self._weigh(values)

    @property
    def needs_proper_cavity(self) -> bool:
        return self.loss.needs_proper_cavity

    @property
    def likelihood_power(self) -> Number | None:
        power = self.loss.likelihood_power
        return None if power is None else self.weight * power

    def in_context(self, model: Model, cavity: Distribution, data: Data) -> tuple[Loss, Data]:
        loss, data = self.loss.in_context(model, cavity, data)
        return self if loss is self.loss else Tempered(self.weight, loss), data
