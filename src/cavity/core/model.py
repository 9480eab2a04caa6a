"""What is known of the rows: data, likelihoods, models, and the promises that some of them make."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree


class Data(eqx.Module):
    """One client's rows, as a solver sees them.

    Attributes:
        batch: any pytree of arrays with a common first axis; for a regression `(x, y)`.
        weight: one number per row; 0 for padding, and the user's own weights.
        num_rows: the true number of rows, without padding; all randomness depends on it alone.
        units: who has local latents, for models with some: as `batch` the numbers of their labels (or None), as weight
            1, or 0 for padding.
    """

    batch: PyTree
    weight: Float[Array | np.ndarray, " n"]
    num_rows: Int[Array | np.ndarray, ""]
    units: Data | None = None


def pad(data: Data, length: int, num_units: int = 0) -> Data:
    """The same rows, followed by copies of the first at weight 0 (copies, so that no loss overflows there).

    Where there are units, so are they.
    """
    extra = length - len(data.weight)
    batch = jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], extra, axis=0)]), data.batch)
    weight = np.concatenate([data.weight, np.zeros(extra, data.weight.dtype)])
    units = None if data.units is None else pad(data.units, num_units)
    return Data(batch, weight, data.num_rows, units)


def weighted_sum(data: Data, values: Float[Array, " n"]) -> Float[Array, ""]:
    """Over the rows, in the values' own precision: weights in double precision do not promote a network."""
    return jnp.asarray(data.weight).astype(values.dtype) @ values


