"""Outcomes with heavy tails around the predictor."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core import ClosedFormMean, Noisy, OutcomeDraws
from cavity.core.fields import require
from cavity.core.likelihood import OnePredictor, Outcomes
from cavity.core.types import Leaf
from cavity.likelihoods.gamma_functions import log_ratio


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


class StudentTUnknownScale(ClosedFormMean, OutcomeDraws):
    """y = f_1 + s * t, with t of `degrees` of freedom and an unknown scale, s^2 = exp(2 f_2) + least_scale^2.

    Attributes:
        degrees: the degrees of freedom; None makes their log the third predictor.
        least_scale: a lower bound of the scale, so that a client whose rows fit exactly still has a proper posterior of
            its own; None is no bound.
    """

    is_flat_far_away: ClassVar[bool] = True
    degrees: float | None = eqx.field(static=True, default=4.0)
    least_scale: Float[Leaf, ""] | float | None = None

    def __check_init__(self) -> None:
        if self.degrees is not None:
            require(self.degrees, lambda degrees: degrees > 1, "a Student t has a mean with more than 1 degree")

    @property
    def num_predictors(self) -> int:
        return 2 if self.degrees is not None else 3

    @property
    def num_nodes(self) -> tuple[int, ...]:
        return (16, 8) if self.degrees is not None else (12, 6, 6)

    def _log_scale(self, f: Float[Array, "*batch k"]) -> Float[Array, " *batch"]:
        if self.least_scale is None:
            return f[..., 1]
        return 0.5 * jnp.logaddexp(2.0 * f[..., 1], 2.0 * jnp.log(jnp.asarray(self.least_scale, f.dtype)))

    def _degrees(self, f: Float[Array, "*batch k"]) -> Float[Array, ...]:
        return jnp.exp(f[..., 2]) if self.degrees is None else jnp.asarray(self.degrees, f.dtype)

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        degrees, log_scale = self._degrees(f), self._log_scale(f)
        constant = log_ratio(0.5 * degrees, 0.5) - 0.5 * jnp.log(degrees * jnp.pi)
        z = (f[..., 0] - y) * jnp.exp(-log_scale)
        return constant - log_scale - 0.5 * (degrees + 1.0) * jnp.log1p(z**2 / degrees)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return f[..., 0]

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return mean

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Array:
        noise = jax.random.t(key, self._degrees(f), f.shape[:-1], f.dtype)
        return f[..., 0] + jnp.exp(self._log_scale(f)) * noise

    def check(self, y: np.ndarray) -> str | None:
        return None
