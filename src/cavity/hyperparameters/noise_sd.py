"""The noise sd of a linear regression, from two sums per client.

    F = -n log sd - sum_n E_q[(y_n - f_n)^2] / (2 sd^2) + ...,     so   sd^2 = sum_n E_q[(y_n - f_n)^2] / n

with q fixed. As a step of EM it converges at the rate d / n, of coefficients to rows.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from cavity.core import Data, Hyperparameter, LinearModel, Model
from cavity.distributions.gaussian import Gaussian
from cavity.errors import CavityError, UnsuitableError
from cavity.likelihoods import GaussianNoise


class NoiseSd(Hyperparameter):
    """The standard deviation of the noise in `linear_regression(..., noise_sd=...)`, whose value is the start."""

    def check(self, model: Model) -> None:
        _parts(model)

    def init(self, model: Model) -> PyTree:
        return None

    def sums(self, state: PyTree, model: Model, q: Gaussian, data: Data) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The sum of expected squared residuals, and the number of rows."""
        designs, y = _parts(model)[0].designs(data.batch)
        mean, covariance = q.map_moments(designs)
        weight = jnp.asarray(data.weight)
        return weight @ ((y - mean[:, 0]) ** 2 + covariance[:, 0, 0]), jnp.sum(weight)

    def step(
        self, state: PyTree, model: Model, q: Gaussian, sums: PyTree
    ) -> tuple[Model, Float[np.ndarray, " e"], PyTree]:
        squares, num_rows = (float(total) for total in sums)
        if not squares > 0:
            raise CavityError("every residual is zero, so the noise has no best value; is the outcome a feature?")
        old = jnp.asarray(_parts(model)[1].noise_sd)
        slope = squares / float(old) ** 2 - num_rows
        new = jnp.asarray(np.sqrt(squares / num_rows), old.dtype)
        return eqx.tree_at(lambda model: _parts(model)[1].noise_sd, model, new), np.array([slope]), state


def _parts(model: Model) -> tuple[LinearModel, GaussianNoise]:
    """The model and its likelihood, where these are a linear model with Gaussian noise."""
    linear = model.linear_model
    if linear is None or not isinstance(linear.likelihood, GaussianNoise):
        raise UnsuitableError(
            f"{type(model).__name__} has no noise to learn; use linear_regression(..., noise_sd=...), whose value "
            "is the start"
        )
    return linear, linear.likelihood
