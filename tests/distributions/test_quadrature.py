"""Nodes and points that replace a standard normal."""

import numpy as np
import pytest

from cavity.distributions.quadrature import hermite_grid, quasi_normal_points


@pytest.mark.parametrize(("dimension", "count"), [(1, 16), (2, 64), (5, 64), (12, 96)])
def test_points_have_the_moments_of_a_standard_normal_exactly(dimension, count):
    points = quasi_normal_points(dimension, count)
    assert points.shape == (count, dimension)
    np.testing.assert_allclose(points.mean(0), 0.0, atol=1e-14)
    np.testing.assert_allclose(points.T @ points / count, np.eye(dimension), atol=1e-12)
    np.testing.assert_array_equal(np.sort(points, axis=0), np.sort(-points, axis=0))  # antithetic


def test_points_fill_space_better_than_random_draws():
    """E[exp(0.5 x_1 - 0.3 x_2)] = exp(0.17): the error of 64 draws is 0.08 on average."""
    points = quasi_normal_points(3, 64)
    found = np.mean(np.exp(0.5 * points[:, 0] - 0.3 * points[:, 1]))
    assert found == pytest.approx(np.exp(0.5 * (0.25 + 0.09)), abs=0.02)


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match="8 points in 4 dimensions"):
        quasi_normal_points(4, 8)


@pytest.mark.parametrize("order", [1, 4, 21])
def test_a_grid_is_exact_for_polynomials(order):
    nodes, weights = hermite_grid(2, order)
    assert weights.sum() == pytest.approx(1.0)
    if order > 2:  # E[x^4 y^2] = 3
        assert weights @ (nodes[:, 0] ** 4 * nodes[:, 1] ** 2) == pytest.approx(3.0)
