"""A block of synchronous rounds, both halves, as one program.

The same mathematics as one round after the other through the ledger, without the way to the host in between. It is for
methods with rows of equal shapes, held by the server, whose clients keep nothing.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from cavity.engines.drive import client_half, client_keys, each_client, in_own_precision
from cavity.interfaces import BlockRound, Data, RowAlgorithm
from cavity.ledger import MAX_HALVINGS
from cavity.state import Brief, Stacked


class Ledger(eqx.Module):
    """The part of the server's state that a round changes, with rows stacked."""

    posterior: Any
    rows: PyTree
    method: PyTree
    version: Array
    sequences: Array


@eqx.filter_jit
def run_block(
    algorithm: RowAlgorithm, prior: Any, ledger: Ledger, seed: Array, names: Array, data: Data, num_rounds: int
) -> tuple[Ledger, BlockRound]:
    """`num_rounds` rounds; what is to be said of each has the rounds as leading axis."""

    def one(ledger: Ledger, _: None) -> tuple[Ledger, BlockRound]:
        return _round(algorithm, prior, ledger, seed, names, data)

    return jax.lax.scan(one, ledger, None, length=num_rounds)


def _round(
    algorithm: RowAlgorithm, prior: Any, ledger: Ledger, seed: Array, names: Array, data: Data
) -> tuple[Ledger, BlockRound]:
    versions = jnp.full_like(ledger.sequences, ledger.version)
    sequences = ledger.sequences + 1
    keys = client_keys(seed, versions, sequences, names)

    def half(shared: tuple[RowAlgorithm, Any], key, row: PyTree, data: Data) -> Any:
        algorithm, posterior = shared
        brief = in_own_precision(algorithm, Brief(posterior, row))
        return client_half(algorithm, key, brief, None, data)[0]

    answers = each_client(half, None, (algorithm, ledger.posterior), keys, ledger.rows, data)
    report = answers.report
    exponents, method = algorithm.damping.choose(ledger.method, report.residual, jnp.zeros_like(report.residual))
    usable = _finite_rows(answers.delta)

    def merged(exponents: Array) -> tuple[PyTree, Any]:
        rows = jax.vmap(algorithm.merge)(ledger.rows, answers.delta, exponents)
        rows = jax.tree.map(lambda new, old: jnp.where(_beside(usable, new), new, old), rows, ledger.rows)
        return rows, algorithm.rebuild(prior, Stacked(rows))

    def improper(carry: tuple) -> Array:
        halvings, _, _, (_, posterior) = carry
        return ~posterior.is_proper & (halvings < MAX_HALVINGS)

    def halve(carry: tuple) -> tuple:
        halvings, exponents, method, _ = carry
        exponents, method = exponents / 2, _like(algorithm.damping.backed_off(method), method)
        return halvings + 1, exponents, method, merged(exponents)

    method = _like(method, ledger.method)
    start = (jnp.asarray(0), exponents, method, merged(exponents))
    halvings, exponents, method, (rows, posterior) = jax.lax.while_loop(improper, halve, start)
    failed = halvings >= MAX_HALVINGS
    kept = Ledger(ledger.posterior, ledger.rows, ledger.method, ledger.version, ledger.sequences)
    new = Ledger(posterior, rows, method, ledger.version, ledger.sequences)
    new = jax.tree.map(lambda old, new: jnp.where(failed, old, new), kept, new)
    new = eqx.tree_at(lambda n: (n.version, n.sequences), new, (ledger.version + 1, sequences))
    log_z = ledger.posterior.log_partition - prior.log_partition
    said = BlockRound(
        residuals=report.residual,
        exponents=jnp.where(usable & ~failed, exponents, 0.0),
        free_energy=jnp.sum(report.free_energy) + log_z,
        report=report,
    )
    return new, said


def _finite_rows(delta: PyTree) -> Array:
    """Which clients' deltas hold no NaN or infinity; the others are refused, as the ledger does."""
    checks = [jnp.all(jnp.isfinite(leaf.reshape(leaf.shape[0], -1)), axis=1) for leaf in jax.tree.leaves(delta)]
    return jnp.all(jnp.stack(checks), axis=0)


def _beside(mask: Array, leaf: Array) -> Array:
    return mask.reshape(-1, *[1] * (leaf.ndim - 1))


def _like(new: PyTree, old: PyTree) -> PyTree:
    """The same numbers in the types of `old`, so that a loop's state does not change its type."""
    return jax.tree.map(lambda n, o: jnp.asarray(n, jnp.asarray(o).dtype), new, old)
