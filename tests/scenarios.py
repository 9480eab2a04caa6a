"""Problems with known answers, in plain numpy and SciPy: nothing of the library is imported here.

Data are drawn from a fixed seed. Answers are closed forms, dense grids, or the minimum of the free energy

    sum_n E_q[loss_n] + KL(q : prior)                                                (PVI, section 2, negated)

found by L-BFGS over the mean and a triangular root of the covariance. Its expectations are closed forms (counts,
unknown noise) or Gauss-Hermite sums with nodes from the eigenvalues of the Jacobi matrix. Gradients are those of
Bonnet's and Price's theorems, with first and second derivatives of the losses written out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln, log_ndtr, logsumexp

LOG_TWO_PI = np.log(2 * np.pi)


# Expectations of the loss of one row over f ~ N(mean, covariance): value [n], gradient [n, k], Hessian [n, k, k].
Expectation = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


@cache
def hermite(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for a standard normal, by Golub and Welsch."""
    off = np.sqrt(np.arange(1, num_nodes))
    nodes, vectors = np.linalg.eigh(np.diag(off, 1) + np.diag(off, -1))
    return nodes, vectors[0] ** 2


def by_quadrature(loss, num_nodes: int) -> Expectation:
    """From `loss(f, y) -> (value, gradient, Hessian)`: a tensor grid over the k predictors."""

    def expectation(mean, covariance, y):
        k = mean.shape[1]
        nodes, weights = hermite(num_nodes)
        grid = np.stack([axis.ravel() for axis in np.meshgrid(*[nodes] * k, indexing="ij")], -1)
        weight = np.prod([axis.ravel() for axis in np.meshgrid(*[weights] * k, indexing="ij")], axis=0)
        f = mean[:, None] + np.einsum("nkl,sl->nsk", np.linalg.cholesky(covariance), grid)
        value, gradient, hessian = loss(f, y[:, None])
        return value @ weight, np.einsum("nsk,s->nk", gradient, weight), np.einsum("nskl,s->nkl", hessian, weight)

    return expectation


def logistic_loss(f, y):
    f = f[..., 0]
    p = 1 / (1 + np.exp(-f))
    return np.logaddexp(0, f) - y * f, (p - y)[..., None], (p * (1 - p))[..., None, None]


def probit_loss(f, y):
    sign = 2 * y - 1
    z = sign * f[..., 0]
    ratio = np.exp(-0.5 * (z**2 + LOG_TWO_PI) - log_ndtr(z))  # phi / Phi
    return -log_ndtr(z), (-sign * ratio)[..., None], (ratio * (z + ratio))[..., None, None]


def softmax_loss(f, y):
    scores = np.concatenate([np.zeros((*f.shape[:-1], 1)), f], -1)
    normaliser = logsumexp(scores, axis=-1)
    p = np.exp(f - normaliser[..., None])
    chosen = np.broadcast_to(y, normaliser.shape)[..., None] == np.arange(scores.shape[-1])
    hessian = p[..., :, None] * (np.eye(f.shape[-1]) - p[..., None, :])
    return normaliser - np.sum(scores * chosen, -1), p - chosen[..., 1:], hessian


def poisson_expectation(mean, covariance, y):
    """E[e^f] = exp(m + v / 2)."""
    rate = np.exp(mean[:, 0] + covariance[:, 0, 0] / 2)
    return rate - y * mean[:, 0] + gammaln(y + 1), (rate - y)[:, None], rate[:, None, None]


def unknown_noise_expectation(mean, covariance, y):
    """With f = (location, log noise): E[(y - f_1)^2 e^(-2 f_2)] tilts f_1 by -2 cov(f_1, f_2)."""
    e = np.exp(-2 * mean[:, 1] + 2 * covariance[:, 1, 1])
    r = y - mean[:, 0] + 2 * covariance[:, 0, 1]
    square = r**2 + covariance[:, 0, 0]
    value = 0.5 * e * square + mean[:, 1] + 0.5 * LOG_TWO_PI
    gradient = np.stack([-e * r, 1 - e * square], -1)
    hessian = np.stack([np.stack([e, 2 * e * r], -1), np.stack([2 * e * r, 2 * e * square], -1)], -2)
    return value, gradient, hessian


