"""The contract of a model: a prior and the likelihood of a client's dataset, and the capabilities that models have.

A capability that every instance of a class has is a base class (`RowModel`, `LinearModel`, ...). A property of `Model`
returns the model as that class, or None where it lacks the capability (`row_model`, `linear_model`, ...). A capability
that depends on the parts of a model, such as a conjugate likelihood, is an object that the model returns, or None
(`conjugate`, `gaussian_rows`).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Hashable, Sequence
from typing import Any, Generic

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from cavity.core.base_model import BaseModel
from cavity.core.dataset import Data, weighted_sum
from cavity.core.distribution import D, Distribution
from cavity.core.fields import Number
from cavity.core.likelihood import Likelihood
from cavity.core.natural_scale import NaturalScale
from cavity.core.types import Leaf


class ConjugateLikelihood(eqx.Module, Generic[D]):
    """The likelihood of a dataset as a member of a family of distributions, up to a constant."""

    @abc.abstractmethod
    def likelihood_factor(self, data: Data) -> tuple[D, Float[Array, ""]]:
        """(factor, constant) with log p(data | theta) = log factor(theta) + constant."""


class GaussianRows(ConjugateLikelihood[D]):
    """Rows with Gaussian noise around a linear predictor: the factor is a Gaussian of full covariance.

    Such rows can be reweighted and shifted, which turns weighted score matching into a likelihood.
    """

    @abc.abstractmethod
    def standardised_residuals(self, theta: PyTree, batch: PyTree) -> Float[Array, "n k"]:
        """Z = S^(-1/2) (y - f(theta)) of each row, with S the covariance of the noise."""

    @abc.abstractmethod
    def shifted(self, theta: PyTree, batch: PyTree, share: Float[Array, " n"]) -> PyTree:
        """The batch with outcomes y + share (y - f(theta))."""


class Model(BaseModel):
    """A prior and a likelihood of a client's rows. The posterior has the family of the prior."""

    prior: eqx.AbstractVar[Distribution]

    @abc.abstractmethod
    def log_prob(self, theta: PyTree, data: Data) -> Float[Array, ""]:
        """Log p(data | theta) of all rows of a client together, in nats; differentiable in theta.

        A row of weight 2 counts as the same row twice, a row of weight 0 as absent: clients are padded with copies of
        their first row at weight 0. The order of rows does not matter.
        """

    def rows_near(self, posterior: Any, data: Data) -> Data:
        """A client's data with what many evaluations of `log_prob` near a posterior share; the data by default.

        A client calls it once with the posterior that it received. It may change `log_prob` by less than the error of
        an approximation in it.
        """
        return data

    @property
    def resolution(self) -> float:
        """Nats up to which `log_prob` and its derivatives belong together; 0 for all but approximations."""
        return 0.0

    def reported(self, q: Any) -> Any:
        """The distribution q of theta as one of the parameters in the units of the data; q itself by default."""
        return q

    def reported_moments(self, q: Any) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
        """Mean and covariance of the parameters in the units of the data, for a Gaussian q of theta."""
        reported = self.reported(q)
        return np.asarray(reported.mean), np.asarray(reported.covariance)

    @property
    def natural_scale(self) -> NaturalScale | None:
        """The map from theta, in the units of the data, to what is reported; None where that is theta itself."""
        return None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes on the units of the parameters, for a summary."""
        return ()

    def unit_labels(self, value: PyTree) -> Sequence[Hashable] | None:
        """The names of a client's units: none, as there are no local latents."""
        return None

    @property
    def conjugate(self) -> ConjugateLikelihood | None:
        """The likelihood as a member of the prior's family; None where it is not one."""
        return None

    @property
    def gaussian_rows(self) -> GaussianRows | None:
        """The rows as Gaussian rows, whatever the family of the prior; None where they are not Gaussian."""
        return None

    @property
    def row_model(self) -> RowModel | None:
        """The model where its log likelihood is a sum over rows; None where it is not."""
        return None

    @property
    def predictor_model(self) -> PredictorModel | None:
        """The model where rows depend on theta through predictors; None where they do not."""
        return None

    @property
    def linear_model(self) -> LinearModel | None:
        """The model where its predictors are linear; None where they are not."""
        return None

    @property
    def predictor_draws(self) -> PredictorDraws | None:
        """The model where it can draw its predictors; None where it cannot."""
        return None

    @property
    def corrected_prior(self) -> CorrectedPrior | None:
        """The model where its prior is a Gaussian times a correction; None where it is not."""
        return None

    @property
    def predictive_model(self) -> PredictiveModel | None:
        """The model where it predicts new rows; None where it does not."""
        return None

    @property
    def log_outcome_scale(self) -> Number | None:
        """Log s where the model computes with outcomes / s; None where it has no units of its own."""
        return None


