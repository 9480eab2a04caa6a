"""A block of rounds, both halves, of a method whose server combines all replies of a round: thousands in one program.

The same mathematics as one round after the other. Silos of different shapes are programs of their own within it.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from cavity.core import BlockRound, CombiningAlgorithm, Data
from cavity.core.messages import ClientInput
from cavity.simulation.drive import client_half, client_keys, each_client, in_own_precision


class Federation(eqx.Module):
    """What a round changes: the server's part, and for every bucket what its clients keep, stacked.

    Sequences are those of each bucket's clients.
    """

    posterior: Any
    method: PyTree
    version: Any
    sequences: tuple[Any, ...]
    local: tuple[PyTree, ...]


@eqx.filter_jit
def run_combined(
    algorithm: CombiningAlgorithm,
    start: Federation,
    seed: Array,
    names: tuple[Array, ...],
    data: tuple[Data, ...],
    num_rounds: int,
) -> tuple[Federation, BlockRound, Array]:
    """`num_rounds` rounds, what is to be said of each, and how many count.

    From the first one on that gives something that is not finite, the federation stays as it was.
    """
    start = jax.tree.map(jnp.asarray, start)

    def one(carry: tuple[Federation, Array], _: None) -> tuple[tuple[Federation, Array], tuple[BlockRound, Array]]:
        federation, clean = carry
        new, said = _round(algorithm, federation, seed, names, data)
        # a gradient that is not finite makes a posterior that is not; the local states are looked at too
        clean = clean & _is_finite((new.posterior, new.local))
        kept = jax.tree.map(lambda new, old: jnp.where(clean, new, old), new, federation)
        return (kept, clean), (said, clean)

    (end, _), (said, clean) = jax.lax.scan(one, (start, jnp.asarray(True)), None, length=num_rounds)
    return end, said, jnp.sum(clean)


def _round(
    algorithm: CombiningAlgorithm, federation: Federation, seed: Array, names: tuple[Array, ...], data: tuple[Data, ...]
) -> tuple[Federation, BlockRound]:
    exchange = algorithm.exchange(seed, federation.version, federation.method)
    inputs = in_own_precision(algorithm, ClientInput(federation.posterior, None, exchange))
    updates, local, sequences = [], [], []

    def half(shared: tuple[CombiningAlgorithm, ClientInput], key, local: PyTree, data: Data) -> Any:
        algorithm, inputs = shared
        return client_half(algorithm, key, inputs, local, data)

    for bucket, rows in enumerate(data):
        sequence = federation.sequences[bucket] + 1
        keys = client_keys(seed, jnp.full_like(sequence, federation.version), sequence, names[bucket])
        update, kept = each_client(half, None, (algorithm, inputs), keys, federation.local[bucket], rows)
        updates.append(update)
        local.append(kept)
        sequences.append(sequence)
    said_by_all = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *updates)
    everybody = jnp.asarray(1.0, jnp.result_type(*jax.tree.leaves(federation.posterior)))
    posterior, method = algorithm.combine(federation.posterior, federation.method, exchange, said_by_all, everybody)
    new = Federation(posterior, method, federation.version + 1, tuple(sequences), tuple(local))
    report = said_by_all.report
    said = BlockRound(
        gaps=report.gap,
        exponents=jnp.ones_like(report.gap),
        free_energy=algorithm.bound(method),
        report=report,
    )
    return _like(new, federation), said


def _is_finite(tree: PyTree) -> Array:
    """Whether the sum of all leaves is finite: one pass, and nothing to compare."""
    return jnp.isfinite(
        sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating))
    )


def _like(new: PyTree, old: PyTree) -> PyTree:
    """The same numbers in the types of `old`, so that a loop's state does not change its type."""
    return jax.tree.map(lambda n, o: jnp.asarray(n, o.dtype), new, old)
