"""What the beta and the gamma loss share: a power of the likelihood, and the integral of another power."""

from __future__ import annotations

import abc

from jaxtyping import Array, Float

from cavity.core import Likelihood, PowerIntegral
from cavity.core.fields import require_capability
from cavity.core.likelihood import Outcomes
from cavity.losses.predictor import PredictorLoss, name_of


class PowerLoss(PredictorLoss):
    """A bounded function of log p(y)^power, linear in p(y)^power, so that its expectation is that of the power."""

    @property
    @abc.abstractmethod
    def power(self) -> Float[Array, ""]:
        """The power of p(y)."""

    @abc.abstractmethod
    def assemble(
        self, likelihood: PowerIntegral, f: Float[Array, "*batch k"], log_power: Float[Array, " *batch"]
    ) -> Float[Array, " *batch"]:
        """The loss where log p(y)^power (or the log of its expectation) is known."""

    @property
    def needs_proper_cavity(self) -> bool:
        return True

    def check_likelihood(self, likelihood: Likelihood) -> None:
        self._with_integral(likelihood)

    def _with_integral(self, likelihood: Likelihood) -> PowerIntegral:
        return require_capability(
            likelihood.power_integral,
            f"the {type(self).__name__.lower()} loss needs the integral of p^(1 + beta) over outcomes, "
            f"which {name_of(likelihood)} does not have. Use a likelihood that is a PowerIntegral, or another loss",
        )

    def of_predictor(self, likelihood: Likelihood, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        log_power = self.power.astype(f.dtype) * likelihood.log_prob(f, y)
        return self.assemble(self._with_integral(likelihood), f, log_power)

    def expected(
        self, likelihood: Likelihood, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Outcomes
    ) -> Float[Array, " n"] | None:
        closed = likelihood.expected_power
        if closed is None:
            return None
        log_power = closed.log_expected_power(mean, covariance, y, self.power.astype(mean.dtype))
        return self.assemble(self._with_integral(likelihood), mean, log_power)
