"""E_q[loss] and its derivatives under a Gaussian q, without Monte Carlo noise.

By Bonnet's and Price's theorems, dE_q[loss]/dmu = E_q[gradient] and dE_q[loss]/dSigma = E_q[hessian] / 2, so the
expected gradient and Hessian in theta are all that the natural gradient needs (PVI, eqs. 3 and 4).
All quantities are sums over rows, weighted by `data.weight`.
"""

from __future__ import annotations

import abc
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cavity.distributions.gaussian import Gaussian
from cavity.errors import UnsuitableError
from cavity.interfaces import LinearModel, Loss, Model, Problem

Derivatives = tuple[Float[Array, ""], Float[Array, " d"], Float[Array, "..."]]


class Expectation(eqx.Module):
    """A rule for expectations under a Gaussian."""

    @abc.abstractmethod
    def check(self, model: Model, loss: Loss) -> None:
        """Raise UnsuitableError where the rule does not apply."""

    @abc.abstractmethod
    def value(self, problem: Problem, q: Gaussian) -> Float[Array, ""]:
        """E_q[loss], summed over rows; differentiable in q."""

    @abc.abstractmethod
    def derivatives(self, problem: Problem, q: Gaussian, *, full_hessian: bool) -> Derivatives:
        """E_q[loss], E_q[gradient] and E_q[hessian] in theta (its diagonal only, unless `full_hessian`)."""


@cache
def normal_nodes(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes [s, dimension] and weights [s] for expectations under a standard normal.

    Gauss-Hermite grids up to three dimensions. Beyond, fixed antithetic draws whose mean and covariance are
    exactly 0 and I, so that quadratics are integrated exactly.
    """
    per_axis = {1: 32, 2: 20, 3: 12}
    if dimension in per_axis:
        nodes, weights = np.polynomial.hermite_e.hermegauss(per_axis[dimension])
        grid = np.stack(np.meshgrid(*[nodes] * dimension, indexing="ij"), -1).reshape(-1, dimension)
        products = np.stack(np.meshgrid(*[weights] * dimension, indexing="ij"), -1).reshape(-1, dimension).prod(1)
        return grid, products / products.sum()
    half = max(128, 2 * dimension)
    draws = np.random.default_rng(0).standard_normal((half, dimension))
    whitened = np.linalg.solve(np.linalg.cholesky(draws.T @ draws / half), draws.T).T
    return np.concatenate([whitened, -whitened]), np.full(2 * half, 0.5 / half)


class PredictorQuadrature(Expectation):
    """For models with few linear predictors per row: an integral over f, not over theta."""

    def check(self, model: Model, loss: Loss) -> None:
        if not isinstance(model, LinearModel):
            raise UnsuitableError(
                f"quadrature over the predictor needs a model with a linear predictor; {type(model).__name__} "
                "has none. Use ThetaNodes, or leave the choice to the solver"
            )

    def _rows(self, problem: Problem, q: Gaussian):
        assert isinstance(problem.model, LinearModel)
        designs, y = problem.model.designs(problem.data.batch)
        mean, covariance = q.map_moments(designs)
        nodes, weights = normal_nodes(mean.shape[-1])
        nodes = jnp.asarray(nodes, mean.dtype)
        if mean.shape[-1] == 1:
            f = mean[:, None] + jnp.sqrt(covariance[..., 0])[:, None] * nodes
        else:
            floor = jnp.finfo(mean.dtype).tiny * jnp.eye(mean.shape[-1], dtype=mean.dtype)
            f = mean[:, None] + jnp.einsum("nkl,sl->nsk", jnp.linalg.cholesky(covariance + floor), nodes)

        def loss(f: Float[Array, "n s k"]) -> Float[Array, "n s"]:
            assert isinstance(problem.model, LinearModel)
            return problem.loss.of_predictor(problem.model.likelihood, f, y[:, None])

        return designs, f, jnp.asarray(weights, mean.dtype), loss

    def value(self, problem: Problem, q: Gaussian) -> Float[Array, ""]:
        _, f, weights, loss = self._rows(problem, q)
        return problem.data.weight @ (loss(f) @ weights)

    def derivatives(self, problem: Problem, q: Gaussian, *, full_hessian: bool) -> Derivatives:
        designs, f, weights, loss = self._rows(problem, q)
        row_weight = problem.data.weight

        def slope(f: Float[Array, "n s k"]) -> Float[Array, "n s k"]:
            return jax.grad(lambda f: jnp.sum(loss(f)))(f)  # rows and nodes are independent of each other

        def bend(k: int) -> Float[Array, "n s k"]:
            direction = jnp.zeros_like(f).at[..., k].set(1.0)
            return jax.jvp(slope, (f,), (direction,))[1]

        def expect(values: Float[Array, "n s k"]) -> Float[Array, "n k"]:
            return row_weight[:, None] * jnp.einsum("nsk,s->nk", values, weights)

        first = expect(slope(f))
        second = [expect(bend(k)) for k in range(len(designs))]
        gradient = jnp.concatenate([x.T @ first[:, k] for k, x in enumerate(designs)])
        if full_hessian:
            hessian = jnp.block(
                [
                    [(x * second[k][:, m, None]).T @ other for m, other in enumerate(designs)]
                    for k, x in enumerate(designs)
                ]
            )
        else:
            hessian = jnp.concatenate([(x**2).T @ second[k][:, k] for k, x in enumerate(designs)])
        return row_weight @ (loss(f) @ weights), gradient, hessian


class ThetaNodes(Expectation):
    """For any differentiable log likelihood of few parameters: fixed nodes in theta, theta_s = mu + L z_s."""

    def check(self, model: Model, loss: Loss) -> None:
        if not isinstance(model.prior, Gaussian):
            raise UnsuitableError(f"nodes in theta need a Gaussian family, not {type(model.prior).__name__}")

    def value(self, problem: Problem, q: Gaussian) -> Float[Array, ""]:
        nodes, weights = normal_nodes(q.dimension)
        theta = q.reparameterise(jnp.asarray(nodes, q.mean.dtype))
        return jnp.asarray(weights, theta.dtype) @ jax.vmap(lambda t: self._total(problem, t))(theta)

    def derivatives(self, problem: Problem, q: Gaussian, *, full_hessian: bool) -> Derivatives:
        nodes, weights = normal_nodes(q.dimension)
        theta = q.reparameterise(jnp.asarray(nodes, q.mean.dtype))

        def at(t: Float[Array, " d"]) -> Derivatives:
            value, gradient = jax.value_and_grad(lambda t: self._total(problem, t))(t)
            hessian = jax.hessian(lambda t: self._total(problem, t))(t)
            return value, gradient, hessian if full_hessian else jnp.diagonal(hessian)

        # one node after the other: memory of one Hessian, not of all
        averaged = jax.lax.map(at, theta)
        return jax.tree.map(lambda leaf: jnp.tensordot(jnp.asarray(weights, leaf.dtype), leaf, 1), averaged)

    def _total(self, problem: Problem, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return problem.data.weight @ problem.loss(problem.model, theta, problem.data.batch)


def default_expectation(model: Model) -> Expectation:
    """Over the predictor where the model promises one, else over theta."""
    return PredictorQuadrature() if isinstance(model, LinearModel) else ThetaNodes()
