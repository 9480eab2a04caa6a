"""Weighted score matching (FedGVI, appendices B.6 and D.1; Altamirano et al., 2023), for Gaussian noise.

For a row with outcome y, predictor f, noise covariance S (d x d) and a matrix weight w(y),

    loss = |w' s|^2 + 2 div_y(w w' s),     s = grad_y log p(y | f) = -S^-1 (y - f).

The weight is w w' = K(m) S / 2, so that a row with K = 1 has the likelihood's precision; K falls with the squared
distance m = e' S^-1 e of the row from what the cavity's mean predicts, e = y - f(cavity mean). Then, with z = y - f,

    loss = K z' S^-1 z / 2  -  2 K'(m) e' S^-1 z  -  d K,

and completing the square in f (which the printed B.6 gets wrong: it drops factors and the cross term)

    loss = K (y~ - f)' S^-1 (y~ - f) / 2 + constant,     y~ = y - 2 (K' / K) e.

A client therefore has ordinary Gaussian rows, shifted to y~ and weighted by K. Every solver handles them, and the
closed form of a conjugate model is the conjugate update of proposition 4.10.

Widths are in standard deviations of the noise. Influence is bounded for both weights (for inverse multi-quadrics
K ~ m^(-2a), so a >= 1/4 is needed).
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from cavity.core import Data, Distribution, GaussianRows, Likelihood, Loss, Model
from cavity.core.fields import Number, as_number, require, require_kind
from cavity.core.likelihood import Outcomes
from cavity.errors import CavityError, UnsuitableError
from cavity.losses.nll import NegativeLogLikelihood
from cavity.losses.predictor import name_of


class Kernel(eqx.Module):
    """K(m), the square of the printed weight without its amplitude: 1 at m = 0, falling."""

    @abc.abstractmethod
    def log_weight(self, distance: Float[Array, " n"]) -> Float[Array, " n"]:
        """Log K at squared distances m."""


class SquaredExponential(Kernel):
    """k = exp(-m / (2 width^2)), so K = k^2 = exp(-m / width^2)."""

    width: Float[Array, ""] = eqx.field(converter=as_number)

    def __check_init__(self) -> None:
        require(self.width, lambda width: width > 0, "the width of the weights must be positive")

    def log_weight(self, distance: Float[Array, " n"]) -> Float[Array, " n"]:
        return -distance / self.width.astype(distance.dtype) ** 2


class InverseMultiQuadric(Kernel):
    """k = (1 + m / (2 a width^2))^-a, so K = k^2; a = 1/2 as in the authors' program."""

    width: Float[Array, ""] = eqx.field(converter=as_number)
    a: Float[Array, ""] = eqx.field(converter=as_number, default=0.5)

    def __check_init__(self) -> None:
        require(self.width, lambda width: width > 0, "the width of the weights must be positive")
        require(self.a, lambda a: a >= 0.25, "the exponent a must be at least 1/4, otherwise influence is not bounded")

    def log_weight(self, distance: Float[Array, " n"]) -> Float[Array, " n"]:
        width, a = self.width.astype(distance.dtype), self.a.astype(distance.dtype)
        return -2.0 * a * jnp.log1p(distance / (2.0 * a * width**2))


class ScoreMatching(Loss):
    """Weighted score matching around the mean of the cavity, for regression with known Gaussian noise and locations.

    Attributes:
        kernel: how fast a row's weight falls with its distance.
    """

    kernel: Kernel

    def __check_init__(self) -> None:
        require_kind(self.kernel, Kernel, "score matching takes weights such as SquaredExponential(2.0), of width 2.0")

    def check(self, model: Model) -> None:
        predictors = model.predictor_model
        if predictors is not None and predictors.likelihood.is_discrete:
            raise UnsuitableError(
                f"score matching differentiates log p(y) in y, but {name_of(predictors.likelihood)} has discrete "
                "outcomes. Use the beta loss, or generalised cross entropy"
            )
        self._gaussian_rows(model)

    def _gaussian_rows(self, model: Model) -> GaussianRows:
        rows = model.gaussian_rows
        if rows is None:
            raise UnsuitableError(
                "score matching is for Gaussian outcomes of known noise: a normal location or a linear regression with "
                "`noise_sd`. Use the beta loss"
            )
        return rows

    def in_context(self, model: Model, cavity: Distribution, data: Data) -> tuple[Loss, Data]:
        rows = self._gaussian_rows(model)
        weight, shift = self._rows(rows, cavity.mean, data.batch)
        batch = rows.shifted(cavity.mean, data.batch, shift)
        return NegativeLogLikelihood(), Data(batch, data.weight * weight, data.num_rows)

    def _rows(self, rows: GaussianRows, centre: PyTree, batch: PyTree) -> tuple[Array, Array]:
        """K and -2 K' / K of each row."""
        e = rows.standardised_residuals(centre, batch)
        distance = jnp.sum(e**2, axis=-1)
        log_weight, slope = jax.jvp(self.kernel.log_weight, (distance,), (jnp.ones_like(distance),))
        return jnp.exp(log_weight), -2.0 * slope

    def around(self, model: Model, centre: PyTree, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        """The loss of each row at theta as defined above, with the weights around `centre`."""
        rows = self._gaussian_rows(model)
        z, e = rows.standardised_residuals(theta, batch), rows.standardised_residuals(centre, batch)
        weight, shift = self._rows(rows, centre, batch)
        quadratic = 0.5 * jnp.sum(z**2, axis=-1) + shift * jnp.sum(e * z, axis=-1) - z.shape[-1]
        return weight * quadratic

    def __call__(self, model: Model, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        raise CavityError("the weights of score matching depend on a cavity; use `around`, or `in_context`")

    def of_predictor(self, likelihood: Likelihood, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        raise CavityError("the weights of score matching depend on a cavity; use `in_context`")

    @property
    def needs_proper_cavity(self) -> bool:
        return True  # the weights are around its mean

    @property
    def likelihood_power(self) -> Number | None:
        return 1.0
