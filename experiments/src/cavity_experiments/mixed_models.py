"""Textbook mixed models in NumPyro, and their pooled posterior by NUTS."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import summary as chain_summary
from numpyro.infer import MCMC, NUTS

from cavity.errors import CavityError

Columns = dict[str, np.ndarray]
sample: Any = numpyro.sample  # its type would be that of any number or array


def wheezing(smoke: Any, age: Any, wheeze: Any = None) -> None:
    """Logistic regression with an intercept per child, four years each (SFVI, S3.1)."""
    beta = sample("beta", dist.Normal(0, 10).expand([4]).to_event(1))
    omega = sample("omega", dist.Normal(0, 10))
    with numpyro.plate("children", len(smoke)):
        b = sample("b", dist.Normal(0, jnp.exp(-omega)))
        smokes = smoke[:, None]
        logits = beta[0] + beta[1] * smokes + beta[2] * age + beta[3] * smokes * age + b[:, None]
        sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=wheeze)


def radon_levels(county: Any, floor: Any, num_counties: int, log_radon: Any = None) -> None:
    """An intercept per county, partially pooled."""
    mu = sample("mu", dist.Normal(0, 5))
    slope = sample("slope", dist.Normal(0, 5))
    between = sample("between", dist.HalfNormal(2))
    within = sample("within", dist.HalfNormal(2))
    with numpyro.plate("counties", num_counties):
        level = sample("level", dist.Normal(mu, between))
    with numpyro.plate("houses", len(floor)):
        sample("y", dist.Normal(level[county] + slope * floor, within), obs=log_radon)


def contraceptive_use(district: Any, x: Any, num_districts: int, use: Any = None) -> None:
    """Logistic regression with an intercept per district."""
    intercept = sample("intercept", dist.Normal(0, 5))
    beta = sample("beta", dist.Normal(0, 2.5).expand([x.shape[1]]).to_event(1))
    between = sample("between", dist.HalfNormal(1))
    with numpyro.plate("districts", num_districts):
        level = sample("level", dist.Normal(0, between))
    with numpyro.plate("women", len(x)):
        sample("y", dist.Bernoulli(logits=intercept + x @ beta + level[district]), obs=use)


def by_nuts(
    function: Callable[..., None],
    columns: Mapping[str, Any],
    *,
    num_draws: int,
    seed: int,
    num_warmup: int = 1000,
    chains: int = 4,
    free_of: tuple[str, ...] = (),
) -> tuple[dict[str, np.ndarray], float, float]:
    """Draws of each global site (flat, by entry) by NUTS on pooled columns; largest R-hat and smallest bulk ESS.

    `free_of` are sites that are written without their prior's location and scale, in which chains mix better; the
    model and its posterior are the same.
    """
    from numpyro.infer.reparam import LocScaleReparam

    reparameterised = numpyro.handlers.reparam(function, {name: LocScaleReparam(0) for name in free_of})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = NUTS(reparameterised, target_accept_prob=0.9)
        sampler = MCMC(
            kernel,
            num_warmup=num_warmup,
            num_samples=num_draws,
            num_chains=chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        sampler.run(jax.random.key(seed), **columns)
    hidden = {*free_of, *(f"{name}_decentered" for name in free_of)}
    grouped = {
        name: values
        for name, values in sampler.get_samples(group_by_chain=True).items()
        if name not in hidden and values.ndim <= 3 and np.prod(values.shape[2:]) <= 20
    }
    said = chain_summary(grouped, group_by_chain=True)
    worst = max(float(np.max(entry["r_hat"])) for entry in said.values())
    fewest = min(float(np.min(entry["n_eff"])) for entry in said.values())
    if not grouped:
        raise CavityError("NUTS found no global site")
    flat = {}
    for name, values in grouped.items():
        table = np.asarray(values).reshape(-1, int(np.prod(values.shape[2:], initial=1)))
        labels = [name] if values.ndim == 2 else [f"{name}[{i}]" for i in range(table.shape[1])]
        flat |= dict(zip(labels, table.T, strict=True))
    return flat, worst, fewest


def compared(estimates: Any, reference: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """For each parameter: both means and sds, their distance in posterior sds, and the ratio of the sds."""
    rows = []
    for name, draws in reference.items():
        mine, mean, sd = estimates[name], float(draws.mean()), float(draws.std())
        rows.append(
            {
                "parameter": name,
                "mean": mine.mean,
                "sd": mine.sd,
                "nuts_mean": mean,
                "nuts_sd": sd,
                "off_by_sds": abs(mine.mean - mean) / sd,
                "sd_ratio": mine.sd / sd,
            }
        )
    return rows
