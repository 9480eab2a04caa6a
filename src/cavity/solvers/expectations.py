"""E_q[loss] and its derivatives under a Gaussian q, without Monte Carlo noise.

By Bonnet's and Price's theorems, dE_q[loss]/dmu = E_q[gradient] and dE_q[loss]/dSigma = E_q[hessian] / 2, so the
expected gradient and Hessian in theta are all that the natural gradient needs (PVI, eqs. 3 and 4). Here the identities
are used from right to left: the expected Hessian is twice the derivative of the quadrature sum in Sigma. The fixed
point is therefore a stationary point of that sum, however coarse its nodes are, and no second derivative is needed.
All quantities are sums over rows, weighted by `data.weight`.
"""

from __future__ import annotations

import abc
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from cavity.core import CorrectedPrior, Likelihood, Loss, Model, Problem
from cavity.core.types import Leaf
from cavity.distributions.gaussian import Gaussian, GaussianDensity, row_roots
from cavity.distributions.quadrature import fine_nodes, normal_nodes, product_nodes
from cavity.errors import UnsuitableError
from cavity.solvers.requirements import require_family, require_linear

Derivatives = tuple[Float[Array, ""], Float[Array, " d"], Float[Array, "..."]]


class Expectation(eqx.Module):
    """A rule for expectations under a Gaussian."""

    @abc.abstractmethod
    def check(self, model: Model, loss: Loss) -> None:
        """Raise UnsuitableError where the rule does not apply."""

    @abc.abstractmethod
    def value(self, problem: Problem[Gaussian], q: GaussianDensity) -> Float[Array, ""]:
        """E_q[loss], summed over rows; differentiable in q."""

    @abc.abstractmethod
    def derivatives(self, problem: Problem[Gaussian], q: Gaussian, *, full_hessian: bool) -> Derivatives:
        """E_q[loss], E_q[gradient] and E_q[hessian] in theta (its diagonal only, unless `full_hessian`)."""


class PredictorQuadrature(Expectation):
    """For models with few linear predictors per row: an integral over f, not over theta; exact where it is known.

    Attributes:
        fine: use five times as many nodes where there is one predictor, for a value that is reported, not maximised.
    """

    fine: bool = eqx.field(static=True, default=False)

    def check(self, model: Model, loss: Loss) -> None:
        require_linear(model)

    def _nodes(self, likelihood: Likelihood) -> tuple[np.ndarray, np.ndarray]:
        if self.fine and likelihood.num_predictors == 1:
            return fine_nodes()
        orders = likelihood.num_nodes
        return normal_nodes(likelihood.num_predictors) if orders is None else product_nodes(orders)

    def _value(
        self, problem: Problem, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Leaf
    ) -> Float[Array, ""]:
        likelihood = require_linear(problem.model).likelihood
        known = problem.loss.expected(likelihood, mean, covariance, y)
        if known is not None:
            return jnp.asarray(problem.data.weight) @ known
        nodes, weights = self._nodes(likelihood)
        spread = row_roots(covariance)
        f = mean[:, None] + jnp.einsum("nkl,sl->nsk", spread, jnp.asarray(nodes, mean.dtype))
        losses = problem.loss.of_predictor(likelihood, f, y[:, None])
        return jnp.asarray(problem.data.weight) @ (losses @ jnp.asarray(weights, mean.dtype))

    def value(self, problem: Problem[Gaussian], q: GaussianDensity) -> Float[Array, ""]:
        designs, y = require_linear(problem.model).designs(problem.data.batch)
        mean, covariance = q.map_moments(designs)
        return self._value(problem, mean, covariance, y)

    def derivatives(self, problem: Problem[Gaussian], q: Gaussian, *, full_hessian: bool) -> Derivatives:
        designs, y = require_linear(problem.model).designs(problem.data.batch)
        value, (slope, bend) = jax.value_and_grad(lambda moments: self._value(problem, moments[0], moments[1], y))(
            q.map_moments(designs)
        )
        bend = bend + jnp.swapaxes(bend, -1, -2)  # twice the derivative in a symmetric matrix
        gradient = jnp.concatenate([x.T @ slope[:, k] for k, x in enumerate(designs)])
        if full_hessian:
            hessian = jnp.block(
                [
                    [(x * bend[:, k, m, None]).T @ other for m, other in enumerate(designs)]
                    for k, x in enumerate(designs)
                ]
            )
        else:
            hessian = jnp.concatenate([(x**2).T @ bend[:, k, k] for k, x in enumerate(designs)])
        return value, gradient, hessian


