"""Generalised linear regression: a Gaussian prior on coefficients, a linear predictor, a likelihood.

Build one with `linear_regression`, `logistic_regression`, `probit_regression`, `softmax_regression` or
`poisson_regression`; or put another likelihood into `Regression` directly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import (
    Data,
    Encoding,
    GaussianRows,
    Likelihood,
    LinearModel,
    PredictiveModel,
    PredictorDraws,
    ReportedModel,
)
from cavity.core.base_model import Ratios
from cavity.core.checks import feature_names, numeric_matrix, numeric_outcomes, pair, same_rows
from cavity.core.fields import Number, require
from cavity.core.natural_scale import NaturalScale
from cavity.core.types import Leaf
from cavity.distributions import FullGaussian, IsotropicGaussian
from cavity.distributions.forms import Form, gaussian_class
from cavity.distributions.gaussian import Gaussian, GaussianDensity, gaussian_or_none, row_roots, split
from cavity.errors import CavityError, DataError
from cavity.likelihoods import (
    BernoulliLogit,
    BernoulliProbit,
    CategoricalLogit,
    GaussianNoise,
    GaussianUnknownNoise,
    PoissonLog,
)
from cavity.likelihoods.gaussian import known_noise
from cavity.likelihoods.offset import without_offset
from cavity.models.glm.auxiliary import Auxiliary, auxiliary_scale, threshold_scale
from cavity.models.prediction import Prediction, predict_from_designs

Scales = Number | Sequence[float]  # one prior scale for all coefficients, or one each


class Regression(LinearModel, PredictorDraws, PredictiveModel, ReportedModel):
    """y ~ likelihood(f_1, ..., f_K) with f_k = intercept_k + x . beta_k, and a Gaussian prior on all coefficients.

    Attributes:
        prior: over theta = (intercept_1, beta_1, intercept_2, beta_2, ...); its family is the posterior's.
        likelihood: of one outcome given its K predictors.
        features: the names of the columns of x.
        intercept: whether a column of ones is added in front of x.
        outputs: one name per predictor, for the names of coefficients.
        constant: which predictors have an intercept only (the log of a common noise).
        unseen: names of further parameters on which no row depends, such as the scales of a prior.
        encoding: how a table becomes x and y; None takes them as they are given.
        log_outcome_scale: log s where y is the outcome divided by s.
        auxiliary: what the constant predictors are; empty if they are logs in the units of the outcome.
        thresholds: names of the thresholds between ordered levels. The first is minus the intercept, and the constant
            predictors are the logs of the distances between them.
    """

    prior: Gaussian
    likelihood: Likelihood
    features: tuple[str, ...] = eqx.field(static=True)
    intercept: bool = eqx.field(static=True, default=True)
    outputs: tuple[str, ...] = eqx.field(static=True, default=("",))
    constant: tuple[bool, ...] = eqx.field(static=True, default=(False,))
    unseen: tuple[str, ...] = eqx.field(static=True, default=())
    encoding: Encoding | None = None
    log_outcome_scale: float = 0.0
    auxiliary: tuple[Auxiliary, ...] = eqx.field(static=True, default=())
    thresholds: tuple[str, ...] = eqx.field(static=True, default=())

    def __check_init__(self) -> None:
        expected = len(self.parameter_names)
        if gaussian_or_none(self.prior) is None:
            raise CavityError(f"the prior of a regression must be a Gaussian, not a {type(self.prior).__name__}")
        if self.prior.dimension != expected:
            raise CavityError(
                f"the prior has dimension {self.prior.dimension}, but the model has {expected} coefficients: "
                f"{', '.join(self.parameter_names[:8])}{', ...' if expected > 8 else ''}"
            )

    @property
    def parameter_names(self) -> tuple[str, ...]:
        slopes = (("intercept",) if self.intercept else ()) + self.features
        names: list[str] = []
        for output, constant in zip(self.outputs, self.constant, strict=True):
            names += [output] if constant else [f"{output}: {name}" if output else name for name in slopes]
        return (*names, *self.unseen)

    @property
    def ratios(self) -> Ratios | None:
        named = [f"{output}: {name}" if output else name for output in self._sloped for name in self.features]
        return None if self.likelihood.ratio is None else Ratios(self.likelihood.ratio, tuple(named))

    @property
    def _sloped(self) -> tuple[str, ...]:
        """The outputs that have slopes."""
        return tuple(o for o, constant in zip(self.outputs, self.constant, strict=True) if not constant)

    def designs(self, batch: PyTree) -> tuple[tuple[Float[Array, "n _"], ...], Leaf]:
        x, y = batch
        return self._designs(x), y

    def _designs(self, x: Float[Leaf, "n p"]) -> tuple[Float[Array, "n _"], ...]:
        ones = jnp.ones((x.shape[0], 1), x.dtype)
        columns = jnp.concatenate([ones, x], axis=1) if self.intercept else jnp.asarray(x)
        designs = [ones if constant else columns for constant in self.constant]
        nothing = jnp.zeros((x.shape[0], len(self.unseen)), x.dtype)
        return (*designs[:-1], jnp.concatenate([designs[-1], nothing], axis=1) if self.unseen else designs[-1])

    def predictor(self, theta: Float[Array, " d"], batch: PyTree) -> tuple[Float[Array, "n k"], Leaf]:
        designs, y = self.designs(batch)
        return jnp.stack([x @ block for x, block in zip(designs, split(theta, designs), strict=True)], -1), y

    def draw_predictor(self, key: PRNGKeyArray, q: GaussianDensity, batch: PyTree) -> tuple[Float[Array, "n k"], Leaf]:
        designs, y = self.designs(batch)
        mean, covariance = q.map_moments(designs)
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        return mean + jnp.einsum("nkl,nl->nk", row_roots(covariance), noise), y

    @property
    def gaussian_rows(self) -> GaussianRows | None:
        noise = known_noise(self.likelihood)
        return None if noise is None else LinearGaussianRows(self, noise)

    @property
    def conjugate(self) -> GaussianRows | None:
        return self.gaussian_rows if self.prior.has_correlations else None

    def prepare(self, batch: PyTree) -> PyTree:
        if self.encoding is None or isinstance(batch, (tuple, list)):
            x, y = _x_and_y(batch)
        else:
            x, y = self.encoding.rows(batch)
        x, y = same_rows(numeric_matrix(x, self.features), numeric_outcomes(y, self.likelihood.num_outcomes))
        if problem := self.likelihood.check(y):
            raise DataError(problem)
        return x, y

    def predict(self, posterior: Gaussian, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None = None) -> Prediction:
        shift = None
        if self.encoding is not None and (isinstance(x, Mapping) or hasattr(x, "columns")):
            offset = self.encoding.offset(x)
            shift = None if offset is None else offset / self.encoding.predictor_units[1]
            x = self.encoding.features(x)
        elif self.encoding is not None and self.encoding.has_offset:
            raise DataError("the formula has an offset; give new rows as a table with its columns")
        designs = self._designs(jnp.asarray(numeric_matrix(x, self.features)))
        likelihood = without_offset(self.likelihood)
        prediction = predict_from_designs(key, likelihood, posterior, designs, num_draws, shift)
        return prediction if self.encoding is None else prediction.in_units(*self.encoding.outcome_units)

    def reported(self, q: Gaussian) -> Gaussian:
        if (units := self._units()) is None:
            return q
        matrix, shift = units
        # computed = M reported + b, so the reported have precision M' Lambda M and mean M^-1 (mean - b)
        mean, precision = np.asarray(q.mean), np.asarray(q.precision_matrix)
        return FullGaussian(matrix.T @ (precision @ (mean - shift)), matrix.T @ precision @ matrix)

    def reported_moments(self, q: Gaussian) -> tuple[np.ndarray, np.ndarray]:
        mean, covariance = np.asarray(q.mean), np.asarray(q.covariance)
        if (units := self._units()) is None:
            return mean, covariance
        matrix, shift = units
        return np.linalg.solve(matrix, mean - shift), np.linalg.solve(matrix, np.linalg.solve(matrix, covariance).T)

    def _units(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(M, b) with computed = M reported + b; None where they are the same.

        X reported = centre + scale (Z computed) for the outcome, log noise = log scale + computed for its noise.
        """
        if self.encoding is None:
            return None
        (centre, scale), block = self.encoding.predictor_units, self.encoding.to_computed()
        if block is None and (centre, scale) == (0.0, 1.0):
            return None
        width = len(self.features) + int(self.intercept)
        block = np.eye(width) if block is None else block
        matrix = _block_diagonal([np.eye(1) if constant else block / scale for constant in self.constant])
        first = [-centre / scale * self.intercept] + [0.0] * (width - 1)
        in_units = iter([each.in_outcome_units for each in self.auxiliary] or [True] * len(self.constant))
        of_auxiliary = {True: [-math.log(scale)], False: [0.0]}
        shift = [of_auxiliary[next(in_units)] if constant else first for constant in self.constant]
        matrix = _block_diagonal([matrix, np.eye(len(self.unseen))])
        return matrix, np.concatenate([*shift, np.zeros(len(self.unseen))])

    @property
    def natural_scale(self) -> NaturalScale | None:
        if self.thresholds:
            return threshold_scale(self.parameter_names, self.thresholds, len(self.unseen))
        return auxiliary_scale(self.parameter_names, self.outputs, self.constant, self.auxiliary)

    @property
    def remarks(self) -> tuple[str, ...]:
        return () if self.encoding is None else self.encoding.remarks


