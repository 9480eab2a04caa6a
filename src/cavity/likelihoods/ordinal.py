"""Ordered levels 0, ..., C-1: cumulative logit and probit.

    P(y <= c | f) = F(g_c - f_1),     g_0 = 0,     g_c = exp(f_2) + ... + exp(f_{c+1})

The first predictor is x . beta - threshold_0, so the intercept of a regression is minus the first threshold, and the
others are the logs of the distances between neighbouring thresholds: these are in order whatever the numbers are.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core import OutcomeDraws, PowerIntegral
from cavity.core.fields import Number
from cavity.core.likelihood import Outcomes
from cavity.likelihoods.categorical import check_classes
from cavity.likelihoods.gamma_functions import HALF_LOG_TWO_PI

NODES = {1: (32,), 2: (16, 8), 3: (12, 6, 6)}  # per predictor; more predictors have the default points


class _Ordinal(PowerIntegral, OutcomeDraws):
    """Ordered levels, whatever the distribution function F."""

    is_discrete: ClassVar[bool] = True
    has_classes: ClassVar[bool] = True
    num_levels: eqx.AbstractVar[int]

    @property
    def num_predictors(self) -> int:
        return self.num_levels - 1

    @property
    def num_nodes(self) -> tuple[int, ...] | None:
        return NODES.get(self.num_predictors)

    @abc.abstractmethod
    def _log_between(
        self, low: Float[Array, "*batch"], high: Float[Array, "*batch"], gap: Float[Array, "*batch"]
    ) -> Float[Array, "*batch"]:
        """Log of F(high) - F(low), with gap = high - low > 0."""

    @abc.abstractmethod
    def _log_below(self, at: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Log of F(at); that of 1 - F(at) is the one of -at."""

    def _log_probabilities(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch levels"]:
        gaps = jnp.exp(f[..., 1:])
        above = jnp.concatenate([jnp.zeros_like(f[..., :1]), jnp.cumsum(gaps, axis=-1)], axis=-1)
        at = above - f[..., :1]  # threshold minus predictor
        inner = self._log_between(at[..., :-1], at[..., 1:], gaps)
        return jnp.concatenate([self._log_below(at[..., :1]), inner, self._log_below(-at[..., -1:])], axis=-1)

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        levels = jnp.arange(self.num_levels)
        # a sum, because a gather has a slow gradient
        is_level = jnp.asarray(y, int)[..., None] == levels
        return jnp.sum(jnp.where(is_level, self._log_probabilities(f), 0.0), axis=-1)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        """The probability of each level."""
        return jnp.exp(self._log_probabilities(f))

    def log_power_integral(self, f: Float[Array, "*batch k"], power: Number) -> Float[Array, " *batch"]:
        return jax.nn.logsumexp(power * self._log_probabilities(f), axis=-1)

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Array:
        return jax.random.categorical(key, self._log_probabilities(f))

    def check(self, y: np.ndarray) -> str | None:
        return check_classes(y, self.num_levels)


class OrdinalLogit(_Ordinal):
    """P(y <= c | f) = 1 / (1 + exp(f_1 - g_c))."""

    ratio: ClassVar[str | None] = "odds ratio of a higher level"

    num_levels: int = eqx.field(static=True)

    def _log_below(self, at: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return -jax.nn.softplus(-at)

    def _log_between(
        self, low: Float[Array, "*batch"], high: Float[Array, "*batch"], gap: Float[Array, "*batch"]
    ) -> Float[Array, "*batch"]:
        # F(b) - F(a) = F(b) F(-a) (1 - e^(a - b))
        return self._log_below(high) + self._log_below(-low) + jnp.log(-jnp.expm1(-gap))


class OrdinalProbit(_Ordinal):
    """P(y <= c | f) = Phi(g_c - f_1)."""

    num_levels: int = eqx.field(static=True)

    def _log_below(self, at: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return log_ndtr(at)

    def _log_between(
        self, low: Float[Array, "*batch"], high: Float[Array, "*batch"], gap: Float[Array, "*batch"]
    ) -> Float[Array, "*batch"]:
        # a narrow gap g around m has the probability g phi(m) (1 + (m^2 - 1) g^2 / 24 + ...)
        middle = 0.5 * (low + high)
        is_narrow = gap * jnp.maximum(jnp.abs(middle), 1.0) < jnp.finfo(gap.dtype).eps ** 0.25
        correction = jnp.log1p(jnp.where(is_narrow, (middle**2 - 1.0) * gap**2 / 24.0, 0.0))
        narrow = jnp.log(gap) - 0.5 * middle**2 - HALF_LOG_TWO_PI + correction
        # in the lower tail, where both are small: Phi(b) - Phi(a) = Phi(-a) - Phi(-b)
        flip = middle > 0
        upper, lower = jnp.where(flip, -low, high), jnp.where(flip, -high, low)
        upper, lower = jnp.where(is_narrow, 0.0, upper), jnp.where(is_narrow, -1.0, lower)
        log_upper = log_ndtr(upper)
        wide = log_upper + jnp.log(-jnp.expm1(log_ndtr(lower) - log_upper))
        return jnp.asarray(jnp.where(is_narrow, narrow, wide))
