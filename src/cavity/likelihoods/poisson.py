"""Counts, with the log of their rate as predictor."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from cavity.interfaces import ClosedFormMean


class PoissonLog(ClosedFormMean):
    """y ~ Poisson(exp(f))."""

    @property
    def num_predictors(self) -> int:
        return 1

    def log_prob(self, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        return y * f[..., 0] - jnp.exp(f[..., 0]) - gammaln(y + 1.0)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return jnp.exp(f[..., 0])

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.exp(mean + variance / 2)

    def check(self, y: np.ndarray) -> str | None:
        if (y < 0).any() or (y != np.round(y)).any():
            return "the outcome must be counts (0, 1, 2, ...); it has negative or fractional values"
        return None
