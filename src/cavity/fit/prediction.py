"""Predictions from a posterior: by draws, in closed form, or at its mean alone."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from cavity.core import LinearModel, Model, PredictiveModel
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.hierarchical import Hierarchical
from cavity.distributions.point import PointMass
from cavity.errors import CavityError
from cavity.models.function_prediction import FunctionPrediction
from cavity.models.prediction import Prediction
from cavity.solvers.requirements import require_family

POINT = 1e16  # this power of a Gaussian has the same mean and practically no variance
AnyPrediction = Prediction | FunctionPrediction


def predict(model: Model, posterior: PyTree, x: PyTree, num_draws: int | None, seed: int, point: bool) -> AnyPrediction:
    """The prediction of a model without local latents.

    Args:
        model: a model that can predict.
        posterior: in the model's own units.
        x: features of the new rows.
        num_draws: average over this many posterior draws; None uses the closed form where there is one.
        seed: random seed of the draws.
        point: predict at the posterior mean alone.

    Returns:
        The prediction.
    """
    if not isinstance(model, PredictiveModel):
        raise CavityError(
            f"{type(model).__name__} has no predictions (a function model needs `predictor=`); look at `fit.posterior` "
            "instead"
        )
    posterior = jax.tree.map(jnp.asarray, posterior)
    if isinstance(posterior, PointMass):
        unit = DiagonalGaussian(posterior.location, jnp.ones_like(posterior.location))
        posterior, point = require_family(model, "a prediction", Gaussian).with_moments_of(unit), True
    if point:
        posterior, num_draws = _at_mean(posterior), None if isinstance(model, LinearModel) else 1
    return model.predict(posterior, x, key=jax.random.key(seed), num_draws=num_draws)


def _at_mean(posterior: PyTree) -> PyTree:
    """The posterior concentrated at its mean.

    Of a hierarchical posterior, what all factors share is at its mean; the conditional part keeps its variance.
    """
    if isinstance(posterior, Hierarchical):
        return replace(posterior, shared=posterior.shared**POINT)
    return posterior**POINT
