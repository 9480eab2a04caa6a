"""The gamma divergence as a loss (FedGVI, appendix D.1; Hung, Jou and Huang, 2018).

Printed:  -gamma / (gamma - 1) * p(y)^(gamma - 1) / (integral of p^gamma)^((gamma - 1) / gamma).
Here gamma / (gamma - 1) is added, so that the loss tends to the negative log likelihood in value too.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from cavity.core import PowerIntegral
from cavity.core.fields import as_number, require
from cavity.losses.power import PowerLoss


class Gamma(PowerLoss):
    """gamma / (gamma - 1) * (1 - (p / norm)^(gamma - 1)) with norm = (integral of p^gamma)^(1 / gamma).

    Attributes:
        gamma: above 1; the larger, the less an unlikely row counts. Near 1 it is the negative log likelihood.
    """

    gamma: Float[Array, ""] = eqx.field(converter=as_number)

    def __check_init__(self) -> None:
        require(self.gamma, lambda gamma: gamma > 1, "gamma must exceed 1 (1 is the negative log likelihood)")

    @property
    def power(self) -> Float[Array, ""]:
        return self.gamma - 1.0

    def assemble(
        self, likelihood: PowerIntegral, f: Float[Array, "*batch k"], log_power: Float[Array, " *batch"]
    ) -> Float[Array, " *batch"]:
        gamma = self.gamma.astype(f.dtype)
        log_norm = likelihood.log_power_integral(f, gamma) / gamma
        return -gamma / (gamma - 1.0) * jnp.expm1(log_power - (gamma - 1.0) * log_norm)
