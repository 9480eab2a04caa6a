"""The density power (beta) divergence as a loss (FedGVI, appendix D.1; Ghosh and Basu, 2016).

Printed:  -p(y)^beta / beta + (integral of p^(1 + beta)) / (1 + beta).
Here the constants 1 / beta - 1 are added, so that the loss tends to the negative log likelihood in value too, and a
sum over rows keeps its digits when beta is small. (The authors' program has 1 + beta times the printed loss.)
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from cavity.core import PowerIntegral
from cavity.core.fields import as_number, require
from cavity.losses.power import PowerLoss


class Beta(PowerLoss):
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
    def power(self) -> Float[Array, ""]:
        return self.beta

    def assemble(
        self, likelihood: PowerIntegral, f: Float[Array, "*batch k"], log_power: Float[Array, " *batch"]
    ) -> Float[Array, " *batch"]:
        beta = self.beta.astype(f.dtype)
        whole = jnp.exp(likelihood.log_power_integral(f, 1.0 + beta))
        return -jnp.expm1(log_power) / beta + whole / (1.0 + beta) - 1.0
