"""Several labels per row, each there or not by itself: a post has its tags, a photograph its objects."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cavity.core import Likelihood


class TagsLogit(Likelihood):
    """K independent tags, p(tag k is there | f) = 1 / (1 + exp(-f_k)).

    An outcome is the numbers of the tags that are there, in any order, filled up with -1: of hundreds of tags a row has
    a few, and so few numbers.

    Attributes:
        num_tags: K.
    """

    num_tags: int = eqx.field(static=True)
    is_discrete: ClassVar[bool] = True

    @property
    def num_predictors(self) -> int:
        return self.num_tags

    def log_prob(self, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        # sum_k y_k f_k - log(1 + e^f_k), where y_k is 1 for the tags that are listed
        listed = jnp.broadcast_to(y, (*f.shape[:-1], y.shape[-1]))
        there = jnp.take_along_axis(f, jnp.maximum(listed, 0), axis=-1)
        return jnp.sum(jnp.where(listed >= 0, there, 0.0), axis=-1) - jnp.sum(jax.nn.softplus(f), axis=-1)

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        """The probability of each tag."""
        return jax.nn.sigmoid(f)

    def check(self, y: np.ndarray) -> str | None:
        if not np.issubdtype(y.dtype, np.integer) or y.ndim != 2:
            return "the outcome must be whole numbers, one row of tags per example, filled up with -1"
        if y.size and (y.min() < -1 or y.max() >= self.num_tags):
            return f"tags are numbered from 0 to {self.num_tags - 1} (-1 where there is none); {y.max()} is another"
        rows = np.sort(y, axis=1)
        if ((rows[:, 1:] == rows[:, :-1]) & (rows[:, 1:] >= 0)).any():
            return "a row lists a tag twice; list each tag once"
        return None
