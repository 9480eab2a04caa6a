"""Rates and shares with conjugate priors: the posterior is exact for every partition of the data."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PyTree

from cavity.core import ConjugateLikelihood, Data, RowModel
from cavity.core.checks import numeric_vector
from cavity.core.distribution import D
from cavity.distributions import Beta, Dirichlet, Gamma
from cavity.errors import DataError


class _ConjugateModel(RowModel, ConjugateLikelihood[D]):
    """A model that is its own conjugate likelihood."""

    @property
    def conjugate(self) -> ConjugateLikelihood:
        return self


class BernoulliShare(_ConjugateModel[Beta]):
    """y in {0, 1} with P(y = 1) = theta, and a Beta prior of shape ()."""

    prior: Beta

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return ("share",)

    def row_log_prob(self, theta: Float[Array, ""], batch: PyTree) -> Float[Array, " n"]:
        return batch * jnp.log(theta) + (1 - batch) * jnp.log1p(-theta)

    def likelihood_factor(self, data: Data) -> tuple[Beta, Float[Array, ""]]:
        y, w = data.batch, data.weight
        return Beta(jnp.sum(w * y), jnp.sum(w * (1 - y))), jnp.zeros(())

    def prepare(self, batch: PyTree) -> PyTree:
        y = numeric_vector(batch)
        if not np.isin(y, (0, 1)).all():
            raise DataError("the outcome must be coded as 0 and 1")
        return y


class PoissonRate(_ConjugateModel[Gamma]):
    """Counts y ~ Poisson(theta), and a Gamma prior of shape ()."""

    prior: Gamma

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return ("rate",)

    def row_log_prob(self, theta: Float[Array, ""], batch: PyTree) -> Float[Array, " n"]:
        return batch * jnp.log(theta) - theta - gammaln(batch + 1.0)

    def likelihood_factor(self, data: Data) -> tuple[Gamma, Float[Array, ""]]:
        y, w = data.batch, data.weight
        return Gamma(jnp.sum(w * y), jnp.sum(w)), -jnp.sum(w * gammaln(y + 1.0))

    def prepare(self, batch: PyTree) -> PyTree:
        y = numeric_vector(batch)
        if (y < 0).any() or (y != np.round(y)).any():
            raise DataError("the outcome must be counts (0, 1, 2, ...)")
        return y


class CategoricalShares(_ConjugateModel[Dirichlet]):
    """Classes y in 0, ..., K-1 with P(y = c) = theta_c, and a Dirichlet prior."""

    prior: Dirichlet
    num_classes: int = eqx.field(static=True)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(f"share {c}" for c in range(self.num_classes))

    def row_log_prob(self, theta: Float[Array, " k"], batch: PyTree) -> Float[Array, " n"]:
        return jnp.log(theta)[batch]

    def likelihood_factor(self, data: Data) -> tuple[Dirichlet, Float[Array, ""]]:
        counts = jnp.zeros(self.num_classes, data.weight.dtype).at[data.batch].add(data.weight)
        return Dirichlet(counts), jnp.zeros(())

    def prepare(self, batch: PyTree) -> PyTree:
        y = numeric_vector(batch)
        if not np.isin(y, np.arange(self.num_classes)).all():
            raise DataError(f"the classes must be coded as 0 to {self.num_classes - 1}")
        return y.astype(np.int32)
