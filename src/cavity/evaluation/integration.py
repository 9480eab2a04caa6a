"""How exact the integration over local latents is: the likelihood of all rows is computed again with a finer rule.

The rule has a fixed number of nodes per latent. At the posterior mean, and one sd from it along every parameter, the
log likelihood of all clients is compared with that of about twice as many nodes (lme4 users compare values of nAGQ in
the same way). A difference that is the same everywhere changes the evidence alone; one that varies changes the
posterior.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from cavity import ledger
from cavity.evaluation import psis
from cavity.fit import method
from cavity.fit.fit import Fit

TOLERABLE = 0.01  # nats


def integration_error(fit: Fit) -> float | None:
    """The largest difference between the log likelihood and that by a finer rule, near the posterior mean.

    Args:
        fit: the fit, with its clients' data.

    Returns:
        The difference in nats, summed over all clients; None for models whose latents are not integrated out.
    """
    model = method.marginal_or_none(fit.algorithm)
    if model is None or model.latent.num_local == 0:
        return None
    finer = model.with_order(model.rule.finer(model.latent.num_local).order)
    algorithms = (fit.algorithm, eqx.tree_at(lambda algorithm: algorithm.model, fit.algorithm, finer))
    with jax.enable_x64(True):
        q = jax.tree.map(jnp.asarray, ledger.to_host(fit.posterior))
        sds = jnp.diag(jnp.sqrt(q.variance))
        theta = jnp.concatenate([q.mean[None], q.mean + sds, q.mean - sds])
        difference = np.zeros(len(theta))
        for clients in fit.population("check the integration").chunks():
            here, there = (psis.log_likelihoods(algorithm, theta, clients) for algorithm in algorithms)
            difference += sum(np.asarray(there[name]) - np.asarray(here[name]) for name in here)
    return float(np.abs(difference).max())


def remark(fit: Fit) -> str | None:
    """What a summary says about the integration over local latents; None where there is nothing to say.

    Args:
        fit: the fit.

    Returns:
        The error in nats, with the remedy where it is too large.
    """
    model = method.marginal_or_none(fit.algorithm)
    if model is None or fit.clients is None or not fit.history or not ledger.is_proper(fit.posterior):
        return None
    population = fit.population("check the integration")
    if not population.num_rows * len(model.parameter_names) <= psis.AFFORDABLE / 10:
        return None
    error = integration_error(fit)
    if error is None:
        return None
    finer = model.rule.finer(model.latent.num_local).order
    if error < TOLERABLE:
        return f"integration: within {max(error, 1e-9):.1g} nats of a rule with {finer} nodes"
    return (
        f"integration: {error:.2g} nats from a rule with {finer} nodes; use cavity.models.marginal_model(model, "
        f"order={finer})"
    )
