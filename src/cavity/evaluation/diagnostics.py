"""How far apart two posteriors are, and how far a client or a row moves one."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity import ledger
from cavity.core import Algorithm, Data, Distribution
from cavity.core.messages import ClientInput, ServerState
from cavity.errors import ImproperError


def kl(q: Distribution, reference: Distribution) -> float:
    """KL(q : reference) in nats, in float64 whatever the precision of the program.

    Args:
        q: a proper distribution.
        reference: a proper distribution of the same family.

    Returns:
        The divergence.
    """
    with jax.enable_x64(True):
        return float(ledger.to_host(q).kl(ledger.to_host(reference)))


def moments(q: Distribution) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of every entry of theta, in float64.

    Args:
        q: a distribution with `mean` and `variance`.

    Returns:
        Two flat arrays.
    """
    with jax.enable_x64(True):
        host = ledger.to_host(q)
        mean, variance = ravel_pytree(host.mean)[0], ravel_pytree(host.variance)[0]
        return np.asarray(mean), np.sqrt(np.asarray(variance))


@dataclass(frozen=True)
class Influence:
    """How far the posterior moves when a client is removed, or a row is added.

    Attributes:
        kl: KL(moved posterior : posterior), in nats.
        shift: the change of each parameter's mean, in standard deviations of the posterior.
    """

    kl: float
    shift: dict[str, float]


def influence(moved: Distribution, posterior: Distribution, names: tuple[str, ...]) -> Influence:
    """Compare a posterior that has moved with the one before.

    Args:
        moved: the posterior after the change.
        posterior: the posterior before.
        names: one per parameter.

    Returns:
        The influence of the change.
    """
    mean, sd = moments(posterior)
    shift = (moments(moved)[0] - mean) / sd
    return Influence(kl(moved, posterior), {name: float(s) for name, s in zip(names, shift, strict=True)})


def posteriors_with_rows(
    algorithm: Algorithm, server: ServerState, client: str, data: Data, rows: Data, seed: int
) -> list[Distribution]:
    """The posterior after one client solves again with one more row: one of weight 0, then each of `rows` by itself.

    The factors of the other clients stay. All rows are tried in one program. The others are compared with the first
    posterior: it has the same number of rows, hence the same mini-batches, and no additional information.

    Args:
        algorithm: the algorithm.
        server: the server's state.
        client: where the row is added.
        data: the client's rows.
        rows: the rows to add.
        seed: random seed of a stochastic solver.

    Returns:
        One posterior more than there are rows.
    """
    from cavity.simulation.drive import in_own_precision, numbers_as_leaves

    inputs = ClientInput(server.posterior, server.entries[client], algorithm.server.shared(server))
    inputs = in_own_precision(algorithm, jax.tree.map(jnp.asarray, inputs))
    key = jax.random.key(seed)
    batch = jax.tree.map(lambda leaf: np.concatenate([leaf[:1], leaf]), rows.batch)
    weight = np.concatenate([[0.0], rows.weight])
    deltas = ledger.to_host(_deltas(numbers_as_leaves(algorithm), key, inputs, data, batch, weight))
    posteriors = []
    for i in range(len(weight)):
        delta = jax.tree.map(lambda leaf, i=i: leaf[i], deltas)
        moved = server.entries | {client: ledger.entries_of(algorithm).merge(server.entries[client], delta, 1.0)}
        posteriors.append(ledger.entries_of(algorithm).rebuild(server.prior, list(moved.values())))
        if not ledger.is_proper(posteriors[-1]):
            raise ImproperError(
                f"the posterior is improper with a row added at client {client!r}; refine the fit first"
            )
    return posteriors


@eqx.filter_jit
def _deltas(
    algorithm: Algorithm,
    key: PRNGKeyArray,
    inputs: ClientInput,
    data: Data,
    batch: PyTree,
    weight: Float[Array | np.ndarray, " n"],
) -> PyTree:
    from cavity.simulation.drive import run_client

    def with_row(row: PyTree, row_weight: Float[Array, ""]) -> PyTree:
        longer = jax.tree.map(lambda rows, row: jnp.concatenate([jnp.asarray(rows), row[None]]), data.batch, row)
        weights = jnp.append(jnp.asarray(data.weight), row_weight)
        more = Data(longer, weights, jnp.asarray(data.num_rows) + 1)
        return run_client(algorithm.client, key, inputs, algorithm.client.initial_local(more), more)[0].delta

    return jax.vmap(with_row)(jax.tree.map(jnp.asarray, batch), jnp.asarray(weight))