class LinearGaussianRows(GaussianRows[FullGaussian]):
    """The rows of a linear regression with known noise.

    Attributes:
        regression: the model.
        noise: its likelihood.
    """

    regression: Regression
    noise: GaussianNoise

    def likelihood_factor(self, data: Data) -> tuple[FullGaussian, Float[Array, ""]]:
        """X'Wy / s^2 and X'WX / s^2: the factor *is* these sums (docs/what-a-factor-reveals.md)."""
        (x,), y = self.regression.designs(data.batch)
        scaled = x * (data.weight / self.noise.noise_sd**2)[:, None]
        at_zero = self.noise.log_prob(jnp.zeros((*y.shape, 1), x.dtype), y)
        return FullGaussian(scaled.T @ y, scaled.T @ x), jnp.sum(data.weight * at_zero)

    def standardised_residuals(self, theta: Float[Array, " d"], batch: PyTree) -> Float[Array, "n k"]:
        f, y = self.regression.predictor(theta, batch)
        return (jnp.asarray(y)[:, None] - f) / self.noise.noise_sd

    def shifted(self, theta: Float[Array, " d"], batch: PyTree, share: Float[Array, " n"]) -> PyTree:
        f, y = self.regression.predictor(theta, batch)
        return batch[0], y + share * (y - f[:, 0])


