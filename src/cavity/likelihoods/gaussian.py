"""Gaussian outcomes, with the noise known or unknown."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cavity.interfaces import ClosedFormMean

LOG_TWO_PI = float(np.log(2 * np.pi))


class GaussianNoise(ClosedFormMean):
    """y ~ N(f, noise_sd^2), the noise known."""

    noise_sd: Float[Array, ""] = eqx.field(converter=lambda sd: jnp.asarray(sd, float))

    @property
    def num_predictors(self) -> int:
        return 1

    def log_prob(self, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        noise_sd = self.noise_sd.astype(f.dtype)  # a network stays in single precision
        z = (y - f[..., 0]) / noise_sd
        return -0.5 * (z**2 + LOG_TWO_PI) - jnp.log(noise_sd)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return f[..., 0]

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return mean

    def check(self, y: np.ndarray) -> str | None:
        return None


class GaussianUnknownNoise(ClosedFormMean):
    """y ~ N(f_1, exp(f_2)^2): the second predictor is the log of the noise's standard deviation."""

    @property
    def num_predictors(self) -> int:
        return 2

    def log_prob(self, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        z = (y - f[..., 0]) * jnp.exp(-f[..., 1])
        return -0.5 * (z**2 + LOG_TWO_PI) - f[..., 1]

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return f[..., 0]

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return mean

    def check(self, y: np.ndarray) -> str | None:
        return None
