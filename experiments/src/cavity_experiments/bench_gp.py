"""`cavity bench gp`: the cost of a local step with the pseudo-observations of all clients, relative to pooling.

A client with 5,000 rows and M_k = 500 pseudo-observations, ten clients, M = 100 inducing inputs: the posterior is the
union of 5,000 pseudo-observations, whose features cost as much as those of as many rows. A step of a pooled sparse
Gaussian process on the same 5,000 rows is a gradient of its collapsed bound. Both are timed in turn, in one process.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from cavity.algorithms.hierarchical import HierarchicalPVI
from cavity.core import Data
from cavity.core.messages import ClientInput
from cavity.models.gp.factor_forms import Decoupled
from cavity.models.gp.pooled_gp import collapsed_bound
from cavity.models.gp.sparse_gp import sparse_gp
from cavity.solvers.shared_descent import SharedDescent
from cavity_experiments.runner import Journal, Size

BAR = 3.0
NUM_INPUTS, NUM_CLIENTS = 8, 10


def bench_gp(journal: Journal, size: Size, seed: int) -> None:
    """The ratio, as a median over pairs of steps."""
    quick = size is Size.QUICK
    num_rows, num_inducing, num_pseudo, pairs = (200, 20, 30, 3) if quick else (5_000, 100, 500, 20)
    journal.settings(rows=num_rows, inducing=num_inducing, pseudo=num_pseudo, clients=NUM_CLIENTS, pairs=pairs)
    local, central = steps(num_rows, num_inducing, num_pseudo, seed)
    timed = []
    for _ in range(pairs):
        timed.append((_seconds(local), _seconds(central)))
        journal.row("steps", local=timed[-1][0], pooled=timed[-1][1])
    ratio = float(np.median([mine / theirs for mine, theirs in timed]))
    name = "sgp-8 a local step / a pooled step on the same rows"
    journal.check(name, ratio, f"<= {BAR:g}", None if quick else ratio <= BAR)


def _seconds(step: Any) -> float:
    began = perf_counter()
    jax.block_until_ready(step())
    return perf_counter() - began


def steps(num_rows: int, num_inducing: int, num_pseudo: int, seed: int) -> tuple[Any, Any]:
    """A step of each, compiled."""
    rng = np.random.default_rng(seed)
    x = jnp.asarray(rng.normal(size=(num_rows, NUM_INPUTS)))
    y = jnp.sin(x[:, 0]) + 0.1 * jnp.asarray(rng.normal(size=num_rows))
    model = sparse_gp(NUM_INPUTS, num_inducing=num_inducing, form=Decoupled(num_pseudo), seed=seed)
    algorithm = HierarchicalPVI(model)
    data = Data((x, y), jnp.ones(num_rows), jnp.asarray(num_rows))
    entries = algorithm.server.entries
    empty = entries.initial()
    posterior = jax.tree.map(jnp.asarray, entries.rebuild(algorithm.prior, [empty] * NUM_CLIENTS))
    problem = algorithm.client.problem(ClientInput(posterior, empty), None, data)
    solver = SharedDescent(optax.adam)
    state = solver.init(problem)
    local = eqx.filter_jit(solver.step)
    gradient = eqx.filter_jit(eqx.filter_value_and_grad(lambda phi, model, x, y: collapsed_bound(model, phi, x, y)))
    phi, key = model.start, jax.random.key(seed)
    both = (lambda: local(key, problem, state), lambda: gradient(phi, model, x, y))
    for step in both:
        jax.block_until_ready(step())
    return both
