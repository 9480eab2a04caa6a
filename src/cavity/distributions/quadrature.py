"""Nodes and weights for expectations under a standard normal."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from statistics import NormalDist
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Array, Float

T = TypeVar("T")


@cache
def normal_nodes(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes [s, dimension] and weights [s] for expectations under a standard normal.

    Up to three dimensions these are Gauss-Hermite grids. In more dimensions they are fixed antithetic draws whose mean
    and covariance are exactly 0 and I, so that quadratics are integrated exactly.

    Args:
        dimension: the number of coordinates.

    Returns:
        The nodes, and their weights, which sum to 1.
    """
    per_axis = {1: 32, 2: 20, 3: 12}
    if dimension in per_axis:
        nodes, weights = np.polynomial.hermite_e.hermegauss(per_axis[dimension])
        grid = np.stack(np.meshgrid(*[nodes] * dimension, indexing="ij"), -1).reshape(-1, dimension)
        products = np.stack(np.meshgrid(*[weights] * dimension, indexing="ij"), -1).reshape(-1, dimension).prod(1)
        return grid, products / products.sum()
    half = max(128, 2 * dimension)
    draws = np.random.default_rng(0).standard_normal((half, dimension))
    whitened = np.linalg.solve(np.linalg.cholesky(draws.T @ draws / half), draws.T).T
    return np.concatenate([whitened, -whitened]), np.full(2 * half, 0.5 / half)


@cache
def fine_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Nodes [s, 1] and weights [s] for one dimension, by the trapezoid rule.

    The rule converges exponentially. With f = m + s z and the logistic likelihood it is exact to rounding up to s = 7;
    32 Gauss-Hermite nodes have an error of 1e-8 at s = 2 and 4e-4 at s = 5.
    """
    nodes = 0.125 * np.arange(-80, 81)
    weights = np.exp(-0.5 * nodes**2)
    return nodes[:, None], weights / weights.sum()


@cache
def hermite_grid(dimension: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes [s, dimension] and weights [s] of the product rule of Gauss and Hermite for a standard normal.

    Args:
        dimension: the number of coordinates.
        order: nodes per coordinate; the rule is exact for polynomials of degree 2 order - 1 in each.

    Returns:
        The nodes, and their weights, which sum to 1.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    # exactly symmetric, a node at exactly 0
    return product_grid(0.5 * (nodes - nodes[::-1]), weights / weights.sum(), dimension)


def product_grid(
    nodes: Float[np.ndarray, " k"], weights: Float[np.ndarray, " k"], dimension: int
) -> tuple[np.ndarray, np.ndarray]:
    """Nodes [s, dimension] and weights [s] of the product rule.

    Args:
        nodes: of a rule in one dimension.
        weights: of these nodes.
        dimension: the number of coordinates.

    Returns:
        The nodes, and their weights, which sum to 1.
    """
    grid = np.stack(np.meshgrid(*[nodes] * dimension, indexing="ij"), -1).reshape(-1, dimension)
    products = np.stack(np.meshgrid(*[weights] * dimension, indexing="ij"), -1).reshape(-1, dimension).prod(1)
    return grid, products / products.sum()


@cache
def product_nodes(orders: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Nodes [s, dimension] and weights [s] of a product of Gauss-Hermite rules of different orders.

    Args:
        orders: nodes per coordinate.

    Returns:
        The nodes, and their weights, which sum to 1.
    """
    rules = [np.polynomial.hermite_e.hermegauss(order) for order in orders]
    grid = np.stack(np.meshgrid(*(nodes for nodes, _ in rules), indexing="ij"), -1).reshape(-1, len(orders))
    products = np.stack(np.meshgrid(*(weights for _, weights in rules), indexing="ij"), -1)
    products = products.reshape(-1, len(orders)).prod(1)
    return grid, products / products.sum()


@cache
def quasi_normal_points(dimension: int, count: int) -> np.ndarray:
    """Points [count, dimension] that replace draws of a standard normal: quasi-Monte Carlo, the same in every run.

    They are antithetic, and their mean and covariance are exactly 0 and I, so that quadratics are integrated exactly.
    Half of them are a Kronecker sequence with the powers of 1 / phi, where phi ** (dimension + 1) = phi + 1, which
    fills the cube evenly (Roberts, 2018); the normal quantile function maps it to R^d.

    Args:
        dimension: the number of coordinates.
        count: an even number of points, at least 2 (dimension + 1).

    Returns:
        The points.
    """
    half = count // 2
    if count % 2 or half <= dimension:
        raise ValueError(f"{count} points in {dimension} dimensions: an even number above {2 * dimension} is needed")
    phi = 2.0
    for _ in range(60):  # a contraction
        phi = (1.0 + phi) ** (1.0 / (dimension + 1))
    cube = (0.5 + np.outer(np.arange(1, half + 1), phi ** -np.arange(1.0, dimension + 1))) % 1.0
    quantile = NormalDist().inv_cdf
    normal = np.array([[quantile(u) for u in row] for row in cube])
    whitened = np.linalg.solve(np.linalg.cholesky(normal.T @ normal / half), normal.T).T
    return np.concatenate([whitened, -whitened])


def in_groups(function: Callable[[Array], T], points: Float[Array, "s d"], together: int) -> T:
    """`function` of every point, some at a time, which bounds the memory.

    Args:
        function: of one point.
        points: the points.
        together: at most so many are evaluated at a time; at least one is.

    Returns:
        What the function returns, with the points as leading axis.
    """
    # a divisor, so that there is no smaller group, for which the function would be compiled again
    size = max(n for n in range(1, len(points) + 1) if len(points) % n == 0 and n <= max(together, 1))
    return jax.vmap(function)(points) if size == len(points) else jax.lax.map(function, points, batch_size=size)
