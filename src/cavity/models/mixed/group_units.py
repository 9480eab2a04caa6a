"""From what a model with group terms computes with to the units of the data."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def fixed_in_units(
    fixed: Float[Array, " f"],
    outcome_units: tuple[float, float],
    block: Float[np.ndarray, "p p"] | None,
    *,
    intercept: bool,
    own_intercept: bool,
) -> tuple[Float[Array, ""], Float[Array, " f"]]:
    """What the units of the data add to an intercept of the groups' own, and the fixed effects in these units.

    Args:
        fixed: as the model computes with them.
        outcome_units: centre and scale of the outcome.
        block: from the coefficients of the data to those of the matrix, with the intercept first; None if the same.
        intercept: whether the first of the fixed effects is the intercept.
        own_intercept: whether each group has its own instead.
    """
    centre, scale = outcome_units
    full = scale * fixed
    if own_intercept:
        full = jnp.concatenate([jnp.zeros(1, fixed.dtype), full])
    if intercept or own_intercept:
        full = full.at[0].add(centre)
    if block is not None:  # X reported = centre + scale (Z computed), and Z = X block^-1
        full = jnp.asarray(np.linalg.inv(block), fixed.dtype) @ full
    return (full[0], full[1:]) if own_intercept else (jnp.zeros((), fixed.dtype), full)