def _block_diagonal(blocks: Sequence[np.ndarray]) -> np.ndarray:
    edges = np.cumsum([0, *(len(block) for block in blocks)])
    whole = np.zeros((edges[-1], edges[-1]))
    for block, start, end in zip(blocks, edges, edges[1:], strict=False):
        whole[start:end, start:end] = block
    return whole


def _x_and_y(batch: PyTree) -> tuple[PyTree, PyTree]:
    if isinstance(batch, Mapping):
        missing = {"x", "y"} - set(batch)
        if missing:
            raise DataError(f"a regression needs the entries 'x' and 'y'; {sorted(missing)} is missing")
        return batch["x"], batch["y"]
    return pair(batch, "a regression needs a pair (x, y) or a dict with 'x' and 'y'")


def gaussian_prior(
    dimension: int, scale: Scales, covariance: Form = None, mean: Sequence[float] | np.ndarray | None = None
) -> Gaussian:
    """N(mean, scale^2) for each coefficient.

    Args:
        dimension: the number of coefficients.
        scale: the standard deviation, one for all or one per coefficient.
        covariance: its form: "full", "diagonal" or "isotropic"; None chooses full or diagonal by dimension.
        mean: one per coefficient; None is 0.
    """
    family = gaussian_class(covariance, dimension)
    variance = jnp.asarray(scale, float) ** 2
    centre = jnp.asarray(np.zeros(dimension) if mean is None else mean, variance.dtype)
    if family is IsotropicGaussian:
        if variance.ndim > 0:
            raise CavityError(f"an isotropic prior has one scale for all coefficients, not {variance.size}")
        return IsotropicGaussian.from_moments(centre, variance)
    return family.independent(centre, jnp.broadcast_to(variance, (dimension,)))


