"""A client's dataset: rows, weights, units with local latents, and padding."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from cavity.core.types import Leaf


class Data(eqx.Module):
    """One client's rows, in the form that a solver takes.

    Attributes:
        batch: any pytree of arrays with a common first axis; for a regression `(x, y)`.
        weight: one number per row: 0 for padding, otherwise the user's own weights.
        num_rows: the true number of rows, without padding. Randomness depends on this number, not on the padding.
        units: for models with local latents, the units that have them: `batch` holds the numbers of their labels (or
            None), `weight` is 1, or 0 for padding.
    """

    batch: PyTree
    weight: Float[Leaf, " n"]
    num_rows: Int[Leaf, ""]
    units: Data | None = None


def pad(data: Data, length: int, num_units: int = 0) -> Data:
    """Pad a dataset with copies of its first row at weight 0. Copies are used so that no loss overflows there.

    Args:
        data: the dataset.
        length: the number of rows after padding.
        num_units: the number of units after padding, where the dataset has units.

    Returns:
        The padded dataset; `num_rows` is unchanged.
    """
    extra = length - len(data.weight)
    batch = jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], extra, axis=0)]), data.batch)
    weight = np.concatenate([data.weight, np.zeros(extra, data.weight.dtype)])
    units = None if data.units is None else pad(data.units, num_units)
    return Data(batch, weight, data.num_rows, units)


def weighted_sum(data: Data, values: Float[Array, " n"]) -> Float[Array, ""]:
    """Sum over the rows of weight times value, in the precision of the values.

    Weights in double precision therefore do not promote a network that computes in single precision.
    """
    return jnp.asarray(data.weight).astype(values.dtype) @ values
