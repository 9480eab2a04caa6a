"""The mean-field Gaussian in means and scales says the same as in natural parameters."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cavity.core.random import standard_normal
from cavity.distributions import DiagonalGaussian
from cavity.distributions.mean_scale import MeanScale
from tests.marks import thorough


def member(seed, dimension=3):
    rng = np.random.default_rng(seed)
    precision = np.exp(rng.normal(size=dimension))
    return DiagonalGaussian(jnp.asarray(precision * rng.normal(size=dimension)), jnp.asarray(precision))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_same_density(seed):
    q, p = member(seed), member(seed + 1)
    view = MeanScale.of(q)
    same = {"rtol": 1e-10, "atol": 1e-12}
    for name in ("mean", "variance", "covariance", "entropy"):
        np.testing.assert_allclose(getattr(view, name), getattr(q, name), **same)
    assert view.dimension == q.dimension
    assert bool(view.is_proper)
    for ours, theirs in (
        (view.natural, q),
        (view * p, q * p),
        (view / MeanScale.of(p), q / p),
        (view**0.3, q**0.3),
    ):
        for left, right in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(left, right, **same)
    theta, noise = jnp.array([0.1, -2.0, 1.0]), jnp.array([[1.0, 0.0, -1.0]])
    np.testing.assert_allclose(view.log_prob(theta), q.log_prob(theta), **same)
    np.testing.assert_allclose(view.kl(p), q.kl(p), rtol=1e-8)
    np.testing.assert_allclose(view.kl(MeanScale.of(p)), q.kl(p), rtol=1e-8)
    # a factor need not be proper
    for factor in (p, p**-1.0):
        np.testing.assert_allclose(view.cross(factor), q.cross(factor), **same)
    np.testing.assert_allclose(view.reparameterise(noise), q.reparameterise(noise), **same)
    np.testing.assert_allclose(view.sample(jax.random.key(0)), q.sample(jax.random.key(0)), **same)
    x = jnp.array([[1.0, 2.0, 0.0], [0.5, 0.0, 1.0]])
    for left, right in zip(view.map_moments((x,)), q.map_moments((x,)), strict=True):
        np.testing.assert_allclose(left, right, **same)


@thorough
def test_standard_normal_rows_do_not_depend_on_how_many_follow():
    for num_columns in (1, 2, 5):
        few = standard_normal(jax.random.key(3), 7, num_columns, jnp.float32)
        many = standard_normal(jax.random.key(3), 20_000, num_columns, jnp.float32)
        assert few.shape == (7, num_columns)
        assert few.dtype == jnp.float32
        np.testing.assert_array_equal(few, many[:7])
        draws = np.asarray(many, float)
        error = 5 / np.sqrt(len(draws))
        assert (np.abs(draws.mean(0)) < error).all()
        assert (np.abs(np.cov(draws.T) - np.eye(num_columns)) < 2 * error).all()
        assert (np.abs((draws**4).mean(0) - 3) < 10 * error).all()
