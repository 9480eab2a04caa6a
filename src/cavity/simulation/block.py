"""A block of synchronous rounds, both halves, as one program.

The same mathematics as one round after the other through the ledger, without the way to the host in between. It is for
methods with rows of equal shapes, held by the server, whose clients keep nothing. What the ledger would refuse ends the
block before that round, so that there is one place that refuses.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from cavity.core import BlockRound, Data, RowAlgorithm
from cavity.core.messages import Brief, Stacked
from cavity.ledger import MAX_HALVINGS
from cavity.simulation.drive import client_half, client_keys, each_client, in_own_precision


class Ledger(eqx.Module):
    """The part of the server's state that a round changes, with rows stacked."""

    posterior: Any
    rows: PyTree
    method: PyTree
    version: Any
    sequences: Any


@eqx.filter_jit
def run_block(
    algorithm: RowAlgorithm, prior: Any, ledger: Ledger, seed: Array, names: Array, data: Data, num_rounds: int
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
    algorithm: RowAlgorithm, prior: Any, ledger: Ledger, seed: Array, names: Array, data: Data
) -> tuple[Ledger, BlockRound, Array]:
    """One round, and whether every reply of it could be used."""
    versions = jnp.full_like(ledger.sequences, ledger.version)
    sequences = ledger.sequences + 1
    keys = client_keys(seed, versions, sequences, names)

    def half(shared: tuple[RowAlgorithm, Any], key, row: PyTree, data: Data) -> Any:
        algorithm, posterior = shared
        brief = in_own_precision(algorithm, Brief(posterior, row))
        return client_half(algorithm, key, brief, None, data)[0]

    answers = each_client(half, None, (algorithm, ledger.posterior), keys, ledger.rows, data)
    report = answers.report
    fresh = jnp.zeros_like(report.residual)
    exponents, method = algorithm.damping.choose(ledger.method, report.residual, staleness=fresh)

    def merged(exponents: Array) -> tuple[PyTree, Any]:
        rows = jax.vmap(algorithm.merge)(ledger.rows, answers.delta, exponents)
        return rows, algorithm.rebuild(prior, Stacked(rows))

    was_proper = ledger.posterior.is_proper

    def is_usable(client: Array) -> Array:
        """Whether the ledger would accept this reply if it were the only one."""

        def posterior(exponent: Array) -> Any:
            delta, row = jax.tree.map(lambda leaf: leaf[client], (answers.delta, ledger.rows))
            new = algorithm.merge(row, delta, exponent)
            rows = jax.tree.map(lambda rows, row: rows.at[client].set(row), ledger.rows, new)
            return algorithm.rebuild(prior, Stacked(rows))

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
    halvings, exponents, method, (rows, posterior) = jax.lax.while_loop(improper, halve, start)
    finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(answers.delta)])
    log_z = ledger.posterior.log_partition - prior.log_partition
    log_z = jnp.asarray(jnp.where(jnp.isfinite(log_z), log_z, jnp.nan))
    said = BlockRound(
        residuals=report.residual,
        exponents=exponents,
        free_energy=jnp.sum(report.free_energy) + log_z,
        report=report,
    )
    new = Ledger(posterior, rows, method, ledger.version + 1, sequences)
    return new, said, jnp.all(finite) & all_usable & (halvings < MAX_HALVINGS)


def _like(new: PyTree, old: PyTree) -> PyTree:
    """The same numbers in the types of `old`, so that a loop's state does not change its type."""
    return jax.tree.map(lambda n, o: jnp.asarray(n, jnp.asarray(o).dtype), new, old)
