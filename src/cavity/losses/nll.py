"""The negative log likelihood: the loss of PVI, EP and ordinary Bayes."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from cavity.core import Data, Likelihood, Loss, Model
from cavity.core.fields import Number
from cavity.core.likelihood import Outcomes
from cavity.errors import CavityError, UnsuitableError


class NegativeLogLikelihood(Loss):
    """-log p(data | theta), in nats. It is the only loss for likelihoods that are not sums over rows."""

    def check(self, model: Model) -> None:
        return

    def __call__(self, model: Model, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        rows = model.row_model
        if rows is None:
            raise UnsuitableError(
                f"the likelihood of {type(model).__name__} is not a sum over rows (`RowModel`): a row has no loss"
            )
        return -rows.row_log_prob(theta, batch)

    def total(self, model: Model, theta: PyTree, data: Data) -> Float[Array, ""]:
        value = model.log_prob(theta, data)
        if jnp.shape(value) != ():
            raise CavityError(
                f"{type(model).__name__}.log_prob returns an array of the shape {jnp.shape(value)}, not one number for "
                "all rows of a dataset; for one number per row subclass RowModel and implement row_log_prob"
            )
        return -value

    def of_predictor(self, likelihood: Likelihood, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        return -likelihood.log_prob(f, y)

    def expected(
        self, likelihood: Likelihood, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Outcomes
    ) -> Float[Array, " n"] | None:
        closed = likelihood.closed_expectation
        return None if closed is None else -closed.expected_log_prob(mean, covariance, y)

    @property
    def likelihood_power(self) -> Number | None:
        return 1.0
