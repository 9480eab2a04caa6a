"""Sparse Gaussian processes with answers that are known."""

import jax.numpy as jnp
import numpy as np

from cavity.likelihoods import GaussianNoise
from cavity.models.gp.kernels import squared_exponential
from cavity.models.gp.sparse_gp import sparse_gp

NOISE, LENGTH, SCALE = 0.2, 0.7, 1.1
NOTHING = jnp.zeros(0)  # phi, where nothing of it is learned


def rows(num_rows=40, seed=0):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-3, 3, num_rows))[:, None]
    return x, np.sin(2 * x[:, 0]) + NOISE * rng.normal(size=num_rows)


def kernel_matrix(a, b):
    return SCALE**2 * np.exp(-0.5 * ((a[:, None, 0] - b[None, :, 0]) / LENGTH) ** 2)


def fixed(inducing, form=None, *, jitter=1e-10, likelihood=None):
    """Nothing is learned but the function."""
    return sparse_gp(
        1,
        kernel=squared_exponential(1, LENGTH, SCALE),
        likelihood=GaussianNoise(NOISE) if likelihood is None else likelihood,
        inducing=inducing,
        form=form,
        learns_inducing=False,
        learns_hyperparameters=False,
        jitter=jitter,
    )


def pooled(inducing, x, y, ridge):
    """Mean and covariance of Titsias' q(u), by plain matrices."""
    k_zz = kernel_matrix(inducing, inducing) + ridge * SCALE**2 * np.eye(len(inducing))
    k_zx = kernel_matrix(inducing, x)
    middle = np.linalg.inv(k_zz + k_zx @ k_zx.T / NOISE**2)
    return k_zz @ middle @ k_zx @ y / NOISE**2, k_zz @ middle @ k_zz


def titsias(inducing, x, y, ridge):
    """The collapsed bound, by plain matrices."""
    k_zz = kernel_matrix(inducing, inducing) + ridge * SCALE**2 * np.eye(len(inducing))
    k_xz = kernel_matrix(x, inducing)
    q = k_xz @ np.linalg.solve(k_zz, k_xz.T)
    covariance = q + NOISE**2 * np.eye(len(y))
    log_density = -0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(2 * np.pi * covariance)[1])
    return log_density - np.sum(np.diag(kernel_matrix(x, x)) - np.diag(q)) / (2 * NOISE**2)


def kl(mean, covariance, other_mean, other_covariance):
    inverse = np.linalg.inv(other_covariance)
    shift = other_mean - mean
    logs = np.linalg.slogdet(other_covariance)[1] - np.linalg.slogdet(covariance)[1]
    return 0.5 * (np.trace(inverse @ covariance) - len(mean) + shift @ inverse @ shift + logs)


def moments_of_u(model, conditional):
    """Mean and covariance of q(u) given the inducing inputs that the model has."""
    inducing, _ = model.at(NOTHING)
    values, root = inducing.values(conditional), np.asarray(inducing.root)
    return root @ np.asarray(values.mean), root @ np.linalg.inv(np.asarray(values.precision)) @ root.T
