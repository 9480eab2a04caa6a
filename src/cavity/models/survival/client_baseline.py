"""Piecewise exponential regression whose baseline hazards are each client's own.

With the hazard exp(eta_i) h_j of row i in interval j, its time e_ij there, and D_j events of the client in it,

    log p = sum over events of eta_i + sum_j [ D_j log h_j - h_j E_j ],     E_j = sum_i e_ij exp(eta_i).

Integrated over h_j with the prior 1 / h_j, which has no unit, this is, up to a constant,

    log p = sum over events of eta_i - sum_j D_j log E_j,

which is also the largest value over h_j. So its mode is the maximum likelihood estimate of the model with all h_j as
parameters. It is not a sum over rows. Intervals without events count for nothing.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cavity.core import Data, Encoding
from cavity.distributions.gaussian import Gaussian
from cavity.errors import CavityError
from cavity.likelihoods.piecewise_exponential import cuts_problem, episodes
from cavity.models.survival.cox import HazardRatios


class ClientBaselineRegression(HazardRatios):
    """Log hazard ratios of rows (x, y); y has time and status, or start, stop and status.

    Attributes:
        prior: over one log hazard ratio per column of x.
        features: the names of the columns of x.
        cuts: between which baseline hazards are constant.
        encoding: how a table becomes x and y; None takes them as they are given.
    """

    prior: Gaussian
    features: tuple[str, ...] = eqx.field(static=True)
    cuts: tuple[float, ...] = eqx.field(static=True, kw_only=True)
    encoding: Encoding | None = None

    def __check_init__(self) -> None:
        if (problem := cuts_problem(self.cuts)) is not None:
            raise CavityError(problem)

    def log_prob(self, theta: Float[Array, " d"], data: Data) -> Float[Array, ""]:
        x, y = data.batch
        eta, weight = jnp.asarray(x) @ theta, jnp.asarray(data.weight, theta.dtype)
        parts = episodes(jnp.asarray(y), self.cuts)
        events = weight[:, None] * parts.events
        total = jnp.sum(events, axis=0)
        # zeros are -inf in a log sum; no interval with events is without time at risk
        log_exposure = jax.nn.logsumexp(eta[:, None], axis=0, b=weight[:, None] * parts.exposure)
        own = jnp.where(weight > 0, weight * jnp.sum(parts.events, axis=1) * eta, 0.0)
        return jnp.sum(own) - jnp.sum(jnp.where(total > 0, total * jnp.where(total > 0, log_exposure, 0.0), 0.0))
