"""Choosing a number of a method (beta, gamma, delta, alpha) without a clean test set: cross-validation at the clients.

Every client deals its rows into folds. For each value and each fold the federation runs without that fold, and every
client scores the rows it held out; the one number that leaves it is their sum, and the server adds those up.

The held-out rows are contaminated like the others, so the score must not be led by them: by default it is the expected
quadratic score (the beta loss with beta = 1; for classes the Brier score up to constants), which is proper and bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.data.clients import prepare_clients
from cavity.divergences.kl import KL
from cavity.engines.drive import name_number
from cavity.errors import CavityError
from cavity.interfaces import Data, LinearModel, Loss, Model, PredictorDraws, Problem
from cavity.losses.beta import Beta
from cavity.results import run
from cavity.solvers.estimators import Estimator, Exact, LocalDraws, ParameterDraws

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_SAMPLES = 64  # Monte Carlo samples of a score, where it is not exact


@dataclass(frozen=True)
class Choice:
    """What cross-validation found.

    Attributes:
        values: those tried.
        scores: for each value the held-out loss per row (weighted), over all folds and clients; lower is better.
        standard_errors: of the difference of each score to the best one, from the folds.
    """

    values: tuple[Any, ...]
    scores: np.ndarray
    standard_errors: np.ndarray

    @property
    def best(self) -> Any:
        """The value with the lowest held-out loss."""
        return self.values[int(np.argmin(self.scores))]

    def __str__(self) -> str:
        lines = [f"{'value':>10}  {'held-out loss':>13}  {'above the best':>20}"]
        for value, score, error in zip(self.values, self.scores, self.standard_errors, strict=True):
            mark = " <" if value == self.best else ""
            above = f"{score - self.scores.min():.5f} +- {error:.5f}"
            lines.append(f"{value!s:>10}  {score:>13.5f}  {above:>20}{mark}")
        return "\n".join(lines)

    def plot(self) -> Figure:
        """The held-out loss by value."""
        from cavity import plots

        return plots.choice(self)


def choose(
    make: Callable[[Any], Any],
    values: Sequence[Any],
    clients: Mapping[str, Any],
    *,
    num_folds: int = 5,
    score: Loss | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Choice:
    """Try values of a number by cross-validation inside the clients.

    Args:
        make: the method for a value, such as `lambda beta: FedGVI(model, losses.Beta(beta))`.
        values: to try.
        clients: name -> data, as for `cavity.run`.
        num_folds: parts into which every client deals its rows.
        score: the loss of a held-out row; None is `losses.Beta(1.0)`.
        seed: of the folds and of the runs.
        progress: called with a line after each value.
        **options: of `cavity.run` (schedule, rounds, tolerance, ...).

    Example:
        >>> import cavity
        >>> model = cavity.models.linear_regression([], noise_sd=1.0)
        >>> rows = np.concatenate([np.random.default_rng(0).normal(size=40), np.full(8, 9.0)])
        >>> clients = {"leeds": (np.zeros((24, 0)), rows[::2]), "york": (np.zeros((24, 0)), rows[1::2])}
        >>> cavity.choose(lambda b: cavity.FedGVI(model, cavity.losses.Beta(b)), [0.001, 0.3], clients).best
        0.3
    """
    values = tuple(values)
    if not values:
        raise CavityError("there are no values to choose from")
    if num_folds < 2:
        raise CavityError(f"cross-validation needs at least 2 folds, not {num_folds}")
    methods = [make(value) for value in values]  # bad values fail before any work
    score = Beta(1.0) if score is None else score
    for method in methods:
        score.check(method.model)
    data = prepare_clients(methods[0].model, clients)
    folds = {name: _deal(name, rows, num_folds, seed) for name, rows in data.items()}
    losses = np.zeros((len(values), num_folds))
    for i, method in enumerate(methods):
        for fold in range(num_folds):
            rest = {name: _weighted(rows, folds[name] != fold) for name, rows in data.items()}
            posterior = jax.tree.map(jnp.asarray, run(method, rest, seed=seed, **options).posterior)
            held_out = {name: _weighted(rows, folds[name] == fold) for name, rows in data.items()}
            losses[i, fold] = sum(
                float(_held_out_loss(method.model, score, posterior, rows, jax.random.key(seed)))
                for rows in held_out.values()
            )
        if progress is not None:
            progress(f"value {values[i]}: held-out loss {losses[i].sum():.4f} ({i + 1} of {len(values)})")
    if not np.isfinite(losses).all():
        bad = [str(value) for value, row in zip(values, losses, strict=True) if not np.isfinite(row).all()]
        raise CavityError(f"the held-out loss is not finite for {', '.join(bad)}; leave those values out")
    num_rows = sum(float(np.sum(rows.weight)) for rows in data.values())
    above = losses - losses[np.argmin(losses.sum(1))]
    errors = np.std(above, axis=1, ddof=1) * np.sqrt(num_folds) / num_rows
    return Choice(values, losses.sum(1) / num_rows, errors)


def _deal(name: str, data: Data, num_folds: int, seed: int) -> np.ndarray:
    """The fold of each row, of nearly equal sizes."""
    if len(data.weight) < num_folds:
        raise CavityError(
            f"client {name!r} has {len(data.weight)} rows, fewer than {num_folds} folds; take fewer folds"
        )
    return np.random.default_rng((seed, name_number(name))).permutation(np.arange(len(data.weight)) % num_folds)


def _weighted(data: Data, kept: np.ndarray) -> Data:
    """Rows left out have weight 0, so that all folds have the same shape and one program serves them."""
    return replace(data, weight=data.weight * kept)


def _estimator(model: Model) -> Estimator:
    if isinstance(model, LinearModel):
        return Exact()
    return LocalDraws(NUM_SAMPLES) if isinstance(model, PredictorDraws) else ParameterDraws(NUM_SAMPLES)


@eqx.filter_jit
def _held_out_loss(model: Model, score: Loss, posterior: Any, rows: Data, key: PRNGKeyArray) -> Float[Array, ""]:
    """What a client computes from its held-out rows, and all that leaves it."""
    dtype = jnp.result_type(*jax.tree.leaves(model.prior))
    posterior = jax.tree.map(lambda leaf: leaf.astype(dtype), posterior)
    problem = Problem(model, score, KL(), posterior, posterior, jax.tree.map(jnp.asarray, rows))
    return _estimator(model)(key, problem, posterior)
