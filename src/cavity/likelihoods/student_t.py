"""Outcomes with heavy tails around the predictor."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core import ClosedFormMean, Noisy, OutcomeDraws
from cavity.core.fields import require
from cavity.core.likelihood import OnePredictor, Outcomes


class StudentT(OnePredictor, ClosedFormMean, OutcomeDraws, Noisy):
    """y = f + scale * t, with t of `degrees` of freedom, more than one. An outlying row has little influence.

    Attributes:
        scale: of the noise; its standard deviation is scale * sqrt(degrees / (degrees - 2)), for more than two.
        degrees: the degrees of freedom, fixed.
    """

    scale: Float[Array, ""] = eqx.field(converter=lambda scale: jnp.asarray(scale, float))
    degrees: float | int = eqx.field(static=True, default=4.0)

    def __check_init__(self) -> None:
        require(self.scale, lambda scale: scale > 0, "the scale of a Student t must be positive")
        require(self.degrees, lambda degrees: degrees > 1, "a Student t has a mean with more than 1 degree of freedom")

    @property
    def noise_precision(self) -> Float[Array, ""]:
        return self.scale**-2.0

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        scale, degrees = self.scale.astype(f.dtype), self.degrees
        constant = gammaln((degrees + 1) / 2) - gammaln(degrees / 2) - 0.5 * jnp.log(degrees * jnp.pi)
        z = (f[..., 0] - y) / scale
        return constant - jnp.log(scale) - 0.5 * (degrees + 1) * jnp.log1p(z**2 / degrees)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return f[..., 0]

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return mean

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Array:
        return f[..., 0] + self.scale.astype(f.dtype) * jax.random.t(key, self.degrees, f.shape[:-1], f.dtype)

    def check(self, y: np.ndarray) -> str | None:
        return None
