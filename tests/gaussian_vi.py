"""The Gaussian closest to a density in KL(q : p), in plain numpy and SciPy: nothing of the library is imported here."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

GRID = np.linspace(-9.0, 9.0, 2001)
GRID_WEIGHTS = np.exp(-0.5 * GRID**2) / np.exp(-0.5 * GRID**2).sum()  # the trapezoid rule, which is exact to rounding


def closest_gaussian_1d(log_density: Callable[[np.ndarray], np.ndarray], start: float = 0.0) -> tuple[float, float]:
    """Mean and standard deviation that maximise E_q[log density] + entropy, on a fine grid around the mean."""

    def objective(free: np.ndarray) -> float:
        return -GRID_WEIGHTS @ log_density(free[0] + np.exp(free[1]) * GRID) - free[1]

    found = minimize(objective, [start, -1.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
    assert found.success
    return float(found.x[0]), float(np.exp(found.x[1]))


def closest_gaussian(
    log_density: Callable[[np.ndarray], np.ndarray], start: np.ndarray, scale: np.ndarray, num_nodes: int = 30
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the same in two or three dimensions, by a Gauss-Hermite grid; densities of [s, d]."""
    dim = len(start)
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    grid = np.stack(np.meshgrid(*[nodes] * dim, indexing="ij"), -1).reshape(-1, dim)
    weight = np.stack(np.meshgrid(*[weights] * dim, indexing="ij"), -1).reshape(-1, dim).prod(axis=1)
    weight = weight / weight.sum()
    below = np.tril_indices(dim, -1)

    def root_of(free: np.ndarray) -> np.ndarray:
        root = np.diag(np.exp(free[dim : 2 * dim]))
        root[below] = free[2 * dim :]
        return scale[:, None] * root

    def objective(free: np.ndarray) -> float:
        return -weight @ log_density(start + scale * free[:dim] + grid @ root_of(free).T) - free[dim : 2 * dim].sum()

    first = np.zeros(2 * dim + len(below[0]))
    found = minimize(objective, first, method="BFGS", options={"gtol": 1e-7, "maxiter": 500})
    found = minimize(objective, found.x, method="BFGS", options={"gtol": 1e-8, "maxiter": 500})
    root = root_of(found.x)
    return start + scale * found.x[:dim], root @ root.T
