"""Cox regression stratified by client: log hazard ratios, with a baseline hazard of each client's own.

    log PL = sum over events i of  eta_i - log sum over those at risk at t_i of exp(eta_j),     eta = x . theta

(Cox, 1975), summed over clients; no row is compared with those of another client, so no times leave a client. Ties are
those of Efron or Breslow (`ties`), and rows may enter late (`risk_sets`). It is computed in O(n log n).

With independent priors of each client's baseline hazard this is the limit of the marginal likelihood of theta, as the
prior of the cumulative hazard becomes vague (Kalbfleisch, 1978), so it is used as a likelihood.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Data, Encoding, PredictiveModel, ReportedModel
from cavity.core.base_model import Ratios
from cavity.core.checks import feature_names, numeric_matrix, numeric_outcomes, pair, same_rows
from cavity.distributions import FullGaussian
from cavity.distributions.forms import Form
from cavity.distributions.gaussian import Gaussian, gaussian_or_none
from cavity.errors import CavityError, DataError
from cavity.likelihoods import PoissonLog
from cavity.likelihoods.survival_times import survival_problem, survival_times
from cavity.models.glm.regression import Scales, gaussian_prior
from cavity.models.prediction import Prediction, predict_from_designs
from cavity.models.survival.risk_sets import bins_of, risk_sums
from cavity.models.survival.ties import TIES, log_denominator


class HazardRatios(PredictiveModel, ReportedModel):
    """A model of log hazard ratios alone: the baseline hazard of each client is no parameter.

    Attributes:
        prior: over one log hazard ratio per column of x.
        features: the names of the columns of x.
        encoding: how a table becomes x and y; None takes them as they are given.
    """

    prior: eqx.AbstractVar[Gaussian]
    features: eqx.AbstractVar[tuple[str, ...]]
    encoding: eqx.AbstractVar[Encoding | None]

    def __check_init__(self) -> None:
        if gaussian_or_none(self.prior) is None:
            raise CavityError(f"the prior of a regression must be a Gaussian, not a {type(self.prior).__name__}")
        if not self.features:
            raise CavityError("the model has no columns; without any there are no hazard ratios")
        if self.prior.dimension != len(self.features):
            raise CavityError(
                f"the prior has dimension {self.prior.dimension}, but there are {len(self.features)} columns"
            )

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return self.features

    @property
    def ratios(self) -> Ratios | None:
        return Ratios("hazard ratio", self.features)

    def prepare(self, batch: PyTree) -> PyTree:
        if self.encoding is None or isinstance(batch, (tuple, list)):
            x, y = pair(batch, "a survival model needs a pair (x, y), where y has the columns time and status")
        else:
            x, y = self.encoding.rows(batch)
        num_columns = 3 if np.ndim(y) == 2 and np.shape(y)[1] == 3 else 2
        x, y = same_rows(numeric_matrix(x, self.features), numeric_outcomes(y, num_columns))
        if problem := survival_problem(y):
            raise DataError(problem)
        return x, y

    def predict(self, posterior: Gaussian, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None = None) -> Prediction:
        """The hazard relative to that of a row whose columns are at their means (at 0, if they are not scaled)."""
        if self.encoding is not None and (isinstance(x, Mapping) or hasattr(x, "columns")):
            x = self.encoding.features(x)
        design = jnp.asarray(numeric_matrix(x, self.features))
        return predict_from_designs(key, PoissonLog(), posterior, (design,), num_draws)  # the mean is exp(eta)

    def reported(self, q: Gaussian) -> Gaussian:
        if (block := self._units()) is None:
            return q
        mean, precision = np.asarray(q.mean), np.asarray(q.precision_matrix)
        return FullGaussian(block.T @ (precision @ mean), block.T @ precision @ block)

    def reported_moments(self, q: Gaussian) -> tuple[np.ndarray, np.ndarray]:
        mean, covariance = np.asarray(q.mean), np.asarray(q.covariance)
        if (block := self._units()) is None:
            return mean, covariance
        return np.linalg.solve(block, mean), np.linalg.solve(block, np.linalg.solve(block, covariance).T)

    def _units(self) -> np.ndarray | None:
        """B with computed = B reported; centring columns changes the baseline only, so the intercept is left out."""
        block = None if self.encoding is None else self.encoding.to_computed()
        return None if block is None else block[-len(self.features) :, -len(self.features) :]

    @property
    def remarks(self) -> tuple[str, ...]:
        return () if self.encoding is None else self.encoding.remarks


class CoxRegression(HazardRatios):
    """Cox's partial likelihood of rows (x, y); y has time and status, or start, stop and status.

    Attributes:
        prior: over one log hazard ratio per column of x.
        features: the names of the columns of x.
        ties: the approximation for several events at one time, "efron" or "breslow".
        encoding: how a table becomes x and y; None takes them as they are given.
    """

    prior: Gaussian
    features: tuple[str, ...] = eqx.field(static=True)
    ties: str = eqx.field(static=True, default=TIES[0], kw_only=True)
    encoding: Encoding | None = None

    def __check_init__(self) -> None:
        check_ties(self.ties)

    def log_prob(self, theta: Float[Array, " d"], data: Data) -> Float[Array, ""]:
        x, y = data.batch
        return log_partial_likelihood(jnp.asarray(x) @ theta, jnp.asarray(y), jnp.asarray(data.weight), self.ties)


def log_partial_likelihood(
    eta: Float[Array, " n"], y: Float[Array, "n _"], weight: Float[Array, " n"], ties: str
) -> Float[Array, ""]:
    """The log partial likelihood of one client's rows, in nats; differentiable in eta.

    Args:
        eta: the log hazard of each row relative to the baseline.
        y: time and status, or start, stop and status.
        weight: of each row; 0 is absent.
        ties: "efron" or "breslow".

    Returns:
        One number; 0 where there are no events.
    """
    times, weight = survival_times(y), weight.astype(eta.dtype)
    status, bins = times.status.astype(eta.dtype), bins_of(times)
    sums = risk_sums(eta, status, weight, bins)
    is_event = (weight > 0) & (status > 0)
    events = jnp.where(is_event, weight * (eta - sums.shift[bins.last]), 0.0)
    return jnp.sum(events) - jnp.sum(log_denominator(sums.others, sums.events, sums.num_events, ties))


def check_ties(ties: str) -> None:
    """Raise CavityError unless there is an approximation of this name."""
    if ties not in TIES:
        raise CavityError(f"unknown ties {ties!r}; choose one of: {', '.join(TIES)}")


def cox_regression(
    features: int | Sequence[str],
    *,
    ties: str = TIES[0],
    prior: Gaussian | None = None,
    prior_scale: Scales = 2.5,
    covariance: Form = None,
) -> CoxRegression:
    """Cox regression stratified by client; coefficients are log hazard ratios.

    Args:
        features: the names of the columns of x, or how many there are.
        ties: the approximation for several events at one time, "efron" or "breslow".
        prior: over all coefficients; if None, N(0, prior_scale^2) each.
        prior_scale: of a log hazard ratio per unit of x.
        covariance: the form of the Gaussian posterior, "full" or "diagonal"; None chooses by the number of columns.

    Returns:
        The model. A client's rows are a pair (x, y), where y has the columns time and status, or start, stop and
        status.
    """
    names = feature_names(features)
    prior = gaussian_prior(len(names), prior_scale, covariance) if prior is None else prior
    return CoxRegression(prior, names, ties=ties)
