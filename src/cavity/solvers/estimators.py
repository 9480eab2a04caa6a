"""Unbiased estimates of E_q[loss], summed over the rows of a batch, for gradient descent.

Each is a mean over Monte Carlo samples and a sum over rows, so its expectation depends neither on the number of samples
nor on how the rows are batched.
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core import Loss, Model, Problem, weighted_sum
from cavity.distributions.gaussian import Gaussian, GaussianDensity
from cavity.errors import UnsuitableError
from cavity.solvers.expectations import default_expectation


class Estimator(eqx.Module):
    """A differentiable estimate of the expected loss."""

    @abc.abstractmethod
    def check(self, model: Model, loss: Loss) -> None:
        """Raise UnsuitableError where the estimator does not apply."""

    @abc.abstractmethod
    def __call__(self, key: PRNGKeyArray, problem: Problem[Gaussian], q: GaussianDensity) -> Float[Array, ""]:
        """An unbiased estimate of E_q[sum of weight * loss] over `problem.data`."""


class Exact(Estimator):
    """No noise: quadrature over the linear predictor, or fixed nodes in theta."""

    def check(self, model: Model, loss: Loss) -> None:
        default_expectation(model).check(model, loss)

    def __call__(self, key: PRNGKeyArray, problem: Problem[Gaussian], q: GaussianDensity) -> Float[Array, ""]:
        return default_expectation(problem.model).value(problem, q)


class ParameterDraws(Estimator):
    """theta_s = mu + L noise_s, one draw for all rows of the batch."""

    num_samples: int = eqx.field(static=True, default=1)

    def check(self, model: Model, loss: Loss) -> None:
        return None

    def __call__(self, key: PRNGKeyArray, problem: Problem[Gaussian], q: GaussianDensity) -> Float[Array, ""]:
        theta = q.reparameterise(jax.random.normal(key, (self.num_samples, q.dimension), q.mean.dtype))
        return jnp.mean(jax.vmap(lambda t: problem.loss.total(problem.model, t, problem.data))(theta))


class LocalDraws(Estimator):
    """Local reparameterisation: draws of the predictors, independent between rows, which has less variance."""

    num_samples: int = eqx.field(static=True, default=1)

    def check(self, model: Model, loss: Loss) -> None:
        if model.predictor_draws is None:
            raise UnsuitableError(
                f"local reparameterisation needs a model that draws its predictors; {type(model).__name__} does not. "
                "Use ParameterDraws"
            )

    def __call__(self, key: PRNGKeyArray, problem: Problem[Gaussian], q: GaussianDensity) -> Float[Array, ""]:
        model = problem.model.predictor_draws
        assert model is not None  # `check` has been called

        def one(key: PRNGKeyArray) -> Float[Array, " n"]:
            f, y = model.draw_predictor(key, q, problem.data.batch)
            return problem.loss.of_predictor(model.likelihood, f, y)

        keys = jax.random.split(key, self.num_samples)
        losses = one(key)[None] if self.num_samples == 1 else jax.vmap(one)(keys)
        return weighted_sum(problem.data, jnp.mean(losses, axis=0))


def default_estimator(model: Model) -> Estimator:
    """Local reparameterisation where the model can draw its predictors, else draws of theta."""
    return ParameterDraws() if model.predictor_draws is None else LocalDraws()
