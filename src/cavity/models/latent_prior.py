"""The prior of the global latents as a Gaussian, or as a Gaussian times a correction.

A prior that is no Gaussian on the unconstrained scale is

    p(z) = base(z) * [p(z) / base(z)],

and the correction is one more entry of the ledger, whose owner is the server (`SERVER`): it is refined as a client's
factor is, and the base cancels.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from cavity.core import LatentModel
from cavity.core.types import Leaf
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian

SERVER = "(prior)"
Family = type[FullGaussian] | type[DiagonalGaussian]
ROUNDING = 1e-9  # of a Hessian that is the same everywhere, in double precision


def prior_scale(model: LatentModel) -> np.ndarray:
    """The spread of the prior of each global latent: that of the model, or by the curvature where it starts.

    Args:
        model: the model; it may have an array `prior_scale`.

    Returns:
        One positive number per global latent.
    """
    known = getattr(model, "prior_scale", None)
    if known is not None:
        return np.asarray(known, float)
    with jax.enable_x64(True):
        start = jnp.asarray(np.asarray(model.start[0], float))
        curvature = -np.diagonal(jax.hessian(lambda z: model.log_prior(model.theta, z))(start))
    usable = np.isfinite(curvature) & (curvature > 0)
    return np.where(usable, np.where(usable, curvature, 1.0) ** -0.5, 10.0 * np.asarray(model.start[1], float))


def prior_in(family: Family, model: LatentModel) -> tuple[Gaussian, bool]:
    """The prior as a member of the family and False; or where it is none, one of its width and True."""
    with jax.enable_x64(True):
        exact = _gaussian_prior(model)
        corrected = exact is None or (family is DiagonalGaussian and not _is_diagonal(exact.precision))
        if exact is None or corrected:
            mean, scale = (np.asarray(part, float) for part in (model.start[0], prior_scale(model)))
            member = _member(family, mean, np.diag(scale**2))
        else:
            member = _member(family, exact.mean, exact.covariance)
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), member), corrected  # in the program's precision


def _member(family: Family, mean: Leaf, covariance: Leaf) -> Gaussian:
    mean, covariance = jnp.asarray(mean, float), jnp.asarray(covariance, float)
    return family.from_moments(mean, covariance if family is FullGaussian else jnp.diagonal(covariance))


def _is_diagonal(matrix: Leaf) -> bool:
    return bool(np.all(np.asarray(matrix) == np.diag(np.diagonal(matrix))))


def _gaussian_prior(model: LatentModel) -> FullGaussian | None:
    """The prior where its log density is quadratic (its Hessian the same everywhere) and it is proper; else None."""

    def log_prior(z: Array) -> Array:
        return model.log_prior(model.theta, z)

    centre, scale = (jnp.asarray(part, float) for part in (model.start[0], prior_scale(model)))
    points = centre + scale * jax.random.normal(jax.random.key(0), (4, len(centre)))
    slopes, hessians = jax.jit(jax.vmap(lambda z: (jax.grad(log_prior)(z), jax.hessian(log_prior)(z))))(points)
    hessians = np.asarray(hessians)
    size = np.abs(hessians).max(axis=0)
    if not np.isfinite(hessians).all() or (np.ptp(hessians, axis=0) > ROUNDING * size).any():
        return None
    precision, unit = -hessians[0], np.sqrt(np.diag(size))
    if (unit == 0).any() or np.linalg.eigvalsh(precision / np.outer(unit, unit)).min() <= ROUNDING:
        return None
    mean = points[0] + jnp.linalg.solve(jnp.asarray(precision), slopes[0])
    return FullGaussian.from_moments(mean, jnp.linalg.inv(jnp.asarray(precision)))