class ThetaNodes(Expectation):
    """For any differentiable log likelihood of few parameters: fixed nodes in theta, theta_s = mu + L z_s."""

    def check(self, model: Model, loss: Loss) -> None:
        require_family(model, "an expectation over nodes in theta", Gaussian)

    def _value(self, problem: Problem, mean: Float[Array, " d"], covariance: Float[Array, "d d"]) -> Float[Array, ""]:
        nodes, weights = normal_nodes(len(mean))
        theta = mean + jnp.asarray(nodes, mean.dtype) @ jnp.linalg.cholesky(covariance).T

        totals = jax.vmap(lambda theta: problem.loss.total(problem.model, theta, problem.data))(theta)
        return jnp.asarray(weights, mean.dtype) @ totals

    def value(self, problem: Problem[Gaussian], q: GaussianDensity) -> Float[Array, ""]:
        return self._value(problem, q.mean, q.covariance)

    def derivatives(self, problem: Problem[Gaussian], q: Gaussian, *, full_hessian: bool) -> Derivatives:
        value, (gradient, bend) = jax.value_and_grad(lambda moments: self._value(problem, *moments))(
            (q.mean, q.covariance)
        )
        hessian = bend + bend.T
        return value, gradient, hessian if full_hessian else jnp.diagonal(hessian)


class RowsOrPrior(Expectation):
    """For a linear model with a corrected prior: quadrature over the predictor for rows, a closed form for the server.

    Attributes:
        fine: as in `PredictorQuadrature`.
    """

    fine: bool = eqx.field(static=True, default=False)

    def check(self, model: Model, loss: Loss) -> None:
        if model.corrected_prior is None:
            raise UnsuitableError(f"{type(model).__name__} has no correction of its prior; use PredictorQuadrature")

    def _parts(self, problem: Problem[Gaussian]) -> tuple[CorrectedPrior, Problem[Gaussian], Bool[Array, ""]]:
        model = problem.model.corrected_prior
        assert model is not None  # `check` has been called
        batch, is_server = model.seen(problem.data.batch)
        return model, replace(problem, model=model.rows, data=replace(problem.data, batch=batch)), is_server

    def value(self, problem: Problem[Gaussian], q: GaussianDensity) -> Float[Array, ""]:
        model, rows, is_server = self._parts(problem)
        weight = jnp.sum(jnp.asarray(problem.data.weight))
        return jax.lax.cond(
            is_server,
            lambda q: -weight * model.expected_correction(q.mean, q.covariance),
            lambda q: PredictorQuadrature(self.fine).value(rows, q),
            q,
        )

    def derivatives(self, problem: Problem[Gaussian], q: Gaussian, *, full_hessian: bool) -> Derivatives:
        model, rows, is_server = self._parts(problem)
        weight = jnp.sum(jnp.asarray(problem.data.weight))

        def of_prior(q: Gaussian) -> Derivatives:
            value, (gradient, bend) = jax.value_and_grad(lambda m: -weight * model.expected_correction(*m))(
                (q.mean, q.covariance)
            )
            hessian = bend + bend.T
            return value, gradient, hessian if full_hessian else jnp.diagonal(hessian)

        return jax.lax.cond(
            is_server, of_prior, lambda q: PredictorQuadrature().derivatives(rows, q, full_hessian=full_hessian), q
        )


def default_expectation(model: Model) -> Expectation:
    """Over the predictor where the model has a linear one, else over theta; few points where rows do not add up."""
    from cavity.solvers.point_set import PointSet  # which is an `Expectation`

    over_predictor = predictor_expectation(model)
    if over_predictor is not None:
        return over_predictor
    return PointSet() if model.row_model is None else ThetaNodes()


def predictor_expectation(model: Model, *, fine: bool = False) -> Expectation | None:
    """The expectation over a linear predictor.

    Args:
        model: the model.
        fine: as in `PredictorQuadrature`.

    Returns:
        The rule; None for models without a linear predictor.
    """
    if model.corrected_prior is not None:
        return RowsOrPrior(fine)
    return None if model.linear_model is None else PredictorQuadrature(fine)
