"""The posteriors of regressions by NUTS, with likelihoods written by NumPyro's distributions and not by Cavity's.

Rows and prior are those that a model of Cavity computes with: scaled columns, and a normal prior of all parameters.
The distribution of an outcome is written here a second time, from its definition.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import summary as chain_summary
from numpyro.infer import MCMC, NUTS

from cavity.models.glm.regression import Regression


def _trials(link: Callable[[Any], Any]) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    return lambda f, extra, y: (dist.Binomial(y[:, 1].astype(int), probs=link(f)), y[:, 0])


def _classes(link: Callable[[Any], Any]) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    return lambda f, extra, y: (dist.Bernoulli(probs=link(f)), y)


def _cloglog(f: Any) -> Any:
    return 1.0 - jnp.exp(-jnp.exp(f))


def _thresholds(extra: Any) -> Any:
    """The first is minus the intercept, which the predictor has; the others follow at the distances exp(extra)."""
    return jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.exp(extra))])


def _ordered_probit(f: Any, extra: Any) -> Any:
    below = jax.scipy.special.ndtr(_thresholds(extra) - f[:, None])
    ends = jnp.zeros_like(f)[:, None], jnp.ones_like(f)[:, None]
    return jnp.diff(jnp.concatenate([ends[0], below, ends[1]], axis=1), axis=1)


# name of a likelihood class -> (f, auxiliary parameters, y) to a distribution of NumPyro and its observed value
DISTRIBUTIONS: dict[str, Callable[[Any, Any, Any], tuple[Any, Any]]] = {
    "GaussianUnknownNoise": lambda f, extra, y: (dist.Normal(f, jnp.exp(extra[0])), y),
    "StudentTUnknownScale": lambda f, extra, y: (
        dist.StudentT(jnp.exp(extra[1]) if len(extra) > 1 else 4.0, f, jnp.exp(extra[0])),
        y,
    ),
    "BernoulliLogit": lambda f, extra, y: (dist.Bernoulli(logits=f), y),
    "BernoulliProbit": _classes(jax.scipy.special.ndtr),
    "BernoulliCloglog": _classes(_cloglog),
    "BinomialTrials": _trials(jax.nn.sigmoid),
    "PoissonLog": lambda f, extra, y: (dist.Poisson(jnp.exp(f)), y),
    "NegativeBinomialLog": lambda f, extra, y: (dist.NegativeBinomial2(jnp.exp(f), jnp.exp(extra[0])), y),
    "GammaLog": lambda f, extra, y: (dist.Gamma(jnp.exp(extra[0]), jnp.exp(extra[0] - f)), y),
    "OrdinalLogit": lambda f, extra, y: (dist.OrderedLogistic(f, _thresholds(extra)), y.astype(int)),
    "OrdinalProbit": lambda f, extra, y: (dist.Categorical(probs=_ordered_probit(f, extra)), y.astype(int)),
}


def nuts_draws(
    model: Regression,
    x: np.ndarray,
    y: np.ndarray,
    *,
    num_draws: int,
    seed: int,
    chains: int = 4,
    num_warmup: int = 500,
) -> tuple[np.ndarray, float, float]:
    """Draws of the parameters that a regression computes with, given all rows in one place.

    Args:
        model: with a normal prior and independent parameters.
        x: features of the rows, as `model.prepare` gives them.
        y: outcomes of the rows.
        num_draws: per chain.
        seed: random seed.
        chains: their number.
        num_warmup: draws that are discarded.

    Returns:
        Draws [s, d], the largest R-hat, and the smallest effective sample size.
    """
    mean, sd = np.asarray(model.prior.mean), np.sqrt(np.asarray(model.prior.variance))
    width = len(model.features) + int(model.intercept)
    design = np.column_stack([np.ones(len(x)), x]) if model.intercept else x
    distribution = DISTRIBUTIONS[type(model.likelihood).__name__]

    def program(y: Any) -> None:
        theta: Any = numpyro.sample("theta", dist.Normal(mean, sd).to_event(1))
        own, value = distribution(jnp.asarray(design) @ theta[:width], theta[width:], y)
        numpyro.sample("y", own, obs=value)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = NUTS(program, target_accept_prob=0.9, init_strategy=numpyro.infer.init_to_median(num_samples=50))
        sampler = MCMC(
            kernel,
            num_warmup=num_warmup,
            num_samples=num_draws,
            num_chains=chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        sampler.run(jax.random.key(seed), jnp.asarray(y))
    grouped = sampler.get_samples(group_by_chain=True)
    found = chain_summary(grouped, group_by_chain=True)["theta"]
    draws = np.asarray(grouped["theta"]).reshape(-1, len(mean))
    return draws, float(np.max(found["r_hat"])), float(np.min(found["n_eff"]))
