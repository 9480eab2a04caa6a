"""Predictions of a function and of outcomes around it, averaged over draws of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core import ExpectedPower, Likelihood, OutcomeDraws
from cavity.core.fields import Number
from cavity.core.intervals import DEFAULT_LEVEL, check_level, tails
from cavity.core.types import Leaf
from cavity.distributions.quadrature import normal_nodes
from cavity.errors import CavityError

DRAWS = 100
OUTCOMES = 40  # per draw, for quantiles
SEED = 0
GRID, REACH = 401, 8.0  # points for densities, and the standard deviations of f that they span to either side


class FunctionPrediction(eqx.Module):
    """f(x) given each of S draws is Gaussian; over the draws it is a mixture of these, and y follows the likelihood.

    Attributes:
        means: of f, per draw.
        variances: of f, per draw.
        likelihoods: one per draw, stacked.
        level: the probability that the interval from `lower` to `upper` has.
    """

    means: Float[Array, "s n"]
    variances: Float[Array, "s n"]
    likelihoods: Likelihood
    level: float = eqx.field(static=True, default=DEFAULT_LEVEL)

    def _over_f(self, function: Callable[[Likelihood, Array], Array]) -> Float[Array, "s n"]:
        """E[function(likelihood, f)] per draw, by quadrature."""
        nodes, weights = normal_nodes(1)
        points = jnp.asarray(nodes[:, 0])

        def one(mean: Array, variance: Array, likelihood: Likelihood) -> Array:
            f = mean[:, None] + jnp.sqrt(variance)[:, None] * points
            return function(likelihood, f[..., None]) @ jnp.asarray(weights)

        return jax.vmap(one)(self.means, self.variances, self.likelihoods)

    @property
    def f_mean(self) -> Float[Array, " n"]:
        """E[f(x)]."""
        return jnp.mean(self.means, axis=0)

    @property
    def f_variance(self) -> Float[Array, " n"]:
        """Var[f(x)]: within the draws, and between them."""
        return jnp.mean(self.variances, axis=0) + jnp.var(self.means, axis=0)

    @property
    def mean(self) -> Float[Array, " n"]:
        """E[y] at each row; for classes the probability of 1."""
        return jnp.mean(self._over_f(lambda likelihood, f: likelihood.mean(f)), axis=0)

    def _outcomes(self) -> Float[Array, "draws n"]:
        """Draws of y, with the same noise each time."""
        likelihoods = self.likelihoods.outcome_draws
        if likelihoods is None:
            raise CavityError(f"outcomes cannot be drawn from {type(self.likelihoods).__name__}")

        def one(key: PRNGKeyArray, mean: Array, variance: Array, likelihood: OutcomeDraws) -> Array:
            first, second = jax.random.split(key)
            f = mean + jnp.sqrt(variance) * jax.random.normal(first, (OUTCOMES, *mean.shape), mean.dtype)
            return likelihood.draw(second, f[..., None])

        keys = jax.random.split(jax.random.key(SEED), len(self.means))
        drawn = jax.vmap(one)(keys, self.means, self.variances, likelihoods)
        return drawn.reshape(-1, drawn.shape[-1])

    @property
    def variance(self) -> Float[Array, " n"]:
        """Var[y] at each row, by draws of outcomes."""
        return jnp.var(self._outcomes(), axis=0)

    @property
    def sd(self) -> Float[Array, " n"]:
        """The standard deviation of y."""
        return jnp.sqrt(self.variance)

    def quantile(self, probability: Number | Sequence[float]) -> Float[Array, "*probabilities n"]:
        """Quantiles of y, by draws of outcomes: the values below which y lies with these probabilities."""
        return jnp.quantile(self._outcomes(), jnp.asarray(probability), axis=0)

    def with_level(self, level: float) -> FunctionPrediction:
        """The same prediction with an interval of this level, from `lower` to `upper`."""
        return replace(self, level=check_level(level))

    @property
    def lower(self) -> Float[Array, " n"]:
        """The lower end of a central interval of y; `level` is its probability."""
        return self.quantile(tails(self.level)[0])

    @property
    def upper(self) -> Float[Array, " n"]:
        """The upper end of that interval."""
        return self.quantile(tails(self.level)[1])

    def log_prob(self, y: Float[Leaf, " n"]) -> Float[np.ndarray, " n"]:
        """The log density of outcomes, log of the mean over draws of E[p(y | f)]."""
        outcomes = jnp.asarray(y)
        closed = self.likelihoods.expected_power
        if closed is not None:

            def one(mean: Array, variance: Array, likelihood: ExpectedPower) -> Array:
                return likelihood.log_expected_power(mean[:, None], variance[:, None, None], outcomes, 1.0)

            each = jax.vmap(one)(self.means, self.variances, closed)
        else:
            draws = (self.means, self.variances, self.likelihoods)
            each = jax.lax.map(lambda draw: _log_expected(draw[0], draw[1], draw[2], outcomes), draws)
        return np.asarray(jax.nn.logsumexp(each, axis=0) - jnp.log(len(each)))


def _log_expected(mean: Array, variance: Array, likelihood: Likelihood, y: Array) -> Float[Array, " n"]:
    """Log E[p(y | f)], f ~ N(mean, variance): on a fine grid, because the likelihood may be much narrower than f."""
    points = jnp.linspace(-REACH, REACH, GRID)
    log_weights = jax.nn.log_softmax(-0.5 * points**2)
    f = mean[:, None] + jnp.sqrt(variance)[:, None] * points
    return jax.nn.logsumexp(likelihood.log_prob(f[..., None], y[:, None]) + log_weights, axis=1)