@dataclass(frozen=True, eq=False)
class Regression:
    """Data of a generalised linear regression with N(0, prior_scale^2) on every coefficient.

    Attributes:
        x: features without the intercept, [n, p].
        y: outcomes, [n].
        expectation: of the loss of a row.
        prior_scale: standard deviation of every coefficient.
        num_outputs: K, how many predictors see intercept and features.
        has_noise: whether one more predictor sees a constant only.
    """

    x: np.ndarray
    y: np.ndarray
    expectation: Expectation
    prior_scale: float
    num_outputs: int = 1
    has_noise: bool = False

    @property
    def design(self) -> np.ndarray:
        """The map from theta to the predictors of each row, [n, k, d]."""
        rows = np.column_stack([np.ones(len(self.x)), self.x])
        blocks = [rows] * self.num_outputs + [rows[:, :1]] * self.has_noise
        design = np.zeros((len(rows), len(blocks), sum(block.shape[1] for block in blocks)))
        start = 0
        for k, block in enumerate(blocks):
            design[:, k, start : start + block.shape[1]] = block
            start += block.shape[1]
        return design

    @property
    def dimension(self) -> int:
        return self.design.shape[2]


def expected_loss(problem: Regression, mean, covariance):
    """Sum over rows of E_q[loss], its gradient in the mean, and its gradient in the covariance."""
    a = problem.design
    f_mean, f_covariance = a @ mean, np.einsum("nkd,de,nle->nkl", a, covariance, a)
    value, gradient, hessian = problem.expectation(f_mean, f_covariance, problem.y)
    return value.sum(), np.einsum("nkd,nk->d", a, gradient), 0.5 * np.einsum("nkd,nkl,nle->de", a, hessian, a)


def free_energy(problem: Regression, mean, covariance) -> float:
    """E_q[log p(y | theta)] - KL(q : prior), the lower bound of the log evidence."""
    d, scale = problem.dimension, problem.prior_scale
    loss, _, _ = expected_loss(problem, mean, covariance)
    return -loss - gaussian_kl(mean, covariance, np.zeros(d), scale**2 * np.eye(d))


def free_energy_gradient(problem: Regression, mean, covariance):
    """The derivatives of the free energy in the mean and in the covariance."""
    _, slope, bend = expected_loss(problem, mean, covariance)
    precision = np.eye(problem.dimension) / problem.prior_scale**2
    return -slope - precision @ mean, -bend - 0.5 * (precision - np.linalg.inv(covariance))


