"""Choosing a number of an algorithm (beta, gamma, delta, alpha) without a clean test set: cross-validation at clients.

Every client divides its rows into folds. For each value and each fold all clients run without that fold, and every
client scores the rows that it held out. It sends sums over its rows: of their losses, and of the squares of the
differences between two values; the server adds them up. The runs themselves exchange factors as any run does, once for
each value and fold. The factor of all rows divided by the factor of all but one fold shows the rows of that fold, so
use few folds where rows must not be guessed.

The held-out rows are contaminated like the others. So the score must be bounded, and the lowest score is not the best
choice: rows that are wrong in the same way at every client can be predicted, and a fit that follows them predicts them.
The choice is the most robust value that is not clearly worse than the best one, by `errors` standard errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from cavity.core import (
    Algorithm,
    Data,
    Loss,
    Model,
    Problem,
    Schedule,
)
from cavity.core.client_data import owned_rows, prepare_clients
from cavity.core.random import name_number
from cavity.divergences.kl import KL
from cavity.errors import CavityError
from cavity.fit.prediction import predict
from cavity.fit.run import run
from cavity.losses.beta import Beta

NUM_SAMPLES = 64  # Monte Carlo samples of a score, where it is not exact

V = TypeVar("V")
Score = Callable[[Model, PyTree, Data], Array]  # (model, posterior, rows) -> the loss of each row
Losses = Mapping[str, Float[np.ndarray, " n"]]  # by client, of each row when it was held out


@dataclass(frozen=True)
class Choice(Generic[V]):
    """The result of cross-validation. `cavity.reporting.plots.choice` draws it.

    Attributes:
        values: those tried, from the least to the most robust.
        scores: for each value the held-out loss per row; lower is better.
        standard_errors: of the difference of each score to the lowest.
        errors: how many standard errors above the lowest a score may be.
    """

    values: tuple[V, ...]
    scores: Float[np.ndarray, " v"]
    standard_errors: Float[np.ndarray, " v"]
    errors: float

    @property
    def lowest(self) -> V:
        """The value with the lowest held-out loss."""
        return self.values[int(np.argmin(self.scores))]

    @property
    def chosen(self) -> V:
        """The most robust value that is not clearly worse than the lowest."""
        allowed = self.scores - self.scores.min() <= self.errors * self.standard_errors
        return self.values[int(np.max(np.flatnonzero(allowed)))]

    def __str__(self) -> str:
        lines = [f"{'value':>10}  {'held-out loss':>13}  {'above the lowest':>20}"]
        for value, score, error in zip(self.values, self.scores, self.standard_errors, strict=True):
            mark = " < chosen" if value == self.chosen else ""
            above = f"{score - self.scores.min():.5f} +- {error:.5f}"
            lines.append(f"{value!s:>10}  {score:>13.5f}  {above:>20}{mark}")
        return "\n".join(lines)


def choose(
    make: Callable[[V], Algorithm],
    values: Sequence[V],
    clients: Mapping[str, PyTree],
    *,
    num_folds: int = 5,
    score: Score | None = None,
    errors: float = 2.0,
    seed: int = 0,
    progress: bool | Callable[[str], None] = False,
    schedule: Schedule | None = None,
    rounds: int | None = None,
    tolerance: float = 1e-6,
) -> Choice[V]:
    """Try values of a number by cross-validation at the clients.

    Args:
        make: the algorithm for a value, such as `lambda beta: FedGVI(model, losses.Beta(beta))`.
        values: to try, from the least to the most robust.
        clients: name -> data, as for `cavity.run`.
        num_folds: number of folds into which every client divides its rows.
        score: (model, posterior, rows) -> the loss of each row, bounded. None is the Brier score of the prediction for
            two or more classes, and the expected quadratic score (the beta loss with beta = 1) for other outcomes.
        errors: choose the most robust value within this many standard errors of the lowest; 0 chooses the lowest.
        seed: random seed of the folds and of the runs.
        progress: True prints a line after each value; a function is called with the line.
        schedule: as in `cavity.run`.
        rounds: as in `cavity.run`.
        tolerance: as in `cavity.run`.

    Returns:
        The scores and the choice.

    Example:
        >>> import cavity
        >>> model = cavity.models.normal_location()
        >>> rows = np.concatenate([np.random.default_rng(0).normal(size=40), np.full(8, 9.0)])
        >>> clients = {"leeds": rows[::2], "york": rows[1::2]}
        >>> cavity.choose(lambda b: cavity.FedGVI(model, cavity.losses.Beta(b)), [0.001, 0.3], clients).chosen
        0.3
    """
    values = tuple(values)
    if not values:
        raise CavityError("there are no values to choose from; give at least one")
    if num_folds < 2:
        raise CavityError(f"cross-validation needs at least 2 folds, not {num_folds}")
    if not errors >= 0:
        raise CavityError(f"errors must be at least 0, not {errors}")
    algorithms = [make(value) for value in values]  # invalid values fail before any work
    score = default_score(algorithms[0].model) if score is None else score
    model = algorithms[0].model
    data = {name: rows for name, rows in prepare_clients(model, clients).items() if name not in owned_rows(model)}
    if not any(np.any(rows.weight) for rows in data.values()):
        raise CavityError("every row has weight 0; there is nothing to choose by")
    folds = {name: fold_of_rows(name, rows, num_folds, seed) for name, rows in data.items()}
    losses: list[Losses] = []
    for value, algorithm in zip(values, algorithms, strict=True):

        def posterior(rest: Mapping[str, Data], algorithm: Algorithm = algorithm) -> PyTree:
            fit = run(algorithm, rest, seed=seed, schedule=schedule, rounds=rounds, tolerance=tolerance)
            return fit.posterior

        losses.append(_held_out_losses(algorithm, posterior, data, folds, num_folds, score))
        if not all(np.isfinite(loss).all() for loss in losses[-1].values()):
            raise CavityError(f"the held-out loss is not finite for the value {value}; omit this value")
        if progress:
            total, show = _total(data, losses[-1]), print if progress is True else progress
            show(f"value {value}: held-out loss {total:.5g} ({len(losses)} of {len(values)})")
    totals = np.array([_total(data, loss) for loss in losses])
    lowest, num_rows = losses[int(np.argmin(totals))], sum(float(np.sum(rows.weight)) for rows in data.values())
    standard_errors = [_standard_error(data, loss, lowest) for loss in losses]
    return Choice(values, totals / num_rows, np.array(standard_errors) / num_rows, errors)


def default_score(model: Model) -> Score:
    """A bounded score for the outcomes of a model.

    Args:
        model: the model.

    Returns:
        The Brier score for classes, the expected quadratic score for other outcomes.
    """
    predictors = model.predictor_model
    if predictors is not None and predictors.likelihood.has_classes and model.predictive_model is not None:
        return brier
    quadratic = Beta(1.0)
    quadratic.check(model)
    return expected_loss(quadratic)


def brier(model: Model, posterior: PyTree, rows: Data) -> Float[Array, " n"]:
    """The squared distance of the predicted probabilities from the outcome, for each row.

    Args:
        model: a model that predicts classes.
        posterior: in the model's own units.
        rows: with outcomes.

    Returns:
        One number per row.
    """
    x, y = rows.batch
    draws = NUM_SAMPLES if model.linear_model is None else None
    predicted = predict(model, posterior, x, draws, seed=0, point=False).mean
    if predicted.ndim == 1:
        return (predicted - y) ** 2
    return jnp.sum((predicted - jax.nn.one_hot(jnp.asarray(y, int), predicted.shape[1])) ** 2, axis=1)


def expected_loss(loss: Loss) -> Score:
    """E_q of a loss, for each row.

    Args:
        loss: the loss.

    Returns:
        A score for `choose`.
    """

    def score(model: Model, posterior: PyTree, rows: Data) -> Float[Array, " n"]:
        return _expected_losses(model, loss, posterior, rows)

    return score


def _held_out_losses(
    algorithm: Algorithm,
    fitted: Callable[[Mapping[str, Data]], PyTree],
    data: Mapping[str, Data],
    folds: Mapping[str, Int[np.ndarray, " n"]],
    num_folds: int,
    score: Score,
) -> Losses:
    found = {name: np.full(len(rows.weight), np.nan) for name, rows in data.items()}
    for fold in range(num_folds):
        # omitted rows have weight 0, so that all folds have the same shape and share one program
        rest = {name: replace(rows, weight=rows.weight * (folds[name] != fold)) for name, rows in data.items()}
        dtype = jnp.result_type(*jax.tree.leaves(algorithm.prior))
        posterior = jax.tree.map(lambda leaf, dtype=dtype: jnp.asarray(leaf, dtype), fitted(rest))
        for name, rows in data.items():
            held_out = folds[name] == fold
            found[name][held_out] = np.asarray(score(algorithm.model, posterior, rows))[held_out]
    return found


def fold_of_rows(name: str, data: Data, num_folds: int, seed: int) -> Int[np.ndarray, " n"]:
    """Divide the rows of a client into folds of nearly equal sizes.

    Args:
        name: the client.
        data: its rows.
        num_folds: number of folds.
        seed: random seed.

    Returns:
        The fold of each row.
    """
    if len(data.weight) < num_folds:
        raise CavityError(f"client {name!r} has {len(data.weight)} rows, fewer than {num_folds} folds; use fewer folds")
    return np.random.default_rng((seed, name_number(name))).permutation(np.arange(len(data.weight)) % num_folds)


def _total(data: Mapping[str, Data], losses: Losses) -> float:
    """The sum over the rows of all clients."""
    return float(sum(np.asarray(rows.weight) @ losses[name] for name, rows in data.items()))


def _standard_error(data: Mapping[str, Data], ours: Losses, theirs: Losses) -> float:
    """The standard error of the difference of two totals, from the variation of the rows' differences."""
    weights = sum(float(np.sum(rows.weight)) for rows in data.values())
    num_rows = sum(int(np.sum(np.asarray(rows.weight) > 0)) for rows in data.values())
    mean = (_total(data, ours) - _total(data, theirs)) / weights
    squares = sum(np.asarray(rows.weight) ** 2 @ (ours[n] - theirs[n] - mean) ** 2 for n, rows in data.items())
    return float(np.sqrt(squares * num_rows / max(num_rows - 1, 1)))


def _estimator(model: Model) -> Callable[..., Float[Array, ""]]:
    from cavity.solvers.estimators import Exact, LocalDraws, ParameterDraws  # loaded when it is used

    if model.linear_model is not None:
        return Exact()
    return ParameterDraws(NUM_SAMPLES) if model.predictor_draws is None else LocalDraws(NUM_SAMPLES)


@eqx.filter_jit
def _expected_losses(model: Model, loss: Loss, posterior: PyTree, rows: Data) -> Float[Array, " n"]:
    def total(weight: Float[Array, " n"]) -> Float[Array, ""]:
        problem = Problem(model, loss, KL(), posterior, posterior, replace(rows, weight=weight))
        return _estimator(model)(jax.random.key(0), problem, posterior)

    # an estimate of the sum is linear in the weights of the rows: its derivative is the loss of each row
    return jax.grad(total)(jnp.ones_like(jnp.asarray(rows.weight)))
