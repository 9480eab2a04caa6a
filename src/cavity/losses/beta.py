"""The density power (beta) divergence as a loss (FedGVI, appendix D.1; Ghosh and Basu, 2016).

Printed:  -p(y)^beta / beta + (integral of p^(1 + beta)) / (1 + beta).
Here the constants 1 / beta - 1 are added, so that the loss tends to the negative log likelihood in value too, and a
sum over rows keeps its digits when beta is small. (The authors' program has 1 + beta times the printed loss.)
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from cavity.errors import UnsuitableError
from cavity.interfaces import ExpectedPower, Likelihood, PowerIntegral
from cavity.leaves import as_number, require
from cavity.losses.predictor import PredictorLoss, name_of


def check_power_integral(loss: str, likelihood: Likelihood) -> None:
    """Raise unless the likelihood knows the integrals of its powers."""
    if not isinstance(likelihood, PowerIntegral):
        raise UnsuitableError(
            f"the {loss} loss needs the integral of p^(1 + beta) over outcomes, which {name_of(likelihood)} does not "
            "have. Use a likelihood that is a PowerIntegral, or another loss"
        )


class Beta(PredictorLoss):
    """-(p^beta - 1) / beta + (integral of p^(1 + beta)) / (1 + beta) - 1, bounded in y for every theta.

    Attributes:
        beta: positive; the larger, the less an unlikely row counts. Near 0 it is the negative log likelihood.

    Example:
        >>> from cavity.likelihoods import BernoulliLogit
        >>> bool(Beta(0.5).of_predictor(BernoulliLogit(), jnp.array([-500.0]), 1.0) < 2.0)
        True
    """

    beta: Float[Array, ""] = eqx.field(converter=as_number)

    def __check_init__(self) -> None:
        require(self.beta, lambda beta: beta > 0, "beta must be positive (0 is the negative log likelihood)")

    @property
    def needs_proper_cavity(self) -> bool:
        return True

    def check_likelihood(self, likelihood: Likelihood) -> None:
        check_power_integral("beta", likelihood)

    def _assemble(self, likelihood: Any, f: Any, log_power: Any) -> Any:
        beta = self.beta.astype(f.dtype)
        whole = jnp.exp(likelihood.log_power_integral(f, 1.0 + beta))
        return -jnp.expm1(log_power) / beta + whole / (1.0 + beta) - 1.0

    def of_predictor(self, likelihood: Likelihood, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        return self._assemble(likelihood, f, self.beta.astype(f.dtype) * likelihood.log_prob(f, y))

    def expected(
        self, likelihood: Likelihood, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Any
    ) -> Float[Array, " n"] | None:
        if not isinstance(likelihood, ExpectedPower):
            return None
        beta = self.beta.astype(mean.dtype)
        return self._assemble(likelihood, mean, likelihood.log_expected_power(mean, covariance, y, beta))
