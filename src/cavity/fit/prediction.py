"""How a fit predicts: by draws of its posterior, in closed form, or at its mean alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from cavity.core import LatentModel, LinearModel, PredictiveModel
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.hierarchical import Hierarchical
from cavity.distributions.point import PointMass
from cavity.errors import CavityError
from cavity.fit import local_posterior
from cavity.solvers.requirements import require_family

POINT = 1e16  # a power of a Gaussian that has the same mean, and for any use no spread


def predicted(fit: Any, x: PyTree, num_draws: int | None, seed: int, point: bool) -> Any:
    """What `Fit.predict` gives."""
    model = fit.algorithm.model
    if isinstance(model, LatentModel):  # of rows at a silo that is new: every unit is
        z, _ = local_posterior.global_draws(model, fit.posterior, num_draws or local_posterior.DEFAULT_DRAWS, seed)
        return local_posterior.predict_rows(model, fit.posterior, z, x, seed)
    if not isinstance(model, PredictiveModel):
        raise CavityError(
            f"{type(model).__name__} has no predictions (a function model needs `predictor=`); look at `fit.posterior` "
            "instead"
        )
    posterior = jax.tree.map(jnp.asarray, fit.posterior)
    if isinstance(posterior, PointMass):
        unit = DiagonalGaussian(posterior.location, jnp.ones_like(posterior.location))
        posterior, point = require_family(model, "a prediction", Gaussian).with_moments_of(unit), True
    if point:
        posterior, num_draws = _concentrated(posterior), None if isinstance(model, LinearModel) else 1
    return model.predict(posterior, x, key=jax.random.key(seed), num_draws=num_draws)


def _concentrated(posterior: Any) -> Any:
    """At the mean of what is shared; what depends on it stays as wide as it is."""
    if isinstance(posterior, Hierarchical):
        return replace(posterior, shared=posterior.shared**POINT)
    return posterior**POINT
