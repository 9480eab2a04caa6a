"""What every likelihood p(y | f) promises."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


def probabilities(likelihood, f, outcomes):
    """p(y | f) of every outcome, for each row of f."""
    repeated = jnp.repeat(f[:, None], len(outcomes), axis=1)
    return jnp.exp(likelihood.log_prob(repeated, outcomes))


def check_normalises(likelihood, f, outcomes, weights):
    """Over all outcomes (a sum, or a quadrature rule with weights) the probabilities of each f add up to 1."""
    probability = probabilities(likelihood, f, outcomes)
    assert probability.shape == (len(f), len(outcomes))
    np.testing.assert_allclose(jnp.sum(probability * weights, axis=1), 1.0, rtol=1e-9)


def check_mean(likelihood, f, outcomes, weights, *, classes=False):
    """The mean is the expectation of the outcome; for classes, of the indicator of each."""
    probability = probabilities(likelihood, f, outcomes) * weights
    if classes:
        np.testing.assert_allclose(likelihood.mean(f), probability, rtol=1e-9)
    else:
        np.testing.assert_allclose(likelihood.mean(f), jnp.sum(probability * outcomes, axis=1), rtol=1e-8, atol=1e-9)


def check_elementwise(likelihood, f, y):
    """Leading axes are a batch: rows one by one, a grid of nodes per row, and any reshaping give the same numbers."""
    n = len(y)
    assert f.shape == (n, likelihood.num_predictors)
    together = likelihood.log_prob(f, y)
    assert together.shape == (n,)
    one_by_one = jnp.stack([likelihood.log_prob(f[i], y[i]) for i in range(n)])
    np.testing.assert_allclose(together, one_by_one, rtol=1e-12)
    np.testing.assert_allclose(likelihood.mean(f), jnp.stack([likelihood.mean(f[i]) for i in range(n)]), rtol=1e-12)
    # as a solver calls it: nodes [n, s, k] against outcomes [n, 1]
    nodes = jnp.stack([f, f + 0.3, f - 1.0], axis=1)
    grid = likelihood.log_prob(nodes, y[:, None])
    apart = jnp.stack([likelihood.log_prob(nodes[:, s], y) for s in range(3)], axis=1)
    np.testing.assert_allclose(grid, apart, rtol=1e-12)


def check_expected_mean(likelihood, mean, variance, expected, rtol):
    """E[mean(f)] with an uncertain first predictor."""
    np.testing.assert_allclose(likelihood.expected_mean(mean, variance), expected, rtol=rtol)


@eqx.filter_jit
def log_power_integral(likelihood, f, power):
    value = jax.vmap(lambda f: likelihood.log_power_integral(f, power))
    return value(f), jax.vmap(jax.grad(lambda f: likelihood.log_power_integral(f, power)))(f)


def check_power_integral(likelihood, f, power, expected, slopes, atol=1e-11):
    """Log of the integral of p^power over outcomes, and its slopes in f."""
    got, got_slopes = log_power_integral(likelihood, f, jnp.asarray(power, float))
    assert got.shape == (len(f),)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=atol)
    np.testing.assert_allclose(got_slopes, slopes, rtol=1e-8, atol=10 * atol)


def check_rejects(likelihood, good, bad, remedy):
    """Outcomes that the likelihood cannot have are named, with what to do."""
    assert likelihood.check(good) is None
    message = likelihood.check(bad)
    assert message is not None
    assert remedy in message