class Likelihood(eqx.Module):
    """p(y | f): how an outcome depends on `num_predictors` numbers. Works elementwise over leading axes."""

    is_discrete: ClassVar[bool] = False  # whether p is a probability, at most 1, and not a density
    has_classes: ClassVar[bool] = False  # whether outcomes are classes, and `mean` their probabilities

    @property
    @abc.abstractmethod
    def num_predictors(self) -> int:
        """K, the length of f."""

    @abc.abstractmethod
    def log_prob(self, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        """Log p(y | f)."""

    @abc.abstractmethod
    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        """E[y | f]: what a prediction averages. For classes, their probabilities."""

    @abc.abstractmethod
    def check(self, y: np.ndarray) -> str | None:
        """What is wrong with these outcomes (and the remedy), or None."""


class ClosedFormMean(Likelihood):
    """A promise: with one uncertain predictor, the expected outcome has a closed form (or a good approximation)."""

    @abc.abstractmethod
    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        """E[mean(f)] for the first predictor f_1 ~ N(mean, variance)."""


class Noisy(Likelihood):
    """A promise: outcomes scatter around the predictor with a scale of their own."""

    @property
    @abc.abstractmethod
    def noise_precision(self) -> Any:
        """One over the square of that scale."""


class OutcomeDraws(Likelihood):
    """A promise: outcomes can be drawn from the likelihood, as the Fisher information asks."""

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Any:
        """One outcome y ~ p(y | f) for each f, in the form that `log_prob` takes."""


class PowerIntegral(Likelihood):
    """A promise: the integral (for counts and classes the sum) over y of p(y | f)^power is known."""

    @abc.abstractmethod
    def log_power_integral(self, f: Float[Array, "*batch k"], power: Any) -> Float[Array, " *batch"]:
        """Log of the integral of p(y | f)^power over y, for a power of at least 1."""


class ExpectedPower(Likelihood):
    """A promise: the expectation of a power of the likelihood under a Gaussian predictor has a closed form.

    Its power integral does not depend on f.
    """

    @abc.abstractmethod
    def log_expected_power(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Any, power: Any
    ) -> Float[Array, " n"]:
        """Log E[p(y | f)^power] for f ~ N(mean, covariance), for a positive power."""

    @abc.abstractmethod
    def expected_log_prob(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Any
    ) -> Float[Array, " n"]:
        """E[log p(y | f)] for f ~ N(mean, covariance)."""


class Model(eqx.Module):
    """A prior and a likelihood of a client's rows. The family of the posterior is that of the prior."""

    prior: eqx.AbstractVar[Any]

    @property
    @abc.abstractmethod
    def parameter_names(self) -> tuple[str, ...]:
        """One name per entry of theta (flattened)."""

    @abc.abstractmethod
    def log_prob(self, theta: PyTree, data: Data) -> Float[Array, ""]:
        """Log p(data | theta) of all rows of a client together, in nats; differentiable in theta.

        A row of weight 2 counts as the same row twice, one of weight 0 as if it were absent: clients are padded with
        copies of their first row at weight 0. The order of rows does not matter.
        """

    @abc.abstractmethod
    def prepare(self, batch: PyTree) -> PyTree:
        """One client's raw data as numeric arrays in this model's form. Raises DataError saying what is wrong."""

    @property
    def has_kinds(self) -> bool:
        """Whether clients may differ in their columns."""
        return False

    def server_entries(self) -> dict[str, Data]:
        """What of the prior is outside the family, as rows whose owner is the server: name -> data; mostly none."""
        return {}

    def reported(self, q: Any) -> Any:
        """The distribution q of theta as one of the parameters in the units of the data; q itself by default."""
        return q

    def reported_moments(self, q: Any) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
        """Mean and covariance of the parameters in the units of the data, for a Gaussian q of theta."""
        reported = self.reported(q)
        return np.asarray(reported.mean), np.asarray(reported.covariance)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes on the units of the parameters, for a summary."""
        return ()


class RowModel(Model):
    """A promise: the log likelihood is a sum over rows, each of which depends on no other row.

    Mini-batches, losses of single rows and factors of single rows need it.
    """

    @abc.abstractmethod
    def row_log_prob(self, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        """Log p(row | theta) for each row, whatever its weight."""

    def log_prob(self, theta: PyTree, data: Data) -> Float[Array, ""]:
        return weighted_sum(data, self.row_log_prob(theta, data.batch))


class PredictorModel(RowModel):
    """A promise: rows see theta through predictors, p(row | theta) = likelihood(y | f)."""

    likelihood: eqx.AbstractVar[Likelihood]

    @abc.abstractmethod
    def predictor(self, theta: PyTree, batch: PyTree) -> tuple[Float[Array, "n k"], Any]:
        """F of each row at theta, and the outcomes y."""

    def row_log_prob(self, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        return self.likelihood.log_prob(*self.predictor(theta, batch))


class LinearModel(PredictorModel):
    """A promise: rows see theta through few linear maps, f_k = X_k theta_k, with theta = (theta_1, ..., theta_K).

    Expectations over theta are then K-dimensional Gaussian integrals per row, and quadrature does them.
    """

    @abc.abstractmethod
    def designs(self, batch: PyTree) -> tuple[tuple[Float[Array, "n _"], ...], Any]:
        """The matrices X_k [n, p_k], whose p_k add up to the dimension of theta, and the outcomes y."""


class CorrectedPrior(RowModel):
    """A promise: the prior is a Gaussian, `prior`, times a correction whose expectation under a Gaussian is known.

    The correction is the server's row; all other rows are those of a linear model with the same theta.
    """

    rows: eqx.AbstractVar[Any]  # a LinearModel

    @abc.abstractmethod
    def seen(self, batch: PyTree) -> tuple[PyTree, Bool[Array, ""]]:
        """The batch in the form of `rows`, and whether it is the server's."""

    @abc.abstractmethod
    def expected_correction(self, mean: Float[Array, " d"], covariance: Float[Array, "d d"]) -> Float[Array, ""]:
        """E[log correction(theta)] for theta ~ N(mean, covariance)."""


class PredictorDraws(PredictorModel):
    """A promise: the model can draw each row's predictors directly, given a Gaussian over theta.

    Draws of different rows may be independent (local reparameterisation); each has the right distribution.
    """

    @abc.abstractmethod
    def draw_predictor(self, key: PRNGKeyArray, q: Any, batch: PyTree) -> tuple[Float[Array, "n k"], Any]:
        """One draw of f per row, differentiable in q, and the outcomes y."""


class ConjugateModel(Model):
    """A promise: the likelihood of a data set is, up to a constant, a member of the prior's family."""

    @property
    @abc.abstractmethod
    def is_conjugate(self) -> bool:
        """Whether the promise holds with this prior and this likelihood."""

    @abc.abstractmethod
    def likelihood_factor(self, data: Data) -> tuple[Any, Float[Array, ""]]:
        """(factor, constant) with log p(data | theta) = log factor(theta) + constant."""


class GaussianRows(ConjugateModel):
    """A promise: that factor is a Gaussian of full covariance, whatever the family of the prior is."""

    @property
    @abc.abstractmethod
    def has_gaussian_rows(self) -> bool:
        """Whether the promise holds with this likelihood."""


class PredictiveModel(Model):
    """A model that can predict new rows from a posterior."""

    @abc.abstractmethod
    def predict(self, posterior: Any, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None) -> Any:
        """A `Prediction` of the outcomes at `x`; by Monte Carlo with `num_draws`, in closed form where None."""


class Encoding(eqx.Module):
    """How the rows that people have become the numbers that a model computes with, and coefficients come back."""

    @abc.abstractmethod
    def rows(self, table: Any) -> tuple[np.ndarray, np.ndarray]:
        """Features [n, p] and outcomes [n] of a client's table. Raises DataError saying all that is wrong with it."""

    @abc.abstractmethod
    def features(self, table: Any) -> np.ndarray:
        """Features [n, p] of new rows, whose outcomes are not known."""

    @abc.abstractmethod
    def to_computed(self) -> Float[np.ndarray, "w w"] | None:
        """B with computed = B @ reported, for the coefficients of one predictor, its intercept first.

        None where they are the same.
        """

    @property
    def outcome_units(self) -> tuple[float, float]:
        """(centre, scale): the model computes with (outcome - centre) / scale."""
        return 0.0, 1.0

    @property
    @abc.abstractmethod
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the coefficients should know about their units."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raise CavityError where its fields, which may come from a file, are not what they should be."""


class ReportedModel(Model):
    """A promise: parameters can be told in the units of the data, where the model computes in others."""

    @abc.abstractmethod
    def reported(self, q: Any) -> Any:
        """The same distribution, of the parameters in the units of the data."""

    @property
    def log_outcome_scale(self) -> Any:
        """Log s where the model computes with outcomes / s: what a row's log density is too large by."""
        return 0.0

    @property
    @abc.abstractmethod
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the parameters should know about their units."""


class PseudoRows(RowModel):
    """A promise: Gaussian rows can be reweighted and shifted, which turns weighted score matching into a likelihood."""

    @property
    @abc.abstractmethod
    def has_pseudo_rows(self) -> bool:
        """Whether the promise holds with this likelihood."""

    @abc.abstractmethod
    def standardised_residuals(self, theta: PyTree, batch: PyTree) -> Float[Array, "n k"]:
        """Z = S^(-1/2) (y - f(theta)) of each row, S the covariance of the noise."""

    @abc.abstractmethod
    def shifted(self, theta: PyTree, batch: PyTree, share: Float[Array, " n"]) -> PyTree:
        """The batch with outcomes y + share (y - f(theta))."""
