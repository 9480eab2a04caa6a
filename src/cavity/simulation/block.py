"""A block of synchronous rounds, both halves, as one program.

The same mathematics as one round after the other through the ledger, without the way to the host in between. It is for
methods with entries of equal shapes, held by the server, whose clients keep nothing. What the ledger would refuse
ends the block before that round, so that there is one place that refuses.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from cavity.core import BlockRound, Data, EntryAlgorithm
from cavity.core.messages import ClientInput, Stacked
from cavity.ledger import MAX_HALVINGS
from cavity.simulation.drive import client_half, client_keys, each_client, in_own_precision


class Ledger(eqx.Module):
    """The part of the server's state that a round changes, with entries stacked."""

    posterior: Any
    entries: PyTree
    method: PyTree
    version: Any
    sequences: Any


@eqx.filter_jit
def run_block(
    algorithm: EntryAlgorithm, prior: Any, ledger: Ledger, seed: Array, names: Array, data: Data, num_rounds: int
) -> tuple[Ledger, BlockRound, Array]:
    """`num_rounds` rounds; what is to be said of each has the rounds as leading axis.

    Also how many of them count: from the first on with a reply that cannot be used, the ledger stays as it was.
    """

    def one(carry: tuple[Ledger, Array], _: None) -> tuple[tuple[Ledger, Array], tuple[BlockRound, Array]]:
        ledger, clean = carry
        new, said, usable = _round(algorithm, prior, ledger, seed, names, data)
        clean = clean & usable
        return (jax.tree.map(lambda new, old: jnp.where(clean, new, old), new, ledger), clean), (said, clean)

    (ledger, _), (said, clean) = jax.lax.scan(one, (ledger, jnp.asarray(True)), None, length=num_rounds)
    return ledger, said, jnp.sum(clean)


def _round(
    algorithm: EntryAlgorithm, prior: Any, ledger: Ledger, seed: Array, names: Array, data: Data
) -> tuple[Ledger, BlockRound, Array]:
    """One round, and whether every reply of it could be used."""
    versions = jnp.full_like(ledger.sequences, ledger.version)
    sequences = ledger.sequences + 1
    keys = client_keys(seed, versions, sequences, names)

    def half(shared: tuple[EntryAlgorithm, Any], key, entry: PyTree, data: Data) -> Any:
        algorithm, posterior = shared
        inputs = in_own_precision(algorithm, ClientInput(posterior, entry))
        return client_half(algorithm, key, inputs, None, data)[0]

    updates = each_client(half, None, (algorithm, ledger.posterior), keys, ledger.entries, data)
    report = updates.report
    fresh = jnp.zeros_like(report.gap)
    exponents, method = algorithm.damping.choose(ledger.method, report.gap, staleness=fresh)

    def merged(exponents: Array) -> tuple[PyTree, Any]:
        entries = jax.vmap(algorithm.merge)(ledger.entries, updates.delta, exponents)
        return entries, algorithm.rebuild(prior, Stacked(entries))

    was_proper = ledger.posterior.is_proper

    def is_usable(client: Array) -> Array:
        """Whether the ledger would accept this reply if it were the only one."""

        def posterior(exponent: Array) -> Any:
            delta, entry = jax.tree.map(lambda leaf: leaf[client], (updates.delta, ledger.entries))
            new = algorithm.merge(entry, delta, exponent)
            entries = jax.tree.map(lambda entries, entry: entries.at[client].set(entry), ledger.entries, new)
            return algorithm.rebuild(prior, Stacked(entries))

        halved = exponents[client] / 2.0 ** jnp.arange(algorithm.halvings_alone + 1)
        return jnp.any(jax.lax.map(lambda exponent: posterior(exponent).is_proper, halved))

    def are_usable() -> Array:
        return jnp.all(jax.lax.map(is_usable, jnp.arange(len(sequences))))

    def improper(carry: tuple) -> Array:
        halvings, _, _, (_, posterior) = carry
        return was_proper & ~posterior.is_proper & (halvings < MAX_HALVINGS)

    def halve(carry: tuple) -> tuple:
        halvings, exponents, method, _ = carry
        exponents, method = exponents / 2, _like(algorithm.damping.backed_off(method), method)
        return halvings + 1, exponents, method, merged(exponents)

    method = _like(method, ledger.method)
    start = (jnp.asarray(0), exponents, method, merged(exponents))
    all_usable = jax.lax.cond(improper(start), are_usable, lambda: jnp.asarray(True))
    halvings, exponents, method, (entries, posterior) = jax.lax.while_loop(improper, halve, start)
    finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(updates.delta)])
    log_z = ledger.posterior.log_partition - prior.log_partition
    log_z = jnp.asarray(jnp.where(jnp.isfinite(log_z), log_z, jnp.nan))
    said = BlockRound(
        gaps=report.gap,
        exponents=exponents,
        free_energy=jnp.sum(report.free_energy) + log_z,
        report=report,
    )
    new = Ledger(posterior, entries, method, ledger.version + 1, sequences)
    return new, said, jnp.all(finite) & all_usable & (halvings < MAX_HALVINGS)


def _like(new: PyTree, old: PyTree) -> PyTree:
    """The same numbers in the types of `old`, so that a loop's state does not change its type."""
    return jax.tree.map(lambda n, o: jnp.asarray(n, jnp.asarray(o).dtype), new, old)