def _regression(
    likelihood: Likelihood,
    features: int | Sequence[str],
    prior: Gaussian | None,
    prior_scale: Scales,
    covariance: Form,
    intercept: bool,
    outputs: tuple[str, ...] = ("",),
    constant: tuple[bool, ...] = (False,),
) -> Regression:
    names = feature_names(features)
    width = len(names) + int(intercept)
    dimension = sum(1 if c else width for c in constant)
    prior = gaussian_prior(dimension, prior_scale, covariance) if prior is None else prior
    return Regression(prior, likelihood, names, intercept, outputs, constant)


def linear_regression(
    features: int | Sequence[str],
    *,
    noise_sd: Number | None = None,
    prior: Gaussian | None = None,
    prior_scale: Scales = 10.0,
    covariance: Form = None,
    intercept: bool = True,
) -> Regression:
    """Y ~ N(x . beta, noise^2). With `noise_sd` given the posterior is exact; without it, log noise is estimated.

    Args:
        features: the names of the columns of x, or how many there are.
        noise_sd: the standard deviation of the noise, or None for unknown.
        prior: over all coefficients; if None, N(0, prior_scale^2) each.
        prior_scale: in the units of y per unit of x; choose it wider than any plausible coefficient.
        covariance: the form of the Gaussian posterior, "full", "diagonal" or "isotropic"; None chooses full or diagonal
            by the number of coefficients.
        intercept: whether to add one.
    """
    if noise_sd is not None:
        require(noise_sd, lambda sd: sd > 0, "noise_sd must be positive (leave it out to estimate it)")
        return _regression(GaussianNoise(noise_sd), features, prior, prior_scale, covariance, intercept)
    outputs, constant = ("", "log_noise_sd"), (False, True)
    return _regression(GaussianUnknownNoise(), features, prior, prior_scale, covariance, intercept, outputs, constant)


def logistic_regression(
    features: int | Sequence[str],
    *,
    prior: Gaussian | None = None,
    prior_scale: Scales = 2.5,
    covariance: Form = None,
    intercept: bool = True,
) -> Regression:
    """P(y = 1) = 1 / (1 + exp(-x . beta)). Arguments as in `linear_regression`; beta is a log odds ratio."""
    return _regression(BernoulliLogit(), features, prior, prior_scale, covariance, intercept)


def probit_regression(
    features: int | Sequence[str],
    *,
    prior: Gaussian | None = None,
    prior_scale: Scales = 2.5,
    covariance: Form = None,
    intercept: bool = True,
) -> Regression:
    """P(y = 1) = Phi(x . beta). Arguments as in `linear_regression`."""
    return _regression(BernoulliProbit(), features, prior, prior_scale, covariance, intercept)


def poisson_regression(
    features: int | Sequence[str],
    *,
    prior: Gaussian | None = None,
    prior_scale: Scales = 2.5,
    covariance: Form = None,
    intercept: bool = True,
) -> Regression:
    """Y ~ Poisson(exp(x . beta)). Arguments as in `linear_regression`; beta is a log rate ratio."""
    return _regression(PoissonLog(), features, prior, prior_scale, covariance, intercept)


def softmax_regression(
    features: int | Sequence[str],
    num_classes: int,
    *,
    prior: Gaussian | None = None,
    prior_scale: Scales = 2.5,
    covariance: Form = None,
    intercept: bool = True,
) -> Regression:
    """P(y = c) proportional to exp(x . beta_c), beta_0 = 0. Arguments as in `linear_regression`."""
    if num_classes < 2:
        raise CavityError(f"softmax regression needs at least two classes, not {num_classes}")
    outputs = tuple(f"class {c}" for c in range(1, num_classes))
    return _regression(
        CategoricalLogit(num_classes),
        features,
        prior,
        prior_scale,
        covariance,
        intercept,
        outputs,
        (False,) * (num_classes - 1),
    )
