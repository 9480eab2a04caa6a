"""The diagonal Fisher information of a client's rows (FedEP, eq. 4), summed over them.

    H = sum over rows n of weight_n E[(d log p(y | theta, x_n) / dtheta)^2],   y ~ p(y | theta, x_n)

The outcomes are drawn from the model rather than taken from the data (Kunstner et al., 2019). The paper writes an
expectation over rows; the precision of a posterior needs their sum.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Data, Loss, Model, OutcomeDraws, PredictorModel, Problem
from cavity.errors import UnsuitableError

NUMBERS_AT_ONCE = 1 << 22  # size of the gradients of single rows that are held in memory at once, in numbers

Row = tuple[PyTree, Array, Array]  # a row's batch, weight and number


def check_fisher(model: Model, loss: Loss) -> None:
    """Raise UnsuitableError where outcomes cannot be drawn, or the loss is not a power of the likelihood."""
    _drawable(model)
    if loss.likelihood_power is None:
        raise UnsuitableError(
            f"the Fisher information is that of a likelihood, not of {type(loss).__name__}; use SampleMoments"
        )


def _drawable(model: Model) -> tuple[PredictorModel, OutcomeDraws]:
    """The model and its likelihood, from which outcomes can be drawn."""
    predictors = model.predictor_model
    draws = None if predictors is None else predictors.likelihood.outcome_draws
    if predictors is None or draws is None:
        raise UnsuitableError(
            f"the Fisher information needs a model whose likelihood can draw outcomes (`OutcomeDraws`); "
            f"{type(model).__name__} has none. Use ScaledIdentity or SampleMoments"
        )
    return predictors, draws


def diagonal_fisher(key: PRNGKeyArray, problem: Problem, theta: Float[Array, " d"]) -> Float[Array, " d"]:
    """The Fisher information at theta, with one draw of an outcome per row.

    Row n has its own key, so that padding does not change the result.
    """
    (model, likelihood), data = _drawable(problem.model), problem.data

    def squared_slope(row: Row) -> Float[Array, " d"]:
        batch, weight, number = row
        alone = jax.tree.map(lambda leaf: leaf[None], batch)

        def log_prob(theta: Array, y: Array) -> Array:
            return likelihood.log_prob(model.predictor(theta, alone)[0], y)[0]

        f, _ = model.predictor(theta, alone)
        y = likelihood.draw(jax.random.fold_in(key, number), f)
        return weight.astype(theta.dtype) * jax.grad(log_prob)(theta, jax.lax.stop_gradient(y)) ** 2

    total = _sum_over_rows(squared_slope, data, theta)
    return total * problem.likelihood_power(theta.dtype)


def _sum_over_rows(
    function: Callable[[Row], Float[Array, " d"]], data: Data, theta: Float[Array, " d"]
) -> Float[Array, " d"]:
    """The sum of `function` of each row, some rows at a time."""
    num_rows = data.weight.shape[0]
    at_once = max(1, min(num_rows, NUMBERS_AT_ONCE // theta.shape[0]))
    num_pieces = -(-num_rows // at_once)
    numbers = jnp.arange(num_pieces * at_once, dtype=jnp.uint32)
    places = jnp.minimum(numbers, num_rows - 1).reshape(num_pieces, at_once)
    counts = (numbers < num_rows).reshape(num_pieces, at_once)

    def piece(total: Array, these: tuple[Array, Array]) -> tuple[Array, None]:
        place, counted = these
        batch, weight = jax.tree.map(lambda leaf: jnp.asarray(leaf)[place], (data.batch, data.weight))
        values = jax.vmap(function)((batch, weight * counted, place))
        return total + jnp.sum(values, axis=0), None

    total, _ = jax.lax.scan(piece, jnp.zeros_like(theta), (places, counts))
    return total
