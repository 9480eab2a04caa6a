"""Where descent starts: at the posterior, or at a tight distribution around its mean."""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cavity.core import Density, Problem
from cavity.core.fields import as_number
from cavity.distributions.gaussian import Gaussian


class Start(eqx.Module):
    """A member of the family from which a solve begins."""

    @abc.abstractmethod
    def __call__(self, problem: Problem[Gaussian]) -> Gaussian:
        """The first member."""

    @property
    @abc.abstractmethod
    def is_posterior(self) -> bool:
        """Whether it is always the posterior, so that the first loss is that of the posterior."""


class FromPosterior(Start):
    """The posterior as the client received it."""

    def __call__(self, problem: Problem[Gaussian]) -> Gaussian:
        return problem.start

    @property
    def is_posterior(self) -> bool:
        return True


class Tight(Start):
    """The posterior's mean with one small standard deviation, which prevents the over-pruning of a network.

    Early stopping on the expected loss needs it in every solve (PVI, section 5.3.1).

    Attributes:
        sd: of every coefficient.
        jitter: while the posterior is still the prior, this times a random vector in (-1, 1) is added to the mean.
            All clients use the same vector. At the prior all hidden units of a network are equal; clients that broke
            this symmetry differently would find posteriors whose product is meaningless.
        first_only: whether later solves start at the posterior.
    """

    sd: Float[Array, ""] = eqx.field(converter=as_number)
    jitter: Float[Array, ""] = eqx.field(converter=as_number, default=0.0)
    first_only: bool = eqx.field(static=True, default=False)

    def __call__(self, problem: Problem[Gaussian]) -> Gaussian:
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


def _equal(q: Density, p: Density) -> Bool[Array, ""]:
    leaves = zip(jax.tree.leaves(q), jax.tree.leaves(p), strict=True)
    return jnp.all(jnp.stack([jnp.all(a == b) for a, b in leaves]))
