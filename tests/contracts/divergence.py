"""What every divergence promises."""

import jax
import jax.numpy as jnp
import numpy as np


def check_zero_at_equality(divergence, q):
    np.testing.assert_allclose(divergence(q, q), 0.0, atol=1e-12)


def check_positive_elsewhere(divergence, q, p):
    assert divergence(q, p) > 0


def check_objective(divergence, members, p):
    """The objective is the divergence up to a constant in q, so their gradients in q are the same."""
    gaps = jnp.stack([divergence.objective(q, p) - divergence(q, p) for q in members])
    np.testing.assert_allclose(gaps, gaps[0], rtol=1e-9, atol=1e-9)
    gradients = jax.jit(lambda q: (jax.grad(divergence.objective)(q, p), jax.grad(divergence)(q, p)))
    for q in members:
        left, right = gradients(q)
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)


def check_objective_of_improper(divergence, members, improper):
    """With an improper p the objective is finite, and affine in log p: factors of p add up."""
    assert not bool(improper.is_proper)
    for q in members:
        value = divergence.objective(q, improper)
        assert jnp.isfinite(value)
        split = divergence.objective(q, q) + divergence.objective(q, improper / q) + q.entropy
        np.testing.assert_allclose(value, split, rtol=1e-9, atol=1e-9)
