"""Where descent starts: at the posterior, or at a tight distribution around its mean."""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cavity.core import Problem
from cavity.core.fields import as_number


class Start(eqx.Module):
    """A member of the family from which a solve begins."""

    @abc.abstractmethod
    def __call__(self, problem: Problem) -> Any:
        """The first member."""

    @property
    @abc.abstractmethod
    def is_posterior(self) -> bool:
        """Whether it always is the posterior, so that the first loss is that of the posterior."""


class FromPosterior(Start):
    """The posterior as the client was told."""

    def __call__(self, problem: Problem) -> Any:
        return problem.start

    @property
    def is_posterior(self) -> bool:
        return True


class Tight(Start):
    """The posterior's mean with one small standard deviation: what keeps a network from pruning itself.

    Early stopping on the expected loss needs it in every solve (PVI, section 5.3.1).

    Attributes:
        sd: of every coefficient.
        jitter: while the posterior still is the prior, this much of a random vector in (-1, 1) is added to the mean.
            It is the same vector at all clients: at the prior a network's hidden units are all alike, and clients that
            told them apart each in its own way would find posteriors that cannot be multiplied.
        first_only: later solves start at the posterior.
    """

    sd: Float[Array, ""] = eqx.field(converter=as_number)
    jitter: Float[Array, ""] = eqx.field(converter=as_number, default=0.0)
    first_only: bool = eqx.field(static=True, default=False)

    def __call__(self, problem: Problem) -> Any:
        posterior = problem.start
        scale, below = posterior.root
        is_prior = _equal(posterior, problem.model.prior)
        noise = jax.random.uniform(jax.random.key(0), posterior.mean.shape, posterior.mean.dtype, -1.0, 1.0)
        mean = posterior.mean + jnp.where(is_prior, self.jitter.astype(noise.dtype) * noise, 0.0)
        none_below = None if below is None else jnp.zeros_like(below)
        tight = posterior.from_root(mean, jnp.full_like(scale, self.sd), none_below)
        if not self.first_only:
            return tight
        return jax.tree.map(lambda new, old: jnp.where(is_prior, new, old), tight, posterior)

    @property
    def is_posterior(self) -> bool:
        return False


def _equal(q: Any, p: Any) -> Bool[Array, ""]:
    leaves = zip(jax.tree.leaves(q), jax.tree.leaves(p), strict=True)
    return jnp.all(jnp.stack([jnp.all(a == b) for a, b in leaves]))
