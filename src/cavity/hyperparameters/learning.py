"""Learning hyperparameters: steps in them, in turn with rounds that refine the posterior (PVI, section 3.4).

There is no second training loop: a step replaces the model, the ledger keeps its entries, and the run continues.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from cavity import ledger
from cavity.core import Data, Distribution, Hyperparameter, Model
from cavity.core.fields import require_kind
from cavity.errors import CavityError
from cavity.evaluation import evidence
from cavity.fit import method
from cavity.fit.fit import Fit
from cavity.simulation.stacks import buckets, device_mesh

logger = logging.getLogger("cavity")
GAP = 1e-10  # nats: the error of a slope is of the order of the square root


def learn(fit: Fit, hyperparameters: Sequence[Hyperparameter], steps: int, rounds: int, tolerance: float) -> Fit:
    """The fit at the highest free energy over hyperparameters; see `Fit.learn`.

    Args:
        fit: the fit, with the data of its clients.
        hyperparameters: at least one.
        steps: maximum number of steps.
        rounds: maximum number of rounds after each step.
        tolerance: stop when the slope of the free energy in the log of every value is below this, in nats.

    Returns:
        The fit with the learned hyperparameters.
    """
    wanted = "give hyperparameters to learn, such as cavity.hyperparameters.PriorScale()"
    if not hyperparameters:
        raise CavityError(wanted)
    for part in hyperparameters:
        require_kind(part, Hyperparameter, wanted)
    if fit.server.held_by_clients:
        raise CavityError('hyperparameters are learned where the server keeps the factors; run with factors="server"')
    evidence.check(fit.algorithm)
    for part in hyperparameters:
        part.check(fit.algorithm.model)
    states, slope = [part.init(fit.algorithm.model) for part in hyperparameters], np.inf
    for _ in range(steps):
        model, slope = fit.algorithm.model, 0.0
        with jax.enable_x64(True):
            q = jax.tree.map(jnp.asarray, fit.posterior)
            chunks = fit.population("learn hyperparameters").chunks()
            totals = total_sums(hyperparameters, states, model, q, chunks, method.server_entries(fit.server))
            for i, (part, total) in enumerate(zip(hyperparameters, totals, strict=True)):
                model, slopes, states[i] = part.step(states[i], model, q, total)
                slope = max(slope, float(np.max(np.abs(slopes), initial=0.0)))
        if slope < tolerance and fit.history[-1]["gap"] < GAP:
            return fit
        fit = with_model(fit, model).refine(rounds, GAP)
    logger.warning(
        "hyperparameters have not converged: after %d steps the free energy rises by %.1e nats per factor of e; call "
        "fit.learn again",
        steps,
        slope,
    )
    return fit


def with_model(fit: Fit, model: Model) -> Fit:
    """The fit with another model of the same family: the new prior times the same factors.

    Args:
        fit: the fit.
        model: the other model.

    Returns:
        The fit with the model, not refined yet.
    """
    algorithm = eqx.tree_at(lambda algorithm: algorithm.model, method.with_factors(fit.algorithm), model)
    server = replace(fit.server, prior=ledger.to_host(model.prior))
    return replace(fit, algorithm=algorithm, server=ledger.rebuilt(algorithm, server))


def total_sums(
    hyperparameters: Sequence[Hyperparameter],
    states: Sequence[PyTree],
    model: Model,
    q: Distribution,
    chunks: Iterable[Mapping[str, Data]],
    server_entries: frozenset[str],
) -> list[PyTree]:
    """What all clients send, added up.

    Args:
        hyperparameters: what is learned.
        states: the state of each.
        model: with the present values.
        q: the posterior.
        chunks: the rows of all clients, which may come in groups.
        server_entries: names of entries that belong to the server, which are no clients.

    Returns:
        One sum per hyperparameter.
    """
    parts, total = (list(hyperparameters), list(states)), None
    for clients in chunks:
        theirs = {name: data for name, data in clients.items() if name not in server_entries}
        for bucket in buckets(theirs, device_mesh()):
            sums = jax.device_get(_sums(parts, model, q, bucket.data))
            total = sums if total is None else jax.tree.map(np.add, total, sums)
    return [None] * len(hyperparameters) if total is None else total


@eqx.filter_jit
def _sums(parts: tuple[list, list], model: Model, q: Distribution, data: Data) -> list[PyTree]:
    def one(data: Data) -> list[PyTree]:
        return [part.sums(state, model, q, data) for part, state in zip(*parts, strict=True)]

    return jax.tree.map(lambda leaf: leaf.sum(axis=0), jax.vmap(one)(data))
