"""What the robust losses share: they depend on a row through its likelihood."""

from __future__ import annotations

import abc

from jaxtyping import Array, Float, PyTree

from cavity.core import Likelihood, Loss, Model, PredictorModel
from cavity.core.fields import require_capability


class PredictorLoss(Loss):
    """A loss of p(y | f), for models that have predictors."""

    @abc.abstractmethod
    def check_likelihood(self, likelihood: Likelihood) -> None:
        """Raise UnsuitableError where the loss is not defined for the likelihood."""

    def check(self, model: Model) -> None:
        self.check_likelihood(self._with_predictors(model).likelihood)

    def _with_predictors(self, model: Model) -> PredictorModel:
        return require_capability(
            model.predictor_model,
            f"the loss {type(self).__name__} needs a model with a likelihood of outcomes given predictors; "
            f"{type(model).__name__} has none. Use a regression, a network, or the negative log likelihood",
        )

    def __call__(self, model: Model, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        found = self._with_predictors(model)
        return self.of_predictor(found.likelihood, *found.predictor(theta, batch))


def name_of(likelihood: Likelihood) -> str:
    """The name of a likelihood, for messages."""
    return type(likelihood).__name__
