"""The contract of a likelihood p(y | f), and the capabilities that some likelihoods have."""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core.fields import Number
from cavity.core.types import Leaf

Outcomes = Leaf | float  # y: whatever broadcasts against the leading axes of f


class Likelihood(eqx.Module):
    """p(y | f): how an outcome depends on `num_predictors` numbers. Works elementwise over leading axes."""

    is_discrete: ClassVar[bool] = False  # whether p is a probability, at most 1, rather than a density
    has_classes: ClassVar[bool] = False  # whether outcomes are classes, and `mean` their probabilities
    is_flat_far_away: ClassVar[bool] = False  # whether log p falls as log |f| only, not as |f| or its square
    ratio: ClassVar[str | None] = None  # what exp(difference of the first predictor) is, such as "odds ratio"

    @property
    @abc.abstractmethod
    def num_predictors(self) -> int:
        """K, the length of f."""

    @property
    def num_outcomes(self) -> int:
        """How many numbers the outcome of a row has; with more than one, y has a last axis of this length."""
        return 1

    @property
    def num_nodes(self) -> tuple[int, ...] | None:
        """Gauss-Hermite nodes for each predictor, in expectations over all of them; None is the default for K.

        A parameter that all rows share has a narrow posterior, so that few nodes are exact.
        """
        return None

    @abc.abstractmethod
    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        """Log p(y | f), in nats.

        Args:
            f: predictors, the last axis has length `num_predictors`.
            y: outcomes, which broadcast against the leading axes of f.
        """

    @abc.abstractmethod
    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        """E[y | f], the quantity that a prediction averages. For classes, their probabilities."""

    @abc.abstractmethod
    def check(self, y: np.ndarray) -> str | None:
        """Describe what is wrong with these outcomes and the remedy; None where they are valid."""

    @property
    def outcome_draws(self) -> OutcomeDraws | None:
        """The likelihood where outcomes can be drawn from it; None where they cannot."""
        return None

    @property
    def power_integral(self) -> PowerIntegral | None:
        """The likelihood where the integral of its powers is known; None where it is not."""
        return None

    @property
    def closed_expectation(self) -> ExpectedLogProb | None:
        """The likelihood where the expectation of its logarithm has a closed form; None where it has none."""
        return None

    @property
    def expected_power(self) -> ExpectedPower | None:
        """The likelihood where expectations of its powers have a closed form; None where they have none."""
        return None


class OnePredictor(Likelihood):
    """A likelihood of one number: K = 1."""

    @property
    def num_predictors(self) -> int:
        return 1


class ClosedFormMean(Likelihood):
    """Capability: with one uncertain predictor, the expected outcome has a closed form or a good approximation."""

    @abc.abstractmethod
    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        """E[mean(f)] for the first predictor f_1 ~ N(mean, variance)."""


class Noisy(Likelihood):
    """Capability: outcomes vary around the predictor with a known scale."""

    @property
    @abc.abstractmethod
    def noise_precision(self) -> Number:
        """One over the square of the scale."""


class OutcomeDraws(Likelihood):
    """Capability: outcomes can be drawn from the likelihood. The Fisher information needs this."""

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Array:
        """One outcome y ~ p(y | f) for each f, in the form that `log_prob` takes."""

    @property
    def outcome_draws(self) -> OutcomeDraws:
        return self


class PowerIntegral(Likelihood):
    """Capability: the integral over y (for counts and classes the sum) of p(y | f)^power is known."""

    @abc.abstractmethod
    def log_power_integral(self, f: Float[Array, "*batch k"], power: Number) -> Float[Array, " *batch"]:
        """Log of the integral of p(y | f)^power over y, for a power of at least 1."""

    @property
    def power_integral(self) -> PowerIntegral:
        return self


class ExpectedLogProb(Likelihood):
    """Capability: the expected log likelihood under a Gaussian predictor has a closed form."""

    @abc.abstractmethod
    def expected_log_prob(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Outcomes
    ) -> Float[Array, " n"]:
        """E[log p(y | f)] for f ~ N(mean, covariance)."""

    @property
    def closed_expectation(self) -> ExpectedLogProb:
        return self


class ExpectedPower(ExpectedLogProb):
    """Capability: the expectation of a power of the likelihood under a Gaussian predictor has a closed form.

    The power integral of such a likelihood does not depend on f.
    """

    @abc.abstractmethod
    def log_expected_power(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Outcomes, power: Number
    ) -> Float[Array, " n"]:
        """Log E[p(y | f)^power] for f ~ N(mean, covariance), for a positive power."""

    @property
    def expected_power(self) -> ExpectedPower:
        return self
