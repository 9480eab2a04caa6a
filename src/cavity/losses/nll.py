"""The negative log likelihood: the loss of PVI, EP and ordinary Bayes."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float, PyTree

from cavity.interfaces import ExpectedPower, Likelihood, Loss, Model


class NegativeLogLikelihood(Loss):
    """-log p(row | theta), in nats."""

    def check(self, model: Model) -> None:
        return

    def __call__(self, model: Model, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        return -model.log_prob(theta, batch)

    def of_predictor(self, likelihood: Likelihood, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        return -likelihood.log_prob(f, y)

    def expected(
        self, likelihood: Likelihood, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Any
    ) -> Float[Array, " n"] | None:
        return -likelihood.expected_log_prob(mean, covariance, y) if isinstance(likelihood, ExpectedPower) else None

    @property
    def likelihood_power(self) -> Any:
        return 1.0
