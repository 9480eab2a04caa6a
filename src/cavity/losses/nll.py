"""The negative log likelihood: the loss of PVI, EP and ordinary Bayes."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float, PyTree

from cavity.interfaces import Likelihood, Loss, Model


class NegativeLogLikelihood(Loss):
    """-log p(row | theta), in nats."""

    def __call__(self, model: Model, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        return -model.log_prob(theta, batch)

    def of_predictor(self, likelihood: Likelihood, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        return -likelihood.log_prob(f, y)

    def at(self, cavity: Any) -> Loss:
        return self
