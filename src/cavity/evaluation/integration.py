"""How exact the integration over local latents is: the likelihood of all rows is computed again with a finer rule.

Each client has chosen the order of its rule by a check at the posterior mean, unless the order was given. Here the log
likelihood of all clients is compared with that by the next order, at the posterior mean and one sd from it along every
parameter (lme4 users compare values of nAGQ in the same way). A difference that is the same everywhere changes the
evidence alone; one that varies changes the posterior.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from cavity import ledger
from cavity.core import Data
from cavity.core.messages import is_server_owned
from cavity.evaluation import psis
from cavity.fit import method
from cavity.fit.fit import Fit
from cavity.models.mixed.marginal import MarginalModel
from cavity.models.mixed.rules import LADDERS
from cavity.simulation.stacks import buckets, device_mesh

TOLERABLE = 0.01  # nats
AFFORDABLE = 40 * psis.AFFORDABLE  # densities of rows times parameters for which a summary has it: seconds


@dataclass(frozen=True)
class Integration:
    """The orders of the rules by which clients integrate their latents out, and the error.

    Attributes:
        orders: of the clients, each once, from the smallest.
        others: those that they were compared with.
        error: the largest difference in the log likelihood of all clients near the posterior mean, in nats.
        unit: what orders count.
    """

    orders: tuple[int, ...]
    others: tuple[int, ...]
    error: float
    unit: str = "nodes per latent"

    def __str__(self) -> str:
        nodes = f"{_range(self.orders)} {self.unit}"
        if self.error < TOLERABLE:
            return f"integration: {nodes}; {_range(self.others)} change the log likelihood by {self.error:.1g} nats"
        remedy = f"use cavity.models.marginal_model(model, order={2 * max(*self.orders, *self.others) + 1})"
        return f"integration: {nodes}, {self.error:.2g} nats from {_range(self.others)}; {remedy}"


def integration(fit: Fit) -> Integration | None:
    """How the local latents of a fit are integrated out.

    Args:
        fit: the fit, with its clients' data.

    Returns:
        Orders and error; None for models whose latents are not integrated out.
    """
    model = method.marginal_or_none(fit.algorithm)
    if model is None or model.latent.num_local == 0:
        return None
    unit = "nodes per latent" if model.latent.num_local in LADDERS else "points"
    orders, others, change = set(), set(), 0.0
    with jax.enable_x64(True):
        q = jax.tree.map(jnp.asarray, ledger.to_host(fit.posterior))
        sds = jnp.diag(jnp.sqrt(q.variance))
        theta = jnp.concatenate([q.mean[None], q.mean + sds, q.mean - sds])
        for clients in fit.population("check the integration").chunks():
            own = {name: data for name, data in clients.items() if not is_server_owned(name)}
            for bucket in buckets(own, device_mesh()):
                found = [np.asarray(each) for each in _refinements(model, theta, bucket.data)]
                orders |= set(found[0].tolist())
                others |= set(found[1].tolist())
                change = change + found[2].sum(axis=0)
    return Integration(tuple(sorted(orders)), tuple(sorted(others)), float(np.abs(change).max()), unit)


@eqx.filter_jit
def _refinements(
    model: MarginalModel, theta: Float[Array, "s d"], data: Data
) -> tuple[Int[Array, " c"], Int[Array, " c"], Float[Array, "c s"]]:
    return jax.vmap(lambda rows: model.refinement(theta, rows))(data)


def remark(fit: Fit) -> str | None:
    """What a summary says about the integration over local latents; None where there is nothing to say.

    Args:
        fit: the fit.

    Returns:
        The orders and the error in nats, with the remedy where it is too large.
    """
    model = method.marginal_or_none(fit.algorithm)
    if model is None or fit.clients is None or not fit.history or not ledger.is_proper(fit.posterior):
        return None
    population = fit.population("check the integration")
    if not population.num_rows * len(model.parameter_names) * model.row_cost <= AFFORDABLE:
        return None
    found = integration(fit)
    return None if found is None else str(found)


def _range(orders: tuple[int, ...]) -> str:
    return str(orders[0]) if len(orders) == 1 else f"{orders[0]} to {orders[-1]}"
