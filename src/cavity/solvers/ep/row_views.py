"""The few numbers f through which the loss of a single row depends on theta.

A factor of one row is a Gaussian in f, `exp(shift . f - f' precision f / 2)`. In a model with linear predictors
f = (x_1 . theta_1, ..., x_K . theta_K), so that with one predictor a row's factor has two numbers, along x. In any
other model f is theta itself.
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, PyTree

from cavity.core import LinearModel, Problem
from cavity.core.fields import Number
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian


class RowFactors(eqx.Module):
    """One Gaussian factor per row, as a function of f.

    Attributes:
        shift: precision times mean, of each row.
        precision: symmetric, of each row; not positive for an improper factor.
    """

    shift: Float[Array, "n k"]
    precision: Float[Array, "n k k"]

    def __pow__(self, exponent: Number) -> RowFactors:
        return jax.tree.map(lambda eta: exponent * eta, self)

    def __mul__(self, other: RowFactors) -> RowFactors:
        return jax.tree.map(jnp.add, self, other)

    @property
    def are_finite(self) -> Bool[Array, " n"]:
        """Whether a row's factor has neither a NaN nor an infinity."""
        return jnp.all(jnp.isfinite(self.shift), axis=-1) & jnp.all(jnp.isfinite(self.precision), axis=(-2, -1))

    def where(self, chosen: Bool[Array, " n"], other: RowFactors) -> RowFactors:
        """These factors for the chosen rows, others for the rest."""
        return RowFactors(
            jnp.where(chosen[:, None], self.shift, other.shift),
            jnp.where(chosen[:, None, None], self.precision, other.precision),
        )


class RowView(eqx.Module):
    """The rows of a problem, each as a function of few numbers."""

    problem: eqx.AbstractVar[Problem[Gaussian]]

    @property
    @abc.abstractmethod
    def num_seen(self) -> int:
        """K, the number of values that a row depends on."""

    @abc.abstractmethod
    def losses(self, f: Float[Array, "n s k"]) -> Float[Array, "n s"]:
        """The loss of each row at some values of f."""

    @abc.abstractmethod
    def moments(self, q: FullGaussian) -> tuple[Float[Array, "n k"], Float[Array, "n k k"]]:
        """Mean and covariance of f for each row, for theta ~ q."""

    @abc.abstractmethod
    def product(self, factors: RowFactors) -> FullGaussian:
        """The product of all rows' factors, as a function of theta."""

    @property
    def power(self) -> Float[Array, " n"]:
        """A row of weight w below 1 is one row whose likelihood has the power w (none at all for padding)."""
        return jnp.minimum(jnp.asarray(self.problem.data.weight), 1.0)

    @property
    def copies(self) -> Float[Array, " n"]:
        """A row of weight w above 1 is w rows, each with a factor of its own, all of them equal."""
        return jnp.maximum(jnp.asarray(self.problem.data.weight), 1.0)

    def log_likelihood(self, f: Float[Array, "n s k"]) -> Float[Array, "n s"]:
        """-loss / weight of the divergence, times the row's power: what the factor of one copy approximates."""
        values = self.losses(f)
        scale = -self.power.astype(values.dtype) / self.problem.kl_weight(values.dtype)
        return scale[:, None] * values

    def empty(self, dtype: DTypeLike) -> RowFactors:
        """Unit factors."""
        n, k = len(self.problem.data.weight), self.num_seen
        return RowFactors(jnp.zeros((n, k), dtype), jnp.zeros((n, k, k), dtype))


class PredictorView(RowView):
    """Rows of a model with linear predictors."""

    problem: Problem[Gaussian]
    model: LinearModel

    @property
    def _designs(self) -> tuple[Float[Array, "n _"], ...]:
        return self.model.designs(self.problem.data.batch)[0]

    @property
    def num_seen(self) -> int:
        return self.model.likelihood.num_predictors

    def losses(self, f: Float[Array, "n s k"]) -> Float[Array, "n s"]:
        _, y = self.model.designs(self.problem.data.batch)
        return self.problem.loss.of_predictor(self.model.likelihood, f, y[:, None])

    def moments(self, q: FullGaussian) -> tuple[Float[Array, "n k"], Float[Array, "n k k"]]:
        return q.map_moments(self._designs)

    def product(self, factors: RowFactors) -> FullGaussian:
        designs, copies = self._designs, self.copies.astype(factors.shift.dtype)
        shift, precision = copies[:, None] * factors.shift, copies[:, None, None] * factors.precision
        return FullGaussian(
            jnp.concatenate([x.T @ shift[:, k] for k, x in enumerate(designs)]),
            jnp.block(
                [[(x * precision[:, k, m, None]).T @ z for m, z in enumerate(designs)] for k, x in enumerate(designs)]
            ),
        )


class ThetaView(RowView):
    """Rows of any other model: each depends on all of theta."""

    problem: Problem[Gaussian]

    @property
    def num_seen(self) -> int:
        return self.problem.start.dimension

    def losses(self, f: Float[Array, "n s k"]) -> Float[Array, "n s"]:
        problem = self.problem

        def of_row(thetas: Float[Array, "s k"], row: PyTree) -> Float[Array, " s"]:
            batch = jax.tree.map(lambda leaf: leaf[None], row)
            return jax.vmap(lambda theta: problem.loss(problem.model, theta, batch)[0])(thetas)

        return jax.vmap(of_row)(f, problem.data.batch)

    def moments(self, q: FullGaussian) -> tuple[Float[Array, "n k"], Float[Array, "n k k"]]:
        n, k = len(self.problem.data.weight), q.dimension
        return jnp.broadcast_to(q.mean, (n, k)), jnp.broadcast_to(q.covariance, (n, k, k))

    def product(self, factors: RowFactors) -> FullGaussian:
        copies = self.copies.astype(factors.shift.dtype)
        return FullGaussian(copies @ factors.shift, jnp.einsum("n,nkl->kl", copies, factors.precision))


def row_view(problem: Problem[Gaussian]) -> RowView:
    """Through the predictors where the model has linear ones, else in theta."""
    linear = problem.model.linear_model
    return ThetaView(problem) if linear is None else PredictorView(problem, linear)
