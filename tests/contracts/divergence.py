"""What every divergence promises."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


class Look(eqx.Module):
    """A divergence and its objective at q, with their derivatives in the natural parameters of q."""

    value: jax.Array
    slope: eqx.Module
    objective: jax.Array
    objective_slope: eqx.Module


@eqx.filter_jit
def look(divergence, q, p) -> Look:
    """Compiled once per family and divergence: all checks below ask no more than this."""
    both = [jax.value_and_grad(face)(q, p) for face in (divergence, divergence.objective)]
    return Look(*both[0], *both[1])


def leaves(q):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(q)])


def check_distance(divergence, members, p):
    """Positive away from p, with derivatives as finite differences have them; the objective differs by a constant."""
    rng = np.random.default_rng(0)
    looks = [look(divergence, q, p) for q in members]
    gaps = np.array([each.objective - each.value for each in looks])
    np.testing.assert_allclose(gaps, gaps[0], rtol=1e-9, atol=1e-9)
    for q, here in zip(members, looks, strict=True):
        assert here.value > 0
        slope = leaves(here.slope)
        np.testing.assert_allclose(leaves(here.objective_slope), slope, rtol=1e-8, atol=1e-9 * (1 + np.max(slope)))
        noise = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), q)
        direction = jax.tree.map(
            lambda leaf: 1e-5 * (leaf + np.swapaxes(leaf, -1, -2) if leaf.ndim == 2 else leaf), noise
        )
        there, opposite = (look(divergence, q * direction**sign, p).value for sign in (1, -1))
        np.testing.assert_allclose(
            slope @ leaves(direction), (there - opposite) / 2, rtol=1e-5, atol=1e-9 * np.linalg.norm(slope) + 1e-14
        )


def check_equality(divergence, p):
    """Zero, with the derivative 0, though all relative eigenvalues are equal."""
    here = look(divergence, p, p)
    np.testing.assert_allclose(here.value, 0.0, atol=1e-14)
    # a slope is a difference of mean parameters, of which rounding in p's own leaves something
    rounding = 1e-14 * (1 + max(np.max(np.abs(each)) for each in p.mean_parameters)) ** 2
    np.testing.assert_allclose(leaves(here.slope), 0.0, atol=rounding)
    np.testing.assert_allclose(leaves(here.objective_slope), 0.0, atol=rounding)


def check_near_equality(divergence, p, direction, expected, rtol):
    """At q = p * direction the value is its prediction, however small, and half as far a quarter of it."""
    near, half = (look(divergence, p * direction**size, p).value for size in (1.0, 0.5))
    np.testing.assert_allclose(near, expected, rtol=rtol)
    np.testing.assert_allclose(half, near / 4, rtol=rtol)


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
