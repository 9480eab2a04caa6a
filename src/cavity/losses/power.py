"""What the beta and the gamma loss share: a power of the likelihood, and the integral of another."""

from __future__ import annotations

import abc
from typing import Any

from jaxtyping import Array, Float

from cavity.core import ExpectedPower, Likelihood, PowerIntegral
from cavity.errors import UnsuitableError
from cavity.losses.predictor import PredictorLoss, name_of


class PowerLoss(PredictorLoss):
    """A bounded function of log p(y)^power, linear in p(y)^power, so that its expectation is that of the power."""

    @property
    @abc.abstractmethod
    def power(self) -> Float[Array, ""]:
        """Of p(y)."""

    @abc.abstractmethod
    def assemble(self, likelihood: Any, f: Any, log_power: Any) -> Any:
        """The loss where log p(y)^power (or the log of its expectation) is known."""

    @property
    def needs_proper_cavity(self) -> bool:
        return True

    def check_likelihood(self, likelihood: Likelihood) -> None:
        if not isinstance(likelihood, PowerIntegral):
            raise UnsuitableError(
                f"the {type(self).__name__.lower()} loss needs the integral of p^(1 + beta) over outcomes, "
                f"which {name_of(likelihood)} does not have. Use a likelihood that is a PowerIntegral, or another loss"
            )

    def of_predictor(self, likelihood: Likelihood, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        return self.assemble(likelihood, f, self.power.astype(f.dtype) * likelihood.log_prob(f, y))

    def expected(
        self, likelihood: Likelihood, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Any
    ) -> Float[Array, " n"] | None:
        if not isinstance(likelihood, ExpectedPower):
            return None
        log_power = likelihood.log_expected_power(mean, covariance, y, self.power.astype(mean.dtype))
        return self.assemble(likelihood, mean, log_power)
