"""The posterior of a model with local latents by NUTS on its joint density, which needs no integration.

    log p(Z_G, z)  =  log p(Z_G) + sum over clients and units of  log p(y_u, z_u | Z_G)

All clients' rows are used at once. The model is that of a fit, with its scaling and its priors, so the draws are the
reference for the fit's own approximation: of the integral, of the Gaussian, and of the rounds. Where groups are within
groups, z has the latents of both.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, PyTree
from numpyro.diagnostics import summary as chain_summary
from numpyro.infer import MCMC, NUTS

from cavity.core import Data, LatentModel
from cavity.errors import CavityError
from cavity.fit import method
from cavity.fit.run import Fit
from cavity.models.mixed.grouped_regression import GroupedRegression
from cavity.models.mixed.nested_modes import rows_of


@dataclass(frozen=True)
class Reference:
    """Draws of all shared parameters.

    Attributes:
        computed: on the scale of the fit's posterior [n, d].
        values: name -> draws, in the terms of the model's author and the units of the data.
        r_hat: the largest over the shared parameters.
        ess: the smallest effective number of draws.
    """

    computed: np.ndarray
    values: dict[str, np.ndarray]
    r_hat: float
    ess: float


def latent_model(fit: Fit) -> LatentModel:
    """The model of a fit by PVI whose clients integrate local latents out, with its local latents."""
    marginal = method.marginal_or_none(fit.algorithm)
    if marginal is None:
        raise CavityError("the clients of this fit integrate no latents out")
    return marginal.latent


def joint_density(model: LatentModel, clients: dict[str, Data], z: dict[str, PyTree]) -> Array:
    """Log p(Z_G, z, y), up to no constant; `z` has the shared latents under "shared", and those of each client."""
    shared = z["shared"]
    total = model.log_prior(model.theta, shared)
    for name, data in clients.items():
        assert data.units is not None
        if (nested := _nested(model)) is not None:
            total = total + _of_both_groups(nested, shared, z[name], data)
            continue
        each = model.log_joint(model.theta, shared, z[name], data, jax.random.key(0))
        total = total + jnp.sum(jnp.where(jnp.asarray(data.units.weight) > 0, each, 0.0))
    return total


def _nested(model: LatentModel) -> GroupedRegression | None:
    """The model, where its groups are within groups."""
    return model if isinstance(model, GroupedRegression) and model.num_inner else None


def _of_both_groups(model: GroupedRegression, shared: Array, z: tuple[Array, Array], data: Data) -> Array:
    """Log p(y, v, u | Z_G): `log_joint` would integrate the u of the smaller groups out, which takes far longer."""
    outer, inner = z
    rows = rows_of(model, model.loadings(shared, data.batch), data)
    parts = rows.parts
    f = parts.fixed + jnp.sum(parts.outer * outer[rows.unit], axis=1) + jnp.sum(parts.inner * inner[rows.inner], axis=1)
    return jnp.sum(rows.log_prob(f, rows.family())) + jnp.sum(norm.logpdf(outer)) + jnp.sum(norm.logpdf(inner))


def _zeros(model: LatentModel, data: Data, chains: int) -> PyTree:
    """Where each chain starts, in the latents of a client."""
    assert data.units is not None
    outer = jnp.zeros((chains, len(data.units.weight), model.num_local))
    nested = _nested(model)
    return outer if nested is None else (outer, jnp.zeros((chains, len(data.weight), nested.num_inner)))


def by_nuts(fit: Fit, *, num_draws: int, seed: int, num_warmup: int = 1000, chains: int = 4) -> Reference:
    """The posterior of a fit's model, given the rows of all its clients.

    Args:
        fit: by PVI, of a model whose local latents are integrated out.
        num_draws: per chain.
        seed: of the chains.
        num_warmup: draws per chain that are not kept.
        chains: that are run at once.

    Returns:
        The draws.
    """
    model = latent_model(fit)
    prepared = fit.population("run NUTS").data
    if prepared is None:
        raise CavityError("NUTS needs the clients in memory")
    clients = {name: data for name, data in prepared.items() if data.units is not None}
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        key, at_key = jax.random.split(jax.random.key(seed))
        mean, sd = np.asarray(fit.posterior.mean), np.sqrt(np.diag(np.asarray(fit.posterior.covariance)))
        start: dict[str, Any] = {"shared": mean + sd * jax.random.normal(at_key, (chains, len(mean)))}
        start |= {name: _zeros(model, data, chains) for name, data in clients.items()}
        kernel = NUTS(potential_fn=lambda z: -joint_density(model, clients, z), target_accept_prob=0.9)
        sampler = MCMC(
            kernel,
            num_warmup=num_warmup,
            num_samples=num_draws,
            num_chains=chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        sampler.run(key, init_params=start)
        grouped = np.asarray(sampler.get_samples(group_by_chain=True)["shared"])
        found = chain_summary({"shared": grouped}, group_by_chain=True)["shared"]
        draws = grouped.reshape(-1, grouped.shape[-1])
        values = jax.vmap(lambda z: model.constrain(model.theta, z))(jnp.asarray(draws))
    flat = {}
    for name, value in values.items():
        table = np.asarray(value).reshape(len(draws), -1)
        labels = [name] if np.ndim(value) == 1 else [f"{name}[{i}]" for i in range(table.shape[1])]
        flat |= dict(zip(labels, table.T, strict=True))
    return Reference(draws, flat, float(np.max(found["r_hat"])), float(np.min(found["n_eff"])))
