"""Expectation propagation over eight clients against NUTS on the pooled rows: means, sds, and what mean field loses."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity.distributions import DiagonalGaussian
from cavity.models import logistic_regression, probit_regression
from cavity.solvers import PowerEP
from tests import scenarios

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_to_compile")]

NUM_CLIENTS = 8
REGRESSIONS = {
    "probit": (probit_regression, scenarios.probit, lambda f, y: jax.scipy.special.log_ndtr((2 * y - 1) * f)),
    "logistic": (logistic_regression, scenarios.logistic, lambda f, y: y * f - jnp.logaddexp(0.0, f)),
}


@cache
def nuts(name):
    """Means and sds of the posterior, from at least 5,000 effective draws: to 0.014 sd, and to 1 %."""
    import numpyro
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from numpyro.distributions import Normal
    from numpyro.infer import MCMC, NUTS

    _, scenario, log_likelihood = REGRESSIONS[name]
    problem = scenario()

    def model(x, y):
        theta = numpyro.sample("theta", Normal(0.0, problem.prior_scale).expand([3]).to_event(1))
        numpyro.factor("y", jnp.sum(log_likelihood(theta[0] + x @ theta[1:], y)))

    mcmc = MCMC(
        NUTS(model), num_warmup=500, num_samples=3000, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    mcmc.run(jax.random.key(1), jnp.asarray(problem.x), jnp.asarray(problem.y))
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["theta"])
    for power in (1, 2):
        assert (effective_sample_size(draws**power) > 5_000).all()
    assert (split_gelman_rubin(draws) < 1.004).all()
    return draws.mean((0, 1)), draws.std((0, 1))


@cache
def fitted(name, mean_field=False):
    """EP with full covariance; or mean-field VI, by PVI."""
    constructor, scenario, _ = REGRESSIONS[name]
    problem = scenario()
    family = DiagonalGaussian if mean_field else None
    model = constructor(2, prior_scale=problem.prior_scale, covariance=family)
    clients = scenarios.clients(problem.x, problem.y, scenarios.homogeneous(len(problem.y), NUM_CLIENTS))
    fit = cavity.run(cavity.PVI(model, solver=None if mean_field else PowerEP()), clients, rounds=200)
    assert len(clients) == NUM_CLIENTS
    assert fit.converged
    return np.asarray(fit.posterior.mean), np.sqrt(np.asarray(fit.posterior.variance))


@pytest.mark.parametrize("name", REGRESSIONS)
def test_means_and_sds_are_those_of_nuts(name):
    (mean, sd), (their_mean, their_sd) = fitted(name), nuts(name)
    assert np.abs((mean - their_mean) / their_sd).max() < 0.1
    assert np.abs(sd / their_sd - 1).max() < 0.05


@pytest.mark.parametrize("name", REGRESSIONS)
def test_sds_beat_those_of_mean_field_vi(name):
    """Of the worst coefficient, and on average; mean field is too sure where coefficients are correlated."""
    (_, sd), (_, narrow), (_, their_sd) = fitted(name), fitted(name, mean_field=True), nuts(name)
    ours, theirs = (np.abs(np.log(found / their_sd)) for found in (sd, narrow))
    assert ours.max() < 0.5 * theirs.max()
    assert ours.mean() < 0.5 * theirs.mean()
    assert (narrow / their_sd).min() < 0.95
