"""A likelihood whose first predictor has a known part in every row."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cavity.core import Likelihood
from cavity.core.likelihood import Outcomes
from cavity.core.types import Leaf


class WithOffset(Likelihood):
    """p(y | f_1 + offset, f_2, ...): the outcome of a row ends with its offset, one number more than without.

    Attributes:
        inner: the likelihood without offsets.
    """

    inner: Likelihood

    @property
    def ratio(self) -> str | None:
        return self.inner.ratio

    @property
    def num_predictors(self) -> int:
        return self.inner.num_predictors

    @property
    def num_outcomes(self) -> int:
        return self.inner.num_outcomes + 1

    @property
    def num_nodes(self) -> tuple[int, ...] | None:
        return self.inner.num_nodes

    def _outcome(self, y: Leaf) -> Leaf:
        return y[..., 0] if self.inner.num_outcomes == 1 else y[..., :-1]

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        y = jnp.asarray(y)
        first = f[..., :1] + y[..., -1:].astype(f.dtype)
        others = jnp.broadcast_to(f[..., 1:], (*first.shape[:-1], f.shape[-1] - 1))
        return self.inner.log_prob(jnp.concatenate([first, others], axis=-1), self._outcome(y))

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        """E[y | f], where f has the offset already."""
        return self.inner.mean(f)

    def check(self, y: np.ndarray) -> str | None:
        return self.inner.check(np.asarray(self._outcome(y)))


def without_offset(likelihood: Likelihood) -> Likelihood:
    """The likelihood of predictors that have the offset already."""
    return likelihood.inner if isinstance(likelihood, WithOffset) else likelihood
