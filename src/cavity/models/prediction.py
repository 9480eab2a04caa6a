"""Predictions with their uncertainty."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core import ClosedFormMean, Likelihood
from cavity.core.intervals import DEFAULT_LEVEL, check_level, half_width, percent, tails
from cavity.distributions.gaussian import Gaussian
from cavity.errors import CavityError

DEFAULT_DRAWS = 1000
Values = Float[Array | np.ndarray, "n ..."]


class Intervals(eqx.Module):
    """Central intervals of the expected outcome, of any level."""

    @abc.abstractmethod
    def ends(self, level: float) -> tuple[Values, Values]:
        """The lower and the upper ends of the intervals of a level."""


class Prediction(eqx.Module):
    """The expected outcome at new rows, with its uncertainty.

    Mean, sd and interval describe the expected outcome E[y | x, theta] under the posterior of theta: a probability for
    classes, a rate for counts. The variation of single outcomes around it is not included.

    Attributes:
        mean: its posterior mean, which is also the predictive mean of y.
        sd: its posterior standard deviation.
        lower: the lower end of a central interval of its posterior.
        upper: the upper end.
        level: the probability that each interval has.
        intervals: of any level; None in the result of `Fit.predict`, because the draws need memory.
    """

    mean: Values
    sd: Values
    lower: Values
    upper: Values
    level: float = eqx.field(static=True, default=DEFAULT_LEVEL)
    intervals: Intervals | None = None

    def with_level(self, level: float) -> Prediction:
        """The same prediction with intervals of this level only.

        Args:
            level: the probability that each interval has.

        Returns:
            The prediction, without `intervals`.

        Raises:
            CavityError: the level is not between 0 and 1, or the model computed intervals of one level only.
        """
        level = check_level(level)
        if level == self.level:
            return Prediction(self.mean, self.sd, self.lower, self.upper, level)
        if self.intervals is None:
            raise CavityError(
                f"this prediction has intervals of {percent(self.level)} only; give the level to `predict`, "
                "whose model must return a Prediction with `intervals`"
            )
        lower, upper = self.intervals.ends(level)
        return Prediction(self.mean, self.sd, lower, upper, level)

    def in_units(self, centre: float, scale: float) -> Prediction:
        """The prediction of centre + scale times the outcome, in double precision unless it is unchanged."""
        if (centre, scale) == (0.0, 1.0):
            return self
        mean, sd, lower, upper = (np.asarray(part, float) for part in (self.mean, self.sd, self.lower, self.upper))
        ends = centre + scale * lower, centre + scale * upper
        intervals = None if self.intervals is None else _InUnits(self.intervals, centre, scale)
        return Prediction(centre + scale * mean, scale * sd, *ends, self.level, intervals)


class _InUnits(Intervals):
    """Intervals of centre + scale times the outcome."""

    intervals: Intervals
    centre: float
    scale: float

    def ends(self, level: float) -> tuple[Values, Values]:
        lower, upper = (np.asarray(end, float) for end in self.intervals.ends(level))
        return self.centre + self.scale * lower, self.centre + self.scale * upper


def predict_from_designs(
    key: PRNGKeyArray,
    likelihood: Likelihood,
    posterior: Gaussian,
    designs: Sequence[Float[Array, "n _"]],
    num_draws: int | np.integer | None,
    offset: Float[Array | np.ndarray, " n"] | None = None,
) -> Prediction:
    """The expected outcome under f_k = X_k theta_k: in closed form where there is one, else by draws.

    Args:
        key: of the draws.
        likelihood: has the expected outcome given the predictors.
        posterior: of theta.
        designs: X_k.
        num_draws: of theta; None for the closed form.
        offset: added to f_1 of each row.
    """
    # the count sets a shape, so it must be a Python integer
    num_draws = None if num_draws is None else int(num_draws)
    return _predict(key, likelihood, posterior, designs, num_draws, None if offset is None else jnp.asarray(offset))


@eqx.filter_jit
def _predict(key, likelihood: Likelihood, posterior: Gaussian, designs, num_draws: int | None, offset) -> Prediction:
    mean, covariance = posterior.map_moments(designs)
    if offset is not None:
        mean = mean.at[:, 0].add(offset.astype(mean.dtype))
    if num_draws is None and isinstance(likelihood, ClosedFormMean):
        return _by_closed_form(likelihood, mean, covariance[..., 0, 0])
    noise = jax.random.normal(key, (num_draws or DEFAULT_DRAWS, *mean.shape), mean.dtype)
    outcomes = likelihood.mean(mean + jnp.einsum("nkl,snl->snk", jnp.linalg.cholesky(covariance), noise))
    return prediction_from_draws(outcomes)


@jax.jit
def prediction_from_draws(outcomes: Float[Array, "s n ..."]) -> Prediction:
    """The moments and quantiles of draws of the expected outcome."""
    lower, upper = _quantiles(outcomes, jnp.array(tails(DEFAULT_LEVEL)))
    return Prediction(jnp.mean(outcomes, 0), jnp.std(outcomes, 0), lower, upper, DEFAULT_LEVEL, _ByQuantiles(outcomes))


class _ByQuantiles(Intervals):
    """Quantiles of draws of the expected outcome."""

    outcomes: Float[Array, "s n ..."]

    def ends(self, level: float) -> tuple[Values, Values]:
        lower, upper = _quantiles(self.outcomes, jnp.array(tails(level)))
        return lower, upper


@jax.jit
def _quantiles(outcomes: Float[Array, "s n ..."], probabilities: Float[Array, " p"]) -> Float[Array, "p n ..."]:
    return jnp.quantile(outcomes, probabilities, axis=0)


def _by_closed_form(likelihood: ClosedFormMean, mean: Float[Array, "n k"], variance: Float[Array, " n"]) -> Prediction:
    """The mean depends on the first predictor only, and monotonically; the others stay at their means."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    half = half_width(DEFAULT_LEVEL)
    outcomes = _outcomes_at(likelihood, mean, variance, np.concatenate([nodes, [-half, half]]))
    # relative to a close value, so that large outcomes do not cancel
    away = outcomes[:, :-2] - likelihood.mean(mean)[:, None]
    average, square = (power @ (weights / weights.sum()) for power in (away, away**2))
    ends = outcomes[:, -2:]
    return Prediction(
        mean=likelihood.expected_mean(mean[:, 0], variance),
        sd=jnp.sqrt(jnp.maximum(square - average**2, 0.0)),
        lower=jnp.min(ends, axis=1),
        upper=jnp.max(ends, axis=1),
        level=DEFAULT_LEVEL,
        intervals=_OfMonotoneMean(likelihood, mean, variance),
    )


class _OfMonotoneMean(Intervals):
    """The expected outcome at the quantiles of the first predictor, of which it is a monotone function.

    Attributes:
        likelihood: has the expected outcome given the predictors.
        mean: of the predictors.
        variance: of the first predictor.
    """

    likelihood: ClosedFormMean
    mean: Float[Array, "n k"]
    variance: Float[Array, " n"]

    def ends(self, level: float) -> tuple[Values, Values]:
        half = half_width(level)
        ends = _outcomes_at(self.likelihood, self.mean, self.variance, np.array([-half, half]))
        return jnp.min(ends, axis=1), jnp.max(ends, axis=1)


@eqx.filter_jit
def _outcomes_at(
    likelihood: ClosedFormMean, mean: Float[Array, "n k"], variance: Float[Array, " n"], points: np.ndarray | Array
) -> Float[Array, "n p"]:
    """The expected outcome with the first predictor so many standard deviations away from its mean."""
    moved = jnp.repeat(mean[:, None], len(points), axis=1).at[..., 0].add(jnp.sqrt(variance)[:, None] * points)
    return likelihood.mean(moved)
