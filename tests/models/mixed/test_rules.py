"""Rules of integration: exact for Gaussian units, near dense sums for units that are far from Gaussian."""

import numpy as np
import pytest
from scipy.special import log_expit, logsumexp

from cavity.models.mixed import rules
from cavity.models.mixed.rules import Rule, tables


@pytest.mark.parametrize("num_local", [1, 2, 3])
@pytest.mark.parametrize("order", [8, 26])
def test_weights_are_those_of_a_standard_normal(num_local, order):
    points, log_weights = (np.asarray(part) for part in Rule(order).points(num_local))
    weights = np.exp(log_weights - 0.5 * np.sum(points**2, axis=1))
    assert weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(weights @ points, 0.0, atol=1e-9)
    np.testing.assert_allclose((weights[:, None] * points).T @ points, np.eye(num_local), atol=2e-7)


def unit(u, sd, num_rows, successes):
    return successes * log_expit(sd * u) + (num_rows - successes) * log_expit(-sd * u) - 0.5 * u**2


def error(order, sd, num_rows, successes):
    """Of the log integral of a unit, with the mode and the curvature from a dense grid."""
    grid = np.linspace(-14, 14, 40_001)
    log_p = unit(grid, sd, num_rows, successes)
    mode, step = grid[log_p.argmax()], grid[1] - grid[0]
    p = 1 / (1 + np.exp(-sd * mode))
    root = (1 + num_rows * sd**2 * p * (1 - p)) ** -0.5
    points, log_weights = (np.asarray(part) for part in Rule(order).points(1))
    found = logsumexp(unit(mode + root * points[:, 0], sd, num_rows, successes) + log_weights)
    return abs(found + np.log(root) + 0.5 * np.log(2 * np.pi) - logsumexp(log_p) - np.log(step))


@pytest.mark.parametrize(("order", "sd", "bar"), [(13, 1.0, 1e-6), (25, 2.0, 1e-6), (25, 4.0, 1e-4), (49, 4.0, 1e-6)])
def test_units_that_are_far_from_gaussian(order, sd, bar):
    """All or none of a patient's outcomes are 1, and the sd of the random effects is large."""
    assert max(error(order, sd, 7, successes) for successes in (0, 3, 7)) < bar


def test_gauss_hermite_needs_more_nodes_there():
    assert error(21, 4.0, 7, 0) > 20 * error(25, 4.0, 7, 0)


def test_tables_have_the_points_of_every_order():
    every = tables(1, rules.LADDERS[1])
    for i, order in enumerate(rules.LADDERS[1]):
        needed = every.counts[i] * every.group
        points, log_weights = Rule(order).points(1)
        np.testing.assert_array_equal(every.points[i, :order], points)
        np.testing.assert_array_equal(every.log_weights[i, :order], log_weights)
        assert (every.log_weights[i, order:] == -np.inf).all()
        assert order <= needed < order + every.group


def test_rules_in_words():
    assert "Laplace's method" in Rule(1).describe(1)
    assert "adaptive Gauss-Hermite quadrature with 9 nodes each" in Rule(9).describe(2)
    assert "adaptive trapezoidal rule with 49 nodes" in Rule(49).describe(1)
    assert "7 to 97 nodes" in Rule().describe(1)
    assert "importance correction (256 points)" in Rule().describe(3)