class RowModel(Model):
    """Capability: the log likelihood is a sum over rows, each of which depends on no other row.

    Mini-batches, losses of single rows and factors of single rows need it.
    """

    @abc.abstractmethod
    def row_log_prob(self, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        """Log p(row | theta) for each row, whatever its weight."""

    def log_prob(self, theta: PyTree, data: Data) -> Float[Array, ""]:
        return weighted_sum(data, self.row_log_prob(theta, data.batch))

    @property
    def row_model(self) -> RowModel:
        return self


class PredictorModel(RowModel):
    """Capability: rows depend on theta through predictors, p(row | theta) = likelihood(y | f)."""

    likelihood: eqx.AbstractVar[Likelihood]

    @abc.abstractmethod
    def predictor(self, theta: PyTree, batch: PyTree) -> tuple[Float[Array, "n k"], Leaf]:
        """The predictors f of each row at theta, and the outcomes y."""

    def row_log_prob(self, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        return self.likelihood.log_prob(*self.predictor(theta, batch))

    @property
    def predictor_model(self) -> PredictorModel:
        return self


class LinearModel(PredictorModel):
    """Capability: rows depend on theta through few linear maps, f_k = X_k theta_k, theta = (theta_1, ..., theta_K).

    Expectations over theta are then K-dimensional Gaussian integrals per row, which quadrature computes.
    """

    @abc.abstractmethod
    def designs(self, batch: PyTree) -> tuple[tuple[Float[Array, "n _"], ...], Leaf]:
        """The matrices X_k [n, p_k], whose p_k add up to the dimension of theta, and the outcomes y."""

    @property
    def linear_model(self) -> LinearModel:
        return self


class CorrectedPrior(RowModel):
    """Capability: the prior is a Gaussian, `prior`, times a correction with a known expectation under a Gaussian.

    The correction is a row that the server owns; all other rows are those of a linear model with the same theta.
    """

    rows: eqx.AbstractVar[LinearModel]

    @abc.abstractmethod
    def seen(self, batch: PyTree) -> tuple[PyTree, Bool[Array, ""]]:
        """The batch in the form of `rows`, and whether it is the server's."""

    @abc.abstractmethod
    def expected_correction(self, mean: Float[Array, " d"], covariance: Float[Array, "d d"]) -> Float[Array, ""]:
        """E[log correction(theta)] for theta ~ N(mean, covariance)."""

    @property
    def corrected_prior(self) -> CorrectedPrior:
        return self


class PredictorDraws(PredictorModel):
    """Capability: the model can draw each row's predictors directly, given a Gaussian over theta.

    Draws of different rows may be independent (local reparameterisation); each has the right distribution.
    """

    @abc.abstractmethod
    def draw_predictor(self, key: PRNGKeyArray, q: Distribution, batch: PyTree) -> tuple[Float[Array, "n k"], Leaf]:
        """One draw of f per row, differentiable in q, and the outcomes y."""

    @property
    def predictor_draws(self) -> PredictorDraws:
        return self


class PredictiveModel(Model):
    """Capability: the model predicts new rows from a posterior."""

    @abc.abstractmethod
    def predict(self, posterior: Distribution, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None) -> Any:
        """A `Prediction` of the outcomes at `x`: by Monte Carlo with `num_draws`, in closed form where it is None."""

    @property
    def predictive_model(self) -> PredictiveModel:
        return self


class Encoding(eqx.Module):
    """How a table becomes the numbers that a model computes with, and how coefficients are converted back."""

    @abc.abstractmethod
    def rows(self, table: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """Features [n, p] and outcomes [n] of a client's table. Raises DataError naming all problems of the table."""

    @abc.abstractmethod
    def features(self, table: PyTree) -> np.ndarray:
        """Features [n, p] of new rows, whose outcomes are unknown."""

    def offset(self, table: PyTree) -> Float[np.ndarray, " n"] | None:
        """What is added to the first predictor of new rows, in the units of the outcome; None if it has no offset."""
        return None

    @property
    def has_offset(self) -> bool:
        """Whether the predictor of every row has a known part, its offset."""
        return False

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
    def has_log_link(self) -> bool:
        """Whether dividing the outcome by the scale moves the intercept by its log, and changes nothing else."""
        return False

    @property
    def predictor_units(self) -> tuple[float, float]:
        """(centre, scale): the computed predictor is (predictor - centre) / scale."""
        centre, scale = self.outcome_units
        return (math.log(scale), 1.0) if self.has_log_link else (centre, scale)

    @property
    @abc.abstractmethod
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the coefficients should know about their units."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raise CavityError where the fields, which may come from a file, are not valid."""


class ReportedModel(Model):
    """Capability: parameters can be reported in the units of the data, where the model computes in others."""

    @abc.abstractmethod
    def reported(self, q: Distribution) -> Distribution:
        """The same distribution, of the parameters in the units of the data."""

    @property
    def log_outcome_scale(self) -> Number:
        """Log s where the model computes with outcomes / s: the excess of a row's log density."""
        return 0.0

    @property
    @abc.abstractmethod
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the parameters should know about their units."""
