"""Several labels per row, each present or absent independently: the tags of a post, the objects in a photograph."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cavity.core import Likelihood
from cavity.core.likelihood import Outcomes


class TagsLogit(Likelihood):
    """K independent tags, p(tag k is present | f) = 1 / (1 + exp(-f_k)).

    An outcome lists the numbers of the tags that are present, in any order, padded with -1. A row usually has few of
    hundreds of tags, so the list is short.

    Attributes:
        num_tags: K.
    """

    num_tags: int = eqx.field(static=True)
    is_discrete: ClassVar[bool] = True

    @property
    def num_predictors(self) -> int:
        return self.num_tags

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        # sum_k y_k f_k - log(1 + e^f_k), where y_k is 1 for the listed tags
        tags = jnp.asarray(y)
        listed = jnp.broadcast_to(tags, (*f.shape[:-1], tags.shape[-1]))
        there = jnp.take_along_axis(f, jnp.maximum(listed, 0), axis=-1)
        return jnp.sum(jnp.where(listed >= 0, there, 0.0), axis=-1) - jnp.sum(jax.nn.softplus(f), axis=-1)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        """The probability of each tag."""
        return jax.nn.sigmoid(f)

    def check(self, y: np.ndarray) -> str | None:
        if not np.issubdtype(y.dtype, np.integer) or y.ndim != 2:
            return "the outcome must be whole numbers, one row of tags per example, padded with -1"
        if y.size and (y.min() < -1 or y.max() >= self.num_tags):
            return f"tags are numbered from 0 to {self.num_tags - 1} (-1 for padding), but the outcome has {y.max()}"
        rows = np.sort(y, axis=1)
        if ((rows[:, 1:] == rows[:, :-1]) & (rows[:, 1:] >= 0)).any():
            return "a row lists a tag twice; list each tag once"
        return None
