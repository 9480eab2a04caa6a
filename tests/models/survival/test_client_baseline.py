"""Piecewise exponential regression with baselines of each client: against all hazards as parameters."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from cavity.core import Data
from cavity.distributions import FullGaussian
from cavity.errors import CavityError
from cavity.models.survival.client_baseline import ClientBaselineRegression
from tests.contracts.model import NUM_ROWS, check_model
from tests.models.survival import by_hand

CUTS = (4.0, 9.0)


def model():
    return ClientBaselineRegression(FullGaussian(jnp.zeros(2), jnp.eye(2)), ("a", "b"), cuts=CUTS)


def rows(seed, num_rows, columns=2, unit=1.0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num_rows, 2)), by_hand.survival_rows(rng, num_rows, columns=columns, unit=unit)


def joint(theta, log_hazard, x, y):
    """The log likelihood with all hazards, row by row and interval by interval."""
    total, ends = 0.0, [0.0, *CUTS, np.inf]
    for features, (*start, stop, status) in zip(x, y, strict=True):
        eta, start = features @ theta, start[0] if start else 0.0
        for j, (low, high) in enumerate(pairwise(ends)):
            exposure = max(0.0, min(stop, high) - max(start, low))
            total -= exposure * np.exp(eta + log_hazard[j])
            total += status * (low < stop <= high) * (eta + log_hazard[j])
    return total


@pytest.mark.parametrize("columns", [2, 3])
def test_it_is_the_largest_likelihood_over_all_baselines(columns):
    x, y = rows(1, 15, columns)
    differences = []
    for theta in ([0.4, -0.3], [-1.0, 0.5]):
        best = minimize(lambda h, theta=theta: -joint(theta, h, x, y), -2.0 * np.ones(3), tol=1e-10)
        found = model().log_prob(jnp.array(theta), Data((x, y), np.ones(15), np.asarray(15)))
        differences.append(float(found) + best.fun)
    assert differences[0] == pytest.approx(differences[1], abs=1e-7)


@pytest.mark.parametrize("columns", [2, 3])
def test_contract(columns):
    check_model(
        model(), jnp.array([0.4, -0.3]), Data(rows(3, NUM_ROWS, columns), np.ones(NUM_ROWS), np.asarray(NUM_ROWS))
    )


def test_without_events_it_is_flat():
    x, y = rows(1, 6)
    y[:, 1] = 0.0
    data = Data((x, y), np.ones(6), np.asarray(6))
    value, slope = jax.jit(jax.value_and_grad(lambda theta: model().log_prob(theta, data)))(jnp.array([300.0, -300.0]))
    assert float(value) == 0.0
    np.testing.assert_array_equal(slope, [0.0, 0.0])


def test_cuts_are_checked():
    with pytest.raises(CavityError, match="cut points are positive and increase"):
        ClientBaselineRegression(FullGaussian(jnp.zeros(1), jnp.eye(1)), ("a",), cuts=(2.0, 1.0))
