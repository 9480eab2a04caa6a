"""A regression whose coefficients have a prior outside the Gaussian family (PVI, appendix C.2).

    p(theta) = base(theta) * [p(theta) / base(theta)]

The base is Gaussian and cancels; the correction is one more entry of the ledger, which the server owns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from cavity.core import CorrectedPrior, Data, PredictiveModel, ReportedModel
from cavity.core.base_model import Ratios
from cavity.core.fields import Number
from cavity.core.natural_scale import NaturalScale
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.errors import CavityError
from cavity.models.glm.regression import Regression
from cavity.models.glm.shrinkage import LOG_TWO_PI, CoefficientPrior
from cavity.models.latent_prior import SERVER
from cavity.models.prediction import Prediction


class ShrinkageRegression(CorrectedPrior, PredictiveModel, ReportedModel):
    """A regression with such a prior on its slopes, or some of them; all else keeps the Gaussian one.

    Attributes:
        prior: the base.
        rows: the regression with this prior; the scales of the true prior are parameters on which no row depends.
        shrinkage: the true prior.
        places: of the slopes and of the prior's own scales in theta.
    """

    prior: Gaussian
    rows: Regression
    shrinkage: CoefficientPrior
    places: tuple[int, ...] = eqx.field(static=True)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return self.rows.parameter_names

    @property
    def ratios(self) -> Ratios | None:
        return self.rows.ratios

    def seen(self, batch: PyTree) -> tuple[PyTree, Bool[Array, ""]]:
        x, y, is_server = batch
        return (x, y), jnp.any(is_server)

    def row_log_prob(self, theta: Float[Array, " d"], batch: PyTree) -> Float[Array, " n"]:
        rows, is_server = self.seen(batch)
        return jax.lax.cond(
            is_server,
            lambda theta: jnp.broadcast_to(self._correction(theta), batch[2].shape),
            lambda theta: self.rows.row_log_prob(theta, rows).astype(theta.dtype),
            theta,
        )

    def _base(self) -> tuple[Array, Array]:
        places = jnp.array(self.places)
        return self.prior.mean[places], jnp.broadcast_to(self.prior.variance, self.prior.mean.shape)[places]

    def _correction(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        mean, variance = self._base()
        own = theta[jnp.array(self.places)]
        log_base = -0.5 * jnp.sum((own - mean) ** 2 / variance + jnp.log(variance) + LOG_TWO_PI)
        return self.shrinkage.log_prob(own) - log_base

    def expected_correction(self, mean: Float[Array, " d"], covariance: Float[Array, "d d"]) -> Float[Array, ""]:
        base_mean, base_variance = self._base()
        places = jnp.array(self.places)
        own, spread = mean[places], covariance[jnp.ix_(places, places)]
        squares = ((own - base_mean) ** 2 + jnp.diagonal(spread)) / base_variance
        log_base = -0.5 * jnp.sum(squares + jnp.log(base_variance) + LOG_TWO_PI)
        return self.shrinkage.expected_log_prob(own, spread) - log_base

    def server_entries(self) -> dict[str, Data]:
        size = self.rows.likelihood.num_outcomes
        outcome = np.ones(1) if size == 1 else np.ones((1, size))  # valid in all families, so that no slope is NaN
        batch = (np.zeros((1, len(self.rows.features))), outcome, np.ones(1, bool))
        return {SERVER: Data(batch, np.ones(1), np.asarray(1))}

    def prepare(self, batch: PyTree) -> PyTree:
        x, y = self.rows.prepare(batch[:2] if isinstance(batch, tuple) and len(batch) == 3 else batch)
        return x, y, np.zeros(len(y), bool)

    def reported(self, q: Gaussian) -> Gaussian:
        return self.rows.reported(q)

    def reported_moments(self, q: Gaussian) -> tuple[np.ndarray, np.ndarray]:
        return self.rows.reported_moments(q)

    @property
    def natural_scale(self) -> NaturalScale | None:
        return self.rows.natural_scale

    @property
    def log_outcome_scale(self) -> Number:
        return self.rows.log_outcome_scale

    @property
    def remarks(self) -> tuple[str, ...]:
        return self.rows.remarks

    def predict(self, posterior: Gaussian, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None = None) -> Prediction:
        return self.rows.predict(posterior, x, key=key, num_draws=num_draws)


def with_shrinkage_prior(
    model: PyTree, shrinkage: PyTree, coefficients: Sequence[str] | None = None
) -> ShrinkageRegression:
    """The regression with another prior on its slopes: `Laplace`, `StudentTPrior`, `CommonScale` or `Horseshoe`.

    Args:
        model: any regression with a full or mean-field Gaussian prior. Intercepts and log noise keep this prior.
        shrinkage: the prior of the slopes. Its own scales are parameters too, and come last in the summary.
        coefficients: the slopes that have it, by name; None is all of them.

    Example:
        >>> import cavity
        >>> regression = cavity.models.logistic_regression(["dose", "age"])
        >>> cavity.models.with_shrinkage_prior(regression, cavity.models.Horseshoe(0.5)).parameter_names
        ('intercept', 'dose', 'age', 'log_local[dose]', 'log_local[age]', 'log_tau')
    """
    if not (isinstance(model, Regression) and isinstance(shrinkage, CoefficientPrior)):
        raise CavityError(
            "give a regression and a prior, as in with_shrinkage_prior(logistic_regression(['dose']), Laplace(0.5))"
        )
    family = type(model.prior)
    precision = np.asarray(model.prior.precision_matrix)
    if family not in (FullGaussian, DiagonalGaussian) or np.any(precision != np.diag(np.diagonal(precision))):
        raise CavityError("the regression must have a full or diagonal Gaussian prior without correlations")
    kept = {*model.parameter_names} & {
        output for output, only in zip(model.outputs, model.constant, strict=True) if only
    }
    slopes = [
        place
        for place, name in enumerate(model.parameter_names)
        if name not in kept and name.rsplit(": ", 1)[-1] != "intercept"
    ]
    if coefficients is not None:
        known = {model.parameter_names[place]: place for place in slopes}
        if unknown := [name for name in coefficients if name not in known]:
            raise CavityError(f"no slope {unknown[0]!r}; the slopes are {', '.join(known)}")
        slopes = [known[name] for name in coefficients]
    names = [model.parameter_names[place] for place in slopes]
    if not names:
        raise CavityError("the regression has no slopes to shrink")
    own = shrinkage.own_names(names)
    places = (*slopes, *range(model.prior.dimension, model.prior.dimension + len(own)))
    mean, sd = (np.asarray(part) for part in shrinkage.width(len(slopes)))
    base_mean = np.append(np.asarray(model.prior.mean), np.zeros(len(own)))
    base_variance = np.append(1 / np.diagonal(precision), np.ones(len(own)))
    base_mean[list(places)], base_variance[list(places)] = mean, sd**2
    prior = family.independent(jnp.asarray(base_mean), jnp.asarray(base_variance))
    rows = replace(model, prior=prior, unseen=own)
    return ShrinkageRegression(prior=prior, rows=rows, shrinkage=shrinkage, places=places)
