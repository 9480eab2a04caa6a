"""Learning hyperparameters: steps in them, in turn with rounds that refine the posterior (PVI, section 3.4).

No loop of its own beside the federation's: a step replaces the model, the ledger keeps its rows, and the run goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from cavity import ledger
from cavity.core import Data, Hyperparameter, Model
from cavity.core.messages import is_server_owned
from cavity.errors import CavityError
from cavity.evaluation import evidence
from cavity.fit import execution
from cavity.simulation.stacks import buckets, device_mesh

logger = logging.getLogger("cavity")
RESIDUAL = 1e-10  # nats: a slope's error is of the order of the square root


def learn(fit: Any, hyperparameters: Sequence[Any], steps: int, rounds: int, tolerance: float) -> Any:
    """The fit at the highest free energy over hyperparameters; see `Fit.learn`."""
    if not hyperparameters or not all(isinstance(part, Hyperparameter) for part in hyperparameters):
        raise CavityError("give hyperparameters to learn, such as cavity.hyperparameters.PriorScale()")
    if fit.server.held_by_clients:
        raise CavityError("hyperparameters are learned where the server holds the factors; run without held_by_clients")
    evidence.check(fit.algorithm)
    for part in hyperparameters:
        part.check(fit.algorithm.model)
    states, slope = [part.init(fit.algorithm.model) for part in hyperparameters], np.inf
    for _ in range(steps):
        model, slope = fit.algorithm.model, 0.0
        with jax.enable_x64(True):
            q = jax.tree.map(jnp.asarray, fit.posterior)
            chunks = execution.in_chunks(model, fit.needs_clients("learn hyperparameters"))
            totals = total_sums(
                hyperparameters, states, model, q, chunks, frozenset(filter(is_server_owned, fit.server.names))
            )
            for i, (part, total) in enumerate(zip(hyperparameters, totals, strict=True)):
                model, slopes, states[i] = part.step(states[i], model, q, total)
                slope = max(slope, float(np.max(np.abs(slopes), initial=0.0)))
        if slope < tolerance and fit.history[-1]["gap"] < RESIDUAL:
            return fit
        fit = with_model(fit, model).refine(rounds, RESIDUAL)
    logger.warning(
        "the free energy still rises by %.1e nats per factor of e after %d steps; call fit.learn again", slope, steps
    )
    return fit


def with_model(fit: Any, model: Model) -> Any:
    """The fit with another model of the same family: its prior times the rows as they are."""
    algorithm = eqx.tree_at(lambda algorithm: algorithm.model, fit.algorithm, model)
    server = replace(fit.server, prior=ledger.to_host(model.prior))
    return replace(fit, algorithm=algorithm, server=ledger.rebuilt(algorithm, server))


def total_sums(
    hyperparameters: Sequence[Hyperparameter],
    states: Sequence[PyTree],
    model: Model,
    q: Any,
    chunks: Iterable[Mapping[str, Data]],
    owned: frozenset[str],
) -> list[PyTree]:
    """What all clients send, added up, for each hyperparameter."""
    parts, total = (list(hyperparameters), list(states)), None
    for clients in chunks:
        theirs = {name: data for name, data in clients.items() if name not in owned}
        for bucket in buckets(theirs, device_mesh()):
            sums = jax.device_get(_sums(parts, model, q, bucket.data))
            total = sums if total is None else jax.tree.map(np.add, total, sums)
    return [None] * len(hyperparameters) if total is None else total


@eqx.filter_jit
def _sums(parts: tuple[list, list], model: Model, q: Any, data: Data) -> list[PyTree]:
    def one(data: Data) -> list[PyTree]:
        return [part.sums(state, model, q, data) for part, state in zip(*parts, strict=True)]

    return jax.tree.map(lambda leaf: leaf.sum(axis=0), jax.vmap(one)(data))
