"""What every family of distributions promises.

The checks take proper members of one family (`p`, `q`, `r`), so that a new family's test is a few calls. Members
with a log-partition function are checked against it; a family without one leaves those checks out.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from cavity import ledger
from cavity.distributions.natural import kl_by_log_partition
from cavity.errors import ImproperError

STANDARD_ERRORS = 5.0  # how far a Monte Carlo mean may lie from its expectation
NUM_DRAWS = 20_000


@eqx.filter_jit
def draws(q):
    """Always as many, and compiled, so that each family's sampler is compiled once."""
    return q.sample(jax.random.key(0), (NUM_DRAWS,))


def assert_same(left, right, rtol=1e-12):
    """Two members agree, relative to the size of the larger leaf."""
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * (1 + np.max(np.abs(np.asarray(b)), initial=0)))


def check_group(p, q, r):
    """Products are associative and commutative, q**0 is the identity, q**-1 the inverse, and powers add."""
    assert_same((p * q) * r, p * (q * r))
    assert_same(p * q, q * p)
    assert_same(q * p**0, q)
    assert_same(q**0, p**0)
    assert_same(q * q**-1, p**0)
    assert_same(p / q, p * q**-1)
    assert_same((p / q) * q, p)
    assert_same(q**0.3 * q**0.7, q)
    assert_same(q**2, q * q)
    assert_same((q**0.3) ** 2.0, q**0.6)
    assert_same((p * q) ** 0.3, p**0.3 * q**0.3)


def check_algebra_of_densities(p, q):
    """The algebra is that of densities: log (p q^a / q) is the sum of logs, up to one constant in theta."""
    thetas = jax.tree.map(lambda leaf: leaf[:10], draws(q))
    combined = jax.vmap((p * q**1.5 / q).log_factor)(thetas)
    difference = combined - jax.vmap(lambda theta: p.log_prob(theta) + 0.5 * q.log_prob(theta))(thetas)
    np.testing.assert_allclose(difference, difference[0], rtol=1e-10, atol=1e-10)


def check_keeps_numpy(q):
    """The algebra of float64 numpy leaves stays float64 numpy, even where jax computes in single precision."""
    q = ledger.to_host(q)
    for double in (True, False):
        with jax.enable_x64(double):
            for result in (q * q, q / q, q**0.5, q ** np.float64(0.5), q**0, q * q**0.5 / q):
                for leaf in jax.tree.leaves(result):
                    assert isinstance(leaf, (np.ndarray, np.generic)), type(leaf)
                    assert leaf.dtype == np.float64


def check_normalised(q, thetas, weights, rtol=1e-9):
    """A quadrature rule on the support integrates exp(log_prob) to 1, and exp(log_factor) to exp(log_partition)."""
    density = jnp.exp(jax.vmap(q.log_prob)(thetas))
    np.testing.assert_allclose(jnp.sum(density * weights), 1.0, rtol=rtol)
    factor = jnp.exp(jax.vmap(q.log_factor)(thetas) - q.log_partition)
    np.testing.assert_allclose(jnp.sum(factor * weights), 1.0, rtol=rtol)


def check_mean_parameters(q):
    """E_q[T] is the gradient of the log-partition function in the natural parameters."""
    gradient = jax.grad(lambda q: q.log_partition)(jax.tree.map(jnp.asarray, q))
    for a, b in zip(jax.tree.leaves(gradient), q.mean_parameters, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def check_entropy_and_cross(q, p):
    """-E_q[log q] and E_q[log p], by the same quadrature-free identities that define KL."""
    log_p = q.cross(p) - p.log_partition
    np.testing.assert_allclose(-q.entropy - log_p, q.kl(p), rtol=1e-7, atol=1e-10)


def check_from_moments(q, spread):
    """from_moments(mean, variance or covariance) gives back the member."""
    assert_same(type(q).from_moments(q.mean, spread), q, rtol=1e-9)


def check_samples(q):
    """Draws have the member's mean and variance, and each sufficient statistic its expectation."""
    thetas = draws(q)
    flat = jax.vmap(lambda theta: ravel_pytree(theta)[0])(thetas)
    mean, variance = ravel_pytree(q.mean)[0], ravel_pytree(q.variance)[0]
    assert_expectation(flat, mean)
    assert_expectation((flat - mean) ** 2, variance)
    if hasattr(q, "statistics"):
        for statistic, expected in zip(jax.vmap(q.statistics)(thetas), q.mean_parameters, strict=True):
            assert_expectation(statistic, expected)
    single = jax.eval_shape(q.sample, jax.random.key(1))
    shaped = jax.eval_shape(lambda key: q.sample(key, (2, 3)), jax.random.key(1))
    for one, several in zip(jax.tree.leaves(single), jax.tree.leaves(shaped), strict=True):
        assert several.shape == (2, 3, *one.shape)
    # no two draws of a batch are copies
    assert all(len(np.unique(np.asarray(leaf), axis=0)) > 0.99 * NUM_DRAWS for leaf in jax.tree.leaves(thetas))


def assert_expectation(values, expected):
    """The mean over the first axis is the expectation, within its Monte Carlo error."""
    values = np.asarray(values)
    error = values.std(axis=0) / np.sqrt(len(values))
    assert (np.abs(values.mean(axis=0) - expected) <= STANDARD_ERRORS * error + 1e-12).all()


def check_kl(q, p):
    """Zero at equality, positive elsewhere, the Bregman divergence of A, and E_q[log q - log p]."""
    assert abs(q.kl(q)) < 1e-13
    value = q.kl(p)
    assert value > 0
    if hasattr(q, "mean_parameters"):
        np.testing.assert_allclose(value, kl_by_log_partition(q, p), rtol=1e-8)
    assert_expectation(jax.vmap(lambda theta: q.log_prob(theta) - p.log_prob(theta))(draws(q)), value)


def check_kl_near_equality(q, direction):
    """A divergence far below the tolerance of any run is still positive and quadratic, in both precisions."""
    curvature = float(q.kl(q * direction**1e-3)) / 1e-6
    q, direction = ledger.to_host(q), ledger.to_host(direction)
    for double, size in ((True, 1e-15), (False, 1e-8)):
        step = np.sqrt(size / curvature)
        with jax.enable_x64(double):
            here, near, far = (
                jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), member)
                for member in (q, q * direction**step, q * direction ** (2 * step))
            )
            assert here.kl(far).dtype == jnp.result_type(float)
            np.testing.assert_allclose([here.kl(near), here.kl(far)], [size, 4 * size], rtol=0.1)
            assert 0 <= here.kl(here) < 0.01 * size


def check_compiled(q, p, improper):
    """An improper member raises, eagerly and when compiled code runs; a batch of members gives a batch of answers."""
    theta = jax.tree.map(lambda leaf: leaf[0], draws(q))
    score = eqx.filter_jit(lambda q: q.log_prob(theta))
    np.testing.assert_allclose(score(q), q.log_prob(theta), rtol=1e-10)
    assert not bool(improper.is_proper)
    with pytest.raises(ImproperError):
        improper.sample(jax.random.key(0))
    with pytest.raises(ImproperError):
        improper.log_prob(theta)
    for compiled in (draws, score):
        with pytest.raises(eqx.EquinoxRuntimeError, match="improper"):
            jax.block_until_ready(compiled(improper))
    pair = jax.tree.map(lambda a, b: jnp.stack([a, b]), q, p)
    np.testing.assert_allclose(jax.vmap(lambda member: member.kl(p))(pair), [q.kl(p), 0.0], rtol=1e-9, atol=1e-12)
