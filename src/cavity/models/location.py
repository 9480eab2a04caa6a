"""The location of normal data: y ~ N(theta, S), with known S."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Data, GaussianRows, LinearModel, PredictiveModel
from cavity.core.checks import numeric_matrix
from cavity.core.types import Leaf
from cavity.distributions import FullGaussian
from cavity.distributions.forms import Form
from cavity.distributions.gaussian import Gaussian
from cavity.errors import CavityError, DataError
from cavity.likelihoods import GaussianVector
from cavity.models.glm.regression import Scales, gaussian_prior
from cavity.models.prediction import Prediction, predict_from_designs


class NormalLocation(LinearModel, GaussianRows[FullGaussian], PredictiveModel):
    """Rows y of d numbers around one location theta, with a Gaussian prior. Build it with `normal_location`.

    Attributes:
        prior: over theta.
        likelihood: N(theta, S).
    """

    prior: Gaussian
    likelihood: GaussianVector

    def __check_init__(self) -> None:
        if self.prior.dimension != self.likelihood.num_predictors:
            raise CavityError(
                f"the prior has dimension {self.prior.dimension}, the noise {self.likelihood.num_predictors}; "
                "both are that of a row"
            )

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(f"location {j}" for j in range(1, self.prior.dimension + 1))

    def predictor(self, theta: Float[Array, " d"], batch: PyTree) -> tuple[Float[Array, "n k"], Leaf]:
        return jnp.broadcast_to(theta, batch.shape), batch

    def designs(self, batch: PyTree) -> tuple[tuple[Float[Array, "n _"], ...], Leaf]:
        ones = jnp.ones((batch.shape[0], 1), batch.dtype)
        return (ones,) * self.prior.dimension, batch

    @property
    def gaussian_rows(self) -> GaussianRows:
        return self

    @property
    def conjugate(self) -> GaussianRows | None:
        return self if self.prior.has_correlations else None

    def likelihood_factor(self, data: Data) -> tuple[FullGaussian, Float[Array, ""]]:
        """The factor is the weighted sum of rows and their total weight, times S^-1."""
        root, y = self.likelihood.root, jnp.asarray(data.batch)
        precision = cho_solve((root, True), jnp.eye(len(root), dtype=root.dtype))
        factor = FullGaussian(precision @ (data.weight @ y), precision * jnp.sum(data.weight))
        at_zero = self.likelihood.log_prob(jnp.zeros_like(y), y)
        return factor, jnp.asarray(data.weight) @ at_zero

    def standardised_residuals(self, theta: Float[Array, " d"], batch: PyTree) -> Float[Array, "n k"]:
        return self.likelihood.standardise(batch - theta)

    def shifted(self, theta: Float[Array, " d"], batch: PyTree, share: Float[Array, " n"]) -> PyTree:
        return batch + share[:, None] * (batch - theta)

    def prepare(self, batch: PyTree) -> PyTree:
        shape, size = np.shape(batch), self.prior.dimension
        if len(shape) > 2 or (shape[1] if len(shape) == 2 else 1) != size:
            raise DataError(
                f"the rows have the shape {shape}, but the location has {size} entries; give rows of {size}"
            )
        return numeric_matrix(batch, [f"x{j}" for j in range(1, size + 1)])

    def predict(self, posterior: Gaussian, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None = None) -> Prediction:
        """The expected row, once for each entry of `x`, whose values are ignored."""
        designs, _ = self.designs(jnp.zeros((len(x), self.prior.dimension)))
        return predict_from_designs(key, self.likelihood, posterior, designs, num_draws)


def normal_location(
    dimension: int = 1,
    *,
    noise_sd: Scales = 1.0,
    noise_covariance: Float[Leaf, "d d"] | Sequence[Sequence[float]] | None = None,
    prior: Gaussian | None = None,
    prior_scale: Scales = 10.0,
    covariance: Form = None,
) -> NormalLocation:
    """Rows of `dimension` numbers, y ~ N(theta, S), with N(0, prior_scale^2) on each entry of theta.

    Args:
        dimension: of a row.
        noise_sd: of every entry (or one per entry), for independent entries.
        noise_covariance: S, instead of `noise_sd`.
        prior: over theta; if None, by `prior_scale`.
        prior_scale: in the units of the rows.
        covariance: the form of the Gaussian posterior, "full", "diagonal" or "isotropic"; None chooses full or diagonal
            by dimension.
    """
    if noise_covariance is None:
        scales = np.broadcast_to(np.asarray(noise_sd, float), (dimension,))
        if not (scales > 0).all():
            raise CavityError(f"noise_sd must be positive, not {noise_sd}")
        noise_covariance = np.diag(scales**2)
    noise = np.asarray(noise_covariance, float)
    if noise.shape != (dimension, dimension) or not np.allclose(noise, noise.T):
        raise CavityError(f"noise_covariance must be a symmetric {dimension} x {dimension} matrix")
    if not np.all(np.linalg.eigvalsh(noise) > 0):
        raise CavityError("noise_covariance must be positive definite")
    prior = gaussian_prior(dimension, prior_scale, covariance) if prior is None else prior
    return NormalLocation(prior, GaussianVector.from_covariance(noise))
