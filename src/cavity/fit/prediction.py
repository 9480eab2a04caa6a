"""Predictions from a posterior: by draws, in closed form, or at its mean alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from cavity.core import Model
from cavity.core.intervals import DEFAULT_LEVEL, check_level
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.point import PointMass
from cavity.errors import CavityError
from cavity.models.function_prediction import FunctionPrediction
from cavity.models.prediction import Prediction
from cavity.solvers.requirements import require_family

AnyPrediction = Prediction | FunctionPrediction


def predict(
    model: Model,
    posterior: PyTree,
    x: PyTree,
    num_draws: int | None,
    seed: int,
    point: bool,
    level: float = DEFAULT_LEVEL,
) -> AnyPrediction:
    """The prediction of a model without local latents.

    Args:
        model: a model that can predict.
        posterior: in the model's own units.
        x: features of the new rows.
        num_draws: average over this many posterior draws; None uses the closed form where there is one.
        seed: random seed of the draws.
        point: predict at the posterior mean alone.
        level: the probability that each interval has.

    Returns:
        The prediction.
    """
    level = check_level(level)
    predictive = model.predictive_model
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
        posterior, num_draws = posterior.concentrated(), 1 if model.linear_model is None else None
    return predictive.predict(posterior, x, key=jax.random.key(seed), num_draws=num_draws).with_level(level)
