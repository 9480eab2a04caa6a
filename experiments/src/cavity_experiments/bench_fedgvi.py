"""`cavity bench fedgvi`: the cost of robustness; each number is a ratio to a reference measured in the same run."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from cavity import losses
from cavity.aggregation import Fixed
from cavity.algorithms import PVI, FedGVI
from cavity.core import Data
from cavity.core.messages import ClientInput
from cavity.divergences import Renyi
from cavity.models import mlp_classifier, normal_location
from cavity.simulation.drive import run_client
from cavity.solvers import Gradient
from cavity.solvers.start import Tight
from cavity_experiments.core_speed import Contestant, best_of, judge, shared_out
from cavity_experiments.runner import Journal, Size

NUM_CLIENTS = 10


def bench_fedgvi(journal: Journal, size: Size, seed: int) -> None:
    """A round of a perceptron, and the conjugate update of score matching."""
    quick = size is Size.QUICK
    _network(journal, quick=quick, seed=seed)
    _score_matching(journal, quick=quick, seed=seed)


def _network(journal: Journal, *, quick: bool, seed: int) -> None:
    """(a) FedGVI (Renyi and generalised cross entropy) against PVI: the same solver, 784-200-10."""
    rows_per_client, num_steps = (100, 3) if quick else (6_000, 150)
    rng = np.random.default_rng(seed)
    num_rows = NUM_CLIENTS * rows_per_client
    rows = (rng.random((num_rows, 784), dtype=np.float32), rng.integers(0, 10, num_rows))
    model = mlp_classifier(784, (20 if quick else 200,), 10, prior_scale=0.3)
    solver = Gradient(optax.adam, 1e-3, num_steps, 256, start=Tight(0.03, 0.1, first_only=True))
    robust = losses.Tempered(10.0, losses.GeneralisedCrossEntropy(0.8))
    damping = Fixed(1 / NUM_CLIENTS)
    methods = {
        "pvi": PVI(model, solver=solver, damping=damping),
        "fedgvi": FedGVI(model, robust, Renyi(2.5), solver=solver, damping=damping),
    }
    rounds = {name: Contestant(method, shared_out(rows, NUM_CLIENTS), seed).round for name, method in methods.items()}
    seconds = best_of(1 if quick else 4, **rounds)
    for name, taken in seconds.items():
        journal.row("network", method=name, seconds=taken, steps_per_second=num_steps * NUM_CLIENTS / taken)
    ratio = seconds["fedgvi"] / seconds["pvi"]
    judge(journal, "fedgvi-8a FedGVI round / PVI round", ratio, "<= 1.15", ratio <= 1.15, quick)


def _score_matching(journal: Journal, *, quick: bool, seed: int) -> None:
    """(b) The client's conjugate update on normal rows against a plain sum of squares of the same program (XLA).

    The same sum by a tuned BLAS on all cores, which is much faster than any compiled loop, is reported too.
    """
    num_rows, dimension = (1_000 if quick else 1_000_000), 10
    rows = np.random.default_rng(seed).normal(size=(num_rows, dimension))
    model = normal_location(dimension)
    method = FedGVI(model, losses.ScoreMatching(losses.SquaredExponential(2.0)))
    data = jax.tree.map(jnp.asarray, Data(rows, np.ones(num_rows), np.asarray(num_rows)))
    inputs = jax.tree.map(jnp.asarray, ClientInput(model.prior, method.entries.initial()))
    update = eqx.filter_jit(lambda inputs, data: run_client(method.client, jax.random.key(0), inputs, None, data)[0])
    by_xla = jax.jit(lambda x: jnp.sum(x * x))
    flat = rows.ravel()
    seconds = best_of(
        1 if quick else 7,
        update=lambda: update(inputs, data),
        sum_by_xla=lambda: by_xla(data.batch),
        sum_by_blas=lambda: np.dot(flat, flat),
    )
    for name, taken in seconds.items():
        journal.row("score_matching", program=name, seconds=taken, rows_per_second=num_rows / taken)
    ratio = seconds["update"] / seconds["sum_by_xla"]
    judge(journal, "fedgvi-8b score-matching update / sum of squares by XLA", ratio, "<= 12", ratio <= 12, quick)
    journal.put("score-matching update / sum of squares by BLAS", seconds["update"] / seconds["sum_by_blas"])
