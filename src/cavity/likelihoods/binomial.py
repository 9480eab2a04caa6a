"""Successes out of a number of trials."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from cavity.core import ClosedFormMean
from cavity.core.likelihood import OnePredictor, Outcomes
from cavity.likelihoods.bernoulli import BernoulliCloglog, BernoulliLogit, BernoulliProbit


class BinomialTrials(OnePredictor, ClosedFormMean):
    """y_1 successes in y_2 independent trials, each of which succeeds with the probability of the same outcome.

    The mean is the probability of a success, so a prediction needs no number of trials.

    Attributes:
        trial: the likelihood of one trial.
    """

    is_discrete: ClassVar[bool] = True
    trial: BernoulliLogit | BernoulliProbit | BernoulliCloglog

    @property
    def ratio(self) -> str | None:
        return self.trial.ratio

    @property
    def num_outcomes(self) -> int:
        return 2

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        y = jnp.asarray(y, f.dtype)
        successes, failures = y[..., 0], y[..., 1] - y[..., 0]
        ways = gammaln(y[..., 1] + 1.0) - gammaln(successes + 1.0) - gammaln(failures + 1.0)
        return ways + successes * self.trial.log_prob(f, 1.0) + failures * self.trial.log_prob(f, 0.0)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return self.trial.mean(f)

    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        return self.trial.expected_mean(mean, variance)

    def check(self, y: np.ndarray) -> str | None:
        if (y < 0).any() or (y != np.round(y)).any():
            return "successes and trials must be counts (0, 1, 2, ...); there are negative or fractional values"
        if (more := y[:, 0] > y[:, 1]).any():
            return (
                f"{int(more.sum())} of {len(y)} rows have more successes than trials; check which column has the trials"
            )
        return None
