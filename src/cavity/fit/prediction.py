"""Predictions from a posterior: by draws, in closed form, or at its mean alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from cavity.core import Model, PredictiveModel
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.point import PointMass
from cavity.errors import CavityError
from cavity.models.function_prediction import FunctionPrediction
from cavity.models.prediction import Prediction
from cavity.solvers.requirements import linear_model, require_family

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
    predictive = predictive_or_none(model)
    if predictive is None:
        raise CavityError(
            f"{type(model).__name__} has no predictions (a function model needs `predictor=`); look at `fit.posterior` "
            "instead"
        )
    posterior = jax.tree.map(jnp.asarray, posterior)
    if isinstance(posterior, PointMass):
        unit = DiagonalGaussian(posterior.location, jnp.ones_like(posterior.location))
        posterior, point = require_family(model, "a prediction", Gaussian).with_moments_of(unit), True
    if point:
        posterior, num_draws = posterior.concentrated(), 1 if linear_model(model) is None else None
    return predictive.predict(posterior, x, key=jax.random.key(seed), num_draws=num_draws)


def predictive_or_none(model: Model) -> PredictiveModel | None:
    """The model, where it can predict; else None."""
    return model if isinstance(model, PredictiveModel) else None
