"""Positive numbers that define a model, learned by the gradient of the free energy (PVI, eq. 6).

Each client sends E_q[d log p(y_m | theta, epsilon) / d log epsilon], one number per hyperparameter. With q refined to
its fixed point between steps, the sum is the gradient of the collapsed bound (eqs. 72 and 73). So a quasi-Newton method
applies (BFGS in log epsilon), and no step size has to be chosen.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from cavity.core import Data, Hyperparameter, Model, Problem
from cavity.distributions.gaussian import Gaussian
from cavity.divergences.kl import KL
from cavity.errors import CavityError, UnsuitableError
from cavity.losses.nll import NegativeLogLikelihood
from cavity.solvers.expectations import default_expectation
from cavity.solvers.fixed_point import check_suitable
from cavity.solvers.requirements import require_family

FIRST_STEP, LARGEST_STEP = 0.1, 1.0  # in log epsilon


class State(eqx.Module):
    """Log epsilon, and the state of BFGS: the inverse of the curvature, the last point and the slope there."""

    log_values: Float[np.ndarray, " e"]
    inverse: Float[np.ndarray, "e e"]
    before: Float[np.ndarray, " e"] | None = None
    slope_before: Float[np.ndarray, " e"] | None = None


class ByGradient(Hyperparameter):
    """Hyperparameters of a model that a function makes from them.

    Attributes:
        make: from positive numbers to the model, in JAX.
        start: the initial value, a number or a tree of arrays: that of the model that was fitted.

    Example:
        >>> import cavity
        >>> make = lambda scale: cavity.models.logistic_regression(["dose"], prior_scale=scale)
        >>> scale = ByGradient(make, 2.5)
    """

    make: Callable[[PyTree], Model] = eqx.field(static=True)
    start: PyTree

    def check(self, model: Model) -> None:
        values = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(self.start)])
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise CavityError(f"hyperparameters must be positive numbers, not {values.tolist()}")
        made = self.make(self.start)
        if jax.tree.structure(made) != jax.tree.structure(model):
            raise UnsuitableError("`make` gives another kind of model than the fitted one; give its own function")
        check_suitable(model, NegativeLogLikelihood(), KL(), None)

    def init(self, model: Model) -> State:
        log_values = np.log(np.asarray(ravel_pytree(self.start)[0], np.float64))
        return State(log_values, np.eye(len(log_values)))

    def _made(self, log_values: Float[Array | np.ndarray, " e"]) -> Model:
        return self.make(ravel_pytree(self.start)[1](jnp.exp(log_values)))

    def sums(self, state: State, model: Model, q: Gaussian, data: Data) -> Float[Array, " e"]:
        def expected(log_values: Array) -> Array:
            made = self._made(log_values)
            problem = Problem(made, NegativeLogLikelihood(), KL(), q, q, data)
            return -default_expectation(made).value(problem, q)

        return jax.grad(expected)(jnp.asarray(state.log_values))

    def step(
        self, state: State, model: Model, q: Gaussian, sums: PyTree
    ) -> tuple[Model, Float[np.ndarray, " e"], State]:
        def expected_log_prior(log_values: Array) -> Array:
            prior = require_family(self._made(log_values), "ByGradient", Gaussian)
            return q.cross(prior) - prior.log_partition

        slope = np.asarray(sums + jax.grad(expected_log_prior)(jnp.asarray(state.log_values)))
        inverse = _inverse_curvature(state, slope)
        step = inverse @ slope
        log_values = state.log_values + step * min(1.0, LARGEST_STEP / np.max(np.abs(step), initial=LARGEST_STEP))
        made = jax.tree.map(lambda new, old: jnp.asarray(new, jnp.asarray(old).dtype), self._made(log_values), model)
        return made, slope, State(log_values, inverse, state.log_values, slope)


def _inverse_curvature(state: State, slope: Float[np.ndarray, " e"]) -> Float[np.ndarray, "e e"]:
    """The BFGS update, where F curves downward along the last step; a small first step before there was one."""
    if state.before is None or state.slope_before is None:
        return np.eye(len(slope)) * FIRST_STEP / np.max(np.abs(slope), initial=FIRST_STEP)
    moved, fallen = state.log_values - state.before, state.slope_before - slope
    curvature = moved @ fallen
    if not curvature > 0:
        return 2.0 * state.inverse
    is_first = np.array_equal(state.inverse, state.inverse[0, 0] * np.eye(len(slope)))
    inverse = np.eye(len(slope)) * curvature / (fallen @ fallen) if is_first else state.inverse
    left = np.eye(len(slope)) - np.outer(moved, fallen) / curvature
    return left @ inverse @ left.T + np.outer(moved, moved) / curvature