def gaussian_optimum(problem: Regression, *, mean_field: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the best Gaussian, by L-BFGS over (mean, root) with log-diagonal."""
    d, scale = problem.dimension, problem.prior_scale
    below = np.tril_indices(d, -1) if not mean_field else (np.array([], int), np.array([], int))

    def unpack(parameters):
        root = np.diag(np.exp(parameters[d : 2 * d]))
        root[below] = parameters[2 * d :]
        return parameters[:d], root

    def objective(parameters):
        mean, root = unpack(parameters)
        loss, slope, bend = expected_loss(problem, mean, root @ root.T)
        # KL to N(0, scale^2 I), without its constant
        value = loss + 0.5 * (np.sum(root**2) + mean @ mean) / scale**2 - np.sum(parameters[d : 2 * d])
        by_root = 2 * bend @ root + root / scale**2
        by_diagonal = np.diag(by_root) * np.diag(root) - 1
        return value, np.concatenate([slope + mean / scale**2, by_diagonal, by_root[below]])

    start = np.concatenate([np.zeros(d), np.full(d, np.log(0.1)), np.zeros(len(below[0]))])
    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 0.0, "gtol": 1e-9, "maxls": 50}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    # rounding in a sum of this size is the only thing that may stop it
    assert np.max(np.abs(found.jac)) < 1e-5, found
    mean, root = unpack(found.x)
    return mean, root @ root.T


def gaussian_kl(mean, covariance, other_mean, other_covariance) -> float:
    """KL(N : other), from the textbook."""
    solved = np.linalg.solve(other_covariance, covariance)
    shift = mean - other_mean
    distance = shift @ np.linalg.solve(other_covariance, shift)
    return 0.5 * (np.trace(solved) - len(mean) - np.linalg.slogdet(solved)[1] + distance)


def linear_posterior(x, y, noise_sd: float, prior_scale: float, weight=None) -> tuple[np.ndarray, np.ndarray]:
    """Precision times mean, and precision, of a linear regression with known noise."""
    a = np.column_stack([np.ones(len(x)), x])
    w = np.ones(len(x)) if weight is None else weight
    precision = (a * w[:, None]).T @ a / noise_sd**2 + np.eye(a.shape[1]) / prior_scale**2
    return (a * w[:, None]).T @ y / noise_sd**2, precision


def grid_moments(log_density, centre, sd, *, width: float = 8.0, num_points: int = 61):
    """Mean and covariance of a density on a dense grid of `centre` +- `width` `sd`; rows of theta at once."""
    axes = [np.linspace(c - width * s, c + width * s, num_points) for c, s in zip(centre, sd, strict=True)]
    theta = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], -1)
    log_p = log_density(theta)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = p @ theta
    return mean, (theta - mean).T @ ((theta - mean) * p[:, None])


def _features(rng: np.random.Generator, num_rows: int, num_features: int) -> np.ndarray:
    """Standard normal, with correlation 0.3: well conditioned, and no column is independent of another."""
    root = np.linalg.cholesky(0.7 * np.eye(num_features) + 0.3)
    return rng.standard_normal((num_rows, num_features)) @ root.T


def linear(num_rows: int = 60, num_features: int = 3, noise_sd: float = 0.7, seed: int = 0):
    """(x, y) with known noise."""
    rng = np.random.default_rng(seed)
    x = _features(rng, num_rows, num_features)
    beta = rng.normal(size=num_features)
    return x, 0.5 + x @ beta + noise_sd * rng.standard_normal(num_rows)


@cache
def logistic(num_rows: int = 120, num_features: int = 2, seed: int = 1) -> Regression:
    rng = np.random.default_rng(seed)
    x = _features(rng, num_rows, num_features)
    f = -0.3 + x @ np.linspace(1.2, -0.8, num_features)
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-f))).astype(float)
    return Regression(x, y, by_quadrature(logistic_loss, 48), prior_scale=2.0)


@cache
def probit(num_rows: int = 120, num_features: int = 2, seed: int = 2) -> Regression:
    rng = np.random.default_rng(seed)
    x = _features(rng, num_rows, num_features)
    f = 0.2 + x @ np.linspace(0.8, -0.6, num_features)
    y = (rng.standard_normal(num_rows) < f).astype(float)
    return Regression(x, y, by_quadrature(probit_loss, 48), prior_scale=2.0)


@cache
def softmax(num_rows: int = 120, num_features: int = 2, seed: int = 3) -> Regression:
    """Three classes, two predictors."""
    rng = np.random.default_rng(seed)
    x = _features(rng, num_rows, num_features)
    beta = np.array([[0.3, 1.0, -0.5], [-0.2, -0.7, 0.9]])[:, : num_features + 1]
    scores = np.column_stack([np.zeros(num_rows), np.column_stack([np.ones(num_rows), x]) @ beta.T])
    y = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(float)
    return Regression(x, y, by_quadrature(softmax_loss, 16), prior_scale=2.0, num_outputs=2)


@cache
def poisson(num_rows: int = 120, num_features: int = 2, seed: int = 4) -> Regression:
    rng = np.random.default_rng(seed)
    x = _features(rng, num_rows, num_features)
    y = rng.poisson(np.exp(0.6 + x @ np.linspace(0.4, -0.3, num_features))).astype(float)
    return Regression(x, y, poisson_expectation, prior_scale=2.0)


@cache
def unknown_noise(num_rows: int = 80, num_features: int = 1, noise_sd: float = 0.6, seed: int = 5) -> Regression:
    rng = np.random.default_rng(seed)
    x = _features(rng, num_rows, num_features)
    y = 0.4 + x @ np.linspace(1.0, -1.0, num_features) + noise_sd * rng.standard_normal(num_rows)
    return Regression(x, y, unknown_noise_expectation, prior_scale=2.0, has_noise=True)


def homogeneous(num_rows: int, num_clients: int, seed: int = 0) -> list[np.ndarray]:
    """Rows dealt out at random, in parts of nearly equal size."""
    return np.array_split(np.random.default_rng(seed).permutation(num_rows), num_clients)


def label_sorted(y: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """Rows in the order of their outcome, cut into parts: most clients see one class only."""
    return np.array_split(np.argsort(y, kind="stable"), num_clients)


def clients(x: np.ndarray, y: np.ndarray, parts) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The rows of each part, under a name."""
    return {f"client-{i}": (x[rows], y[rows]) for i, rows in enumerate(parts)}
