"""Predictions with their uncertainty."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core import ClosedFormMean, Likelihood
from cavity.core.intervals import DEFAULT_LEVEL, half_width, tails
from cavity.distributions.gaussian import Gaussian

DEFAULT_DRAWS = 1000


class Prediction(eqx.Module):
    """The expected outcome at new rows, with its uncertainty.

    All four describe the expected outcome E[y | x, theta] under the posterior of theta: a probability for
    classes, a rate for counts. The variation of single outcomes around it is not included.

    Attributes:
        mean: its posterior mean, which is also the predictive mean of y.
        sd: its posterior standard deviation.
        lower: the lower end of a central interval of its posterior, of level `DEFAULT_LEVEL` (95 %).
        upper: the upper end.
    """

    mean: Float[Array | np.ndarray, "n ..."]
    sd: Float[Array | np.ndarray, "n ..."]
    lower: Float[Array | np.ndarray, "n ..."]
    upper: Float[Array | np.ndarray, "n ..."]

    def in_units(self, centre: float, scale: float) -> Prediction:
        """The prediction of centre + scale times the outcome, in double precision unless it is unchanged."""
        if (centre, scale) == (0.0, 1.0):
            return self
        mean, sd, lower, upper = (np.asarray(part, float) for part in (self.mean, self.sd, self.lower, self.upper))
        return Prediction(centre + scale * mean, scale * sd, centre + scale * lower, centre + scale * upper)


def predict_from_designs(
    key: PRNGKeyArray,
    likelihood: Likelihood,
    posterior: Gaussian,
    designs: Sequence[Float[Array, "n _"]],
    num_draws: int | np.integer | None,
) -> Prediction:
    """The expected outcome under f_k = X_k theta_k: in closed form where there is one, else by draws."""
    # the count sets a shape, so it must be a Python integer
    return _predict(key, likelihood, posterior, designs, None if num_draws is None else int(num_draws))


@eqx.filter_jit
def _predict(key, likelihood: Likelihood, posterior: Gaussian, designs, num_draws: int | None) -> Prediction:
    mean, covariance = posterior.map_moments(designs)
    if num_draws is None and isinstance(likelihood, ClosedFormMean):
        return _by_closed_form(likelihood, mean, covariance[..., 0, 0])
    noise = jax.random.normal(key, (num_draws or DEFAULT_DRAWS, *mean.shape), mean.dtype)
    outcomes = likelihood.mean(mean + jnp.einsum("nkl,snl->snk", jnp.linalg.cholesky(covariance), noise))
    return prediction_from_draws(outcomes)


@jax.jit
def prediction_from_draws(outcomes: Float[Array, "s n ..."]) -> Prediction:
    """The moments and quantiles of draws of the expected outcome."""
    lower, upper = jnp.quantile(outcomes, jnp.array(tails(DEFAULT_LEVEL)), axis=0)
    return Prediction(jnp.mean(outcomes, 0), jnp.std(outcomes, 0), lower, upper)


def _by_closed_form(likelihood: ClosedFormMean, mean: Float[Array, "n k"], variance: Float[Array, " n"]) -> Prediction:
    """The mean depends on the first predictor only, and monotonically; the others stay at their means."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    points = np.concatenate([nodes, [-half_width(DEFAULT_LEVEL), half_width(DEFAULT_LEVEL)]])
    moved = jnp.repeat(mean[:, None], len(points), axis=1).at[..., 0].add(jnp.sqrt(variance)[:, None] * points)
    outcomes = likelihood.mean(moved)
    # relative to a close value, so that large outcomes do not cancel
    away = outcomes[:, :-2] - likelihood.mean(mean)[:, None]
    average, square = (power @ (weights / weights.sum()) for power in (away, away**2))
    ends = outcomes[:, -2:]
    return Prediction(
        mean=likelihood.expected_mean(mean[:, 0], variance),
        sd=jnp.sqrt(jnp.maximum(square - average**2, 0.0)),
        lower=jnp.min(ends, axis=1),
        upper=jnp.max(ends, axis=1),
    )
