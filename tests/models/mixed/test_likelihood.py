"""The log likelihood of a client: the sum over its units, its derivatives, and the order that a client chooses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cavity.core import pad
from cavity.likelihoods import BernoulliLogit
from cavity.models.mixed.grouped_regression import GroupedRegression, GroupEffects
from cavity.models.mixed.integration import log_marginal
from cavity.models.mixed.likelihood import log_likelihood, refinement, rows_near
from cavity.models.mixed.rules import Rule
from tests.marks import thorough

INTERCEPTS = GroupedRegression(BernoulliLogit(), ("x",), (GroupEffects(("1",), "g"),), [10.0, 2.5], [], [2.5])
SLOPES = GroupedRegression(BernoulliLogit(), ("x",), (GroupEffects(("1", "x"), "g"),), [10.0, 2.5], [], [2.5, 2.5])
Z = np.array([-0.4, 0.7, np.log(1.2)])


def rows(model, num_groups=9, seed=0):
    """Groups of 1 to 6 rows, in mixed order; all outcomes of the first are 0."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(num_groups), 1 + np.arange(num_groups) % 6))
    x = rng.normal(size=len(group))
    y = (rng.random(len(group)) < 0.5) & (group > 0)
    z = np.stack([np.ones(len(group)), x], axis=1)[:, : model.num_local]
    return model.prepare({"x": x[:, None], "y": y.astype(float), "z": z, "group": group})


@pytest.fixture(scope="module")
def value_and_slope():
    return jax.jit(jax.value_and_grad(lambda z, data: log_likelihood(INTERCEPTS, Rule(), z, data)))


@thorough
def test_it_is_the_sum_over_units_with_its_gradient(value_and_slope):
    data, z = rows(INTERCEPTS), jnp.asarray(Z)
    value, slope = value_and_slope(z, data)
    expected, gradient = jax.jit(
        jax.value_and_grad(lambda z: jnp.sum(log_marginal(INTERCEPTS, None, z, data, Rule())))
    )(z)
    assert float(value) == pytest.approx(float(expected), rel=1e-13)
    np.testing.assert_allclose(slope, gradient, rtol=1e-10)


@thorough
def test_padding_counts_nothing(value_and_slope):
    data, z = rows(INTERCEPTS), jnp.asarray(Z)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11),
        value_and_slope(z, pad(data, len(data.weight) + 5, 12)),
        value_and_slope(z, data),
    )


@thorough
@pytest.mark.parametrize("model", [INTERCEPTS, SLOPES])
def test_the_gradient_near_a_posterior_is_that_of_the_value(model):
    z = jnp.asarray(Z if model is INTERCEPTS else np.array([-0.4, 0.7, 0.1, -0.2, 0.3]))
    data = jax.jit(lambda: rows_near(model, Rule(), z[None], rows(model)))()
    total = jax.jit(lambda z: log_likelihood(model, Rule(), z, data))
    slope, h = jax.jit(jax.grad(lambda z: log_likelihood(model, Rule(), z, data)))(z + 0.2), 1e-5
    for i in range(len(z)):
        step = jnp.zeros(len(z)).at[i].set(h)
        difference = float(total(z + 0.2 + step) - total(z + 0.2 - step)) / (2 * h)
        assert slope[i] == pytest.approx(difference, rel=1e-6, abs=1e-7)


@thorough
def test_second_derivatives():
    data, z = rows(INTERCEPTS), jnp.asarray(Z)
    hessian = jax.jit(jax.hessian(lambda z: log_likelihood(INTERCEPTS, Rule(49), z, data)))(z)
    expected = jax.jit(jax.hessian(lambda z: jnp.sum(log_marginal(INTERCEPTS, None, z, data, Rule(49)))))(z)
    np.testing.assert_allclose(hessian, expected, rtol=1e-6, atol=1e-8)


@thorough
def test_the_order_grows_with_the_spread_of_the_effects():
    data = rows(INTERCEPTS)
    orders = {}
    check = jax.jit(lambda z: refinement(INTERCEPTS, Rule(), z, data))
    for sd in (0.2, 2.0, 8.0):
        z = jnp.asarray([[-0.4, 0.7, np.log(sd)]])
        order, other, change = check(z)
        orders[sd] = int(order)
        assert other > order
        assert abs(float(change[0])) < 9e-5  # 1e-5 of each unit
        exact = float(jnp.sum(log_marginal(INTERCEPTS, None, z[0], data, Rule(195))))
        near = rows_near(INTERCEPTS, Rule(), z, data)
        assert float(log_likelihood(INTERCEPTS, Rule(), z[0], near)) == pytest.approx(exact, abs=9e-5)
    assert orders[0.2] == 7
    assert orders[0.2] < orders[2.0] < orders[8.0]


@thorough
def test_a_posterior_that_is_not_finite_leaves_the_default():
    data = rows_near(INTERCEPTS, Rule(), jnp.full((1, 3), jnp.nan), rows(INTERCEPTS))
    assert int(data.batch.level) == Rule().default_level(1)
    assert np.isfinite(data.batch.modes).all()


def test_an_order_that_is_given_is_kept():
    data = rows_near(INTERCEPTS, Rule(9), jnp.asarray(Z)[None], rows(INTERCEPTS))
    assert int(data.batch.level) == 0
