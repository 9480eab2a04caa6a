"""A block of synchronous rounds, client and server parts together, as one program.

It computes the same as rounds one after the other through the ledger, without transfers to the host in between. A round
with a reply that the ledger would refuse ends the block before it, so that refusals are decided in one place. Clients
of different shapes are stacked in buckets of their own.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree

from cavity.core import Algorithm, BlockPart, BlockRound, BlockState, Data
from cavity.core.messages import ClientInput, ClientUpdate
from cavity.core.types import Leaf
from cavity.simulation.drive import client_keys, each_client, in_own_precision, run_client


class Federation(eqx.Module):
    """What a round changes: the server's part, and for every bucket its clients' sequence numbers and local states."""

    state: BlockState
    version: Leaf
    sequences: tuple[Leaf, ...]
    local: tuple[PyTree, ...]


class BlockInputs(eqx.Module):
    """What stays the same in all rounds of a block.

    Attributes:
        algorithm: the algorithm.
        block: its server part as a traced function.
        prior: at the server.
        seed: of the run.
        names: for every bucket, the numbers of its clients' names.
        data: for every bucket, its clients' rows, stacked.
    """

    algorithm: Algorithm
    block: BlockPart
    prior: PyTree
    seed: Array
    names: tuple[Array, ...]
    data: tuple[Data, ...]


@eqx.filter_jit
def run_block(inputs: BlockInputs, start: Federation, num_rounds: int) -> tuple[Federation, BlockRound, Array]:
    """`num_rounds` rounds.

    Returns:
        The federation after them; the records, with the rounds as leading axis; and how many rounds count: the block
        ends before the first round with a reply that cannot be used.
    """
    start = jax.tree.map(jnp.asarray, start)

    def one(carry: tuple[Federation, Array], _: None) -> tuple[tuple[Federation, Array], tuple[BlockRound, Array]]:
        before, clean = carry
        new, record, usable = _round(inputs, before)
        clean = clean & usable & _is_finite(new.local)
        kept = jax.tree.map(lambda new, old: jnp.where(clean, jnp.asarray(new, old.dtype), old), new, before)
        return (kept, clean), (record, clean)

    (end, _), (records, clean) = jax.lax.scan(one, (start, jnp.asarray(True)), None, length=num_rounds)
    return end, records, jnp.sum(clean)


def _round(inputs: BlockInputs, before: Federation) -> tuple[Federation, BlockRound, Array]:
    """One round, its record, and whether every reply of it could be used."""
    algorithm, block, seed = inputs.algorithm, inputs.block, inputs.seed
    shared = block.shared(seed, jnp.asarray(before.version), before.state)
    common = in_own_precision(algorithm, ClientInput(before.state.posterior, None, shared))

    def one(
        given: tuple[Algorithm, ClientInput], key: PRNGKeyArray, entry: PyTree, local: PyTree, data: Data
    ) -> tuple[ClientUpdate, PyTree]:
        algorithm, common = given
        inputs = ClientInput(common.posterior, in_own_precision(algorithm, entry), common.shared)
        update, kept, _ = run_client(algorithm.client, key, inputs, local, data)
        return update, kept

    updates, local, sequences, first = [], [], [], 0
    for bucket, rows in enumerate(inputs.data):
        sequence = jnp.asarray(before.sequences[bucket]) + 1
        keys = client_keys(seed, jnp.full_like(sequence, before.version), sequence, inputs.names[bucket])
        entries = jax.tree.map(lambda leaf: leaf[first : first + len(sequence)], before.state.entries)  # noqa: B023
        update, kept = each_client(one, None, (algorithm, common), keys, entries, before.local[bucket], rows)
        updates.append(update)
        local.append(kept)
        sequences.append(sequence)
        first += len(sequence)
    stacked = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *updates)
    absorbed = block.absorb(inputs.prior, before.state, shared, stacked)
    record = BlockRound(stacked.report.gap, absorbed.exponents, absorbed.bound, stacked.report)
    after = Federation(absorbed.state, before.version + 1, tuple(sequences), tuple(local))
    return after, record, absorbed.usable


def _is_finite(tree: PyTree) -> Array:
    """Whether the sum of all floating leaves is finite: one pass, without comparisons."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.isfinite(sum((jnp.sum(leaf) for leaf in leaves), jnp.zeros(())))
