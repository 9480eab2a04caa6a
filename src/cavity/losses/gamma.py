"""The gamma divergence as a loss (FedGVI, appendix D.1; Hung, Jou and Huang, 2018).

Printed:  -gamma / (gamma - 1) * p(y)^(gamma - 1) / (integral of p^gamma)^((gamma - 1) / gamma).
Here gamma / (gamma - 1) is added, so that the loss tends to the negative log likelihood in value too.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from cavity.interfaces import ExpectedPower, Likelihood
from cavity.leaves import as_number, require
from cavity.losses.beta import check_power_integral
from cavity.losses.predictor import PredictorLoss


class Gamma(PredictorLoss):
    """gamma / (gamma - 1) * (1 - (p / norm)^(gamma - 1)) with norm = (integral of p^gamma)^(1 / gamma).

    Attributes:
        gamma: above 1; the larger, the less an unlikely row counts. Near 1 it is the negative log likelihood.
    """

    gamma: Float[Array, ""] = eqx.field(converter=as_number)

    def __check_init__(self) -> None:
        require(self.gamma, lambda gamma: gamma > 1, "gamma must exceed 1 (1 is the negative log likelihood)")

    @property
    def needs_proper_cavity(self) -> bool:
        return True

    def check_likelihood(self, likelihood: Likelihood) -> None:
        check_power_integral("gamma", likelihood)

    def _assemble(self, likelihood: Any, f: Any, log_power: Any) -> Any:
        gamma = self.gamma.astype(f.dtype)
        log_norm = likelihood.log_power_integral(f, gamma) / gamma
        return -gamma / (gamma - 1.0) * jnp.expm1(log_power - (gamma - 1.0) * log_norm)

    def of_predictor(self, likelihood: Likelihood, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        return self._assemble(likelihood, f, (self.gamma.astype(f.dtype) - 1.0) * likelihood.log_prob(f, y))

    def expected(
        self, likelihood: Likelihood, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Any
    ) -> Float[Array, " n"] | None:
        if not isinstance(likelihood, ExpectedPower):
            return None
        power = self.gamma.astype(mean.dtype) - 1.0
        return self._assemble(likelihood, mean, likelihood.log_expected_power(mean, covariance, y, power))
