"""The server part of methods with one entry per client: damp, merge, rebuild.

    entry_m   <- merge(entry_m, delta_m, exponent_m)     for each reply
    posterior <- rebuild(prior, entries)

Damping proposes the exponents. Where the posterior is improper, updates that make it so by themselves are refused, and
the exponents of the others are halved together until it is proper. This takes few halvings: with M updates of which
each is proper by itself, 1 / M of all exponents gives the geometric mean of M proper posteriors. A posterior that was
improper already (under an improper prior, before enough clients have replied) may stay improper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from cavity.aggregation.propriety import HALVINGS_ALONE, halved, proper_scale
from cavity.core import Damping
from cavity.core.algorithm import Absorbed, BlockPart, BlockState, Convergence, Entries, ServerPart
from cavity.core.host import is_proper, to_host
from cavity.core.messages import JOINT, Change, ClientUpdate, Reply, ServerState, Stacked
from cavity.core.types import Leaf

IMPROPER_ALONE = "its update alone makes the posterior improper"


class EntryServer(ServerPart):
    """The server part of a method with entries.

    Attributes:
        entries: what is kept per client.
        damping: proposes the exponents.
        halvings_alone: how often the exponent of a single fresh update may be halved before it is refused.
        in_blocks: whether the posterior has a log-partition and entries of one shape, which a block of rounds needs.
    """

    entries: Entries
    damping: Damping
    halvings_alone: int = eqx.field(static=True, default=HALVINGS_ALONE)
    in_blocks: bool = eqx.field(static=True, default=True)

    @property
    def block(self) -> BlockPart | None:
        return EntryBlock(self.entries, self.damping, self.halvings_alone) if self.in_blocks else None

    def initial_state(self, num_clients: int) -> PyTree:
        return self.damping.init()

    def absorb(self, server: ServerState, replies: Sequence[Reply]) -> Change:
        return absorb_into_entries(self, server, [replace(reply, update=to_host(reply.update)) for reply in replies])


def absorb_into_entries(part: EntryServer, server: ServerState, replies: Sequence[Reply]) -> Change:
    """The change for these replies, whose updates are in double precision."""
    gaps = dict(server.gaps) | {reply.client: float(reply.update.report.gap) for reply in replies}
    with jax.enable_x64(True):
        chosen, method = part.damping.choose(
            server.method,
            gaps=np.array(list(gaps.values())),
            staleness=np.array([server.version - reply.version for reply in replies]),
        )
    exponents, method = to_host((chosen, method))

    def usable(scale: float | Leaf) -> bool:
        return is_proper(merged(part.entries, server, replies, exponents * scale)[1]) or not is_proper(server.posterior)

    if not usable(1.0) and (bad := _improper_alone(part, server, replies, exponents)):
        return without(bad, server, replies, lambda others: absorb_into_entries(part, server, others))
    scale = proper_scale(usable)
    if not scale:
        return Change(server.posterior, server.entries, server.method, {reply.client: 0.0 for reply in replies})
    entries, posterior = merged(part.entries, server, replies, exponents * scale)
    given = {reply.client: float(e * scale) for reply, e in zip(replies, exponents, strict=True)}
    return Change(posterior, entries, halved(scale, part.damping.backed_off, method), given)


def merged(
    part: Entries, server: ServerState, replies: Sequence[Reply], exponents: Sequence[float] | np.ndarray
) -> tuple[dict[str, PyTree], PyTree]:
    """The entries after these replies, and the posterior of them."""
    entries = dict(server.entries)
    for reply, exponent in zip(replies, exponents, strict=True):
        key = JOINT if server.held_by_clients else reply.client
        entries[key] = part.merge(entries[key], reply.update.delta, exponent)
    return entries, part.rebuild(server.prior, list(entries.values()))


def _improper_alone(
    part: EntryServer, server: ServerState, replies: Sequence[Reply], exponents: np.ndarray
) -> dict[str, str]:
    """The clients whose update makes the posterior improper by itself, with the reason.

    A stale update, or one of a method whose updates are not quotients of proper distributions, may need more halvings.
    """

    def scale_alone(reply: Reply, exponent: float) -> float | Leaf:
        most = part.halvings_alone if reply.version == server.version else HALVINGS_ALONE
        return proper_scale(
            lambda scale: is_proper(merged(part.entries, server, [reply], np.asarray([exponent * scale]))[1]), most
        )

    bad = [reply.client for reply, e in zip(replies, exponents, strict=True) if not scale_alone(reply, e)]
    return dict.fromkeys(bad, IMPROPER_ALONE)


def without(
    bad: dict[str, str], server: ServerState, replies: Sequence[Reply], absorb: Callable[[Sequence[Reply]], Change]
) -> Change:
    """The change for the other replies; the bad ones are refused for the reasons given."""
    others = [reply for reply in replies if reply.client not in bad]
    change = absorb(others) if others else Change(server.posterior, server.entries, server.method, {})
    return replace(change, exponents=change.exponents | dict.fromkeys(bad, 0.0), reasons=change.reasons | bad)


class EntryBlock(BlockPart):
    """The same as a traced function, for entries of one shape that the server holds. Attributes as in `EntryServer`."""

    entries: Entries
    damping: Damping
    halvings_alone: int = eqx.field(static=True)

    def suits(self, server: ServerState, order: tuple[str, ...]) -> bool:
        shapes = {_signature(entry) for entry in server.entries.values()}
        in_double = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
        return in_double and not server.held_by_clients and order == server.names and len(shapes) == 1

    def shared(self, seed: Array, version: Array, state: BlockState) -> PyTree:
        return None

    def absorb(self, prior: PyTree, state: BlockState, shared: PyTree, updates: ClientUpdate) -> Absorbed:
        report, part = updates.report, self.entries
        gaps = jnp.asarray(report.gap)
        chosen, method = self.damping.choose(state.method, gaps, staleness=jnp.zeros_like(gaps))
        exponents = jnp.asarray(chosen)
        method = _like(method, state.method)

        def after(scale: float | Leaf) -> tuple[PyTree, PyTree]:
            entries = jax.vmap(part.merge)(state.entries, updates.delta, exponents * scale)
            return entries, part.rebuild(prior, Stacked(entries))

        def is_usable(client: Array) -> Bool[Array, ""]:
            """Whether the ledger would accept this update if it were the only one."""
            delta, entry = jax.tree.map(lambda leaf: leaf[client], (updates.delta, state.entries))

            def is_proper_with(scale: float | Leaf) -> Leaf:
                new = part.merge(entry, delta, exponents[client] * scale)
                entries = jax.tree.map(lambda all_, one: all_.at[client].set(one), state.entries, new)
                return part.rebuild(prior, Stacked(entries)).is_proper

            return jnp.asarray(proper_scale(is_proper_with, self.halvings_alone)) > 0

        was_proper = state.posterior.is_proper
        scale = jnp.asarray(proper_scale(lambda scale: jnp.asarray(after(scale)[1].is_proper | ~was_proper)))
        count = jnp.arange(len(gaps))
        each_usable = jax.lax.cond(
            scale == 1.0, lambda: jnp.asarray(True), lambda: jnp.all(jax.lax.map(is_usable, count))
        )
        entries, posterior = after(scale)
        finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(updates.delta)])
        log_z = state.posterior.log_partition - prior.log_partition
        bound = jnp.sum(report.free_energy) + jnp.asarray(jnp.where(jnp.isfinite(log_z), log_z, jnp.nan))
        return Absorbed(
            state=BlockState(posterior, entries, halved(scale, self.damping.backed_off, method)),
            exponents=exponents * scale,
            bound=bound,
            usable=jnp.all(finite) & each_usable & (scale > 0),
        )


class EntryConvergence(Convergence):
    """The bound of methods whose posterior is prior times entries, from the clients' reports."""

    def bound(self, server: ServerState, posterior: PyTree) -> float:
        """sum_m F_m(q) + log Z_q, the global free energy at a fixed point (PVI, property 2.2 a), in nats.

        It is exact at every synchronous round for the posterior that the clients received, since q = prior * factors
        always; in a sequential one the local terms are a pass apart. NaN before every client has replied once, and
        under an improper prior, whose constant is arbitrary.
        """
        if len(server.clients.records) < len(server.clients) or not hasattr(type(posterior), "log_partition"):
            return float("nan")
        reports = [record.report for record in server.clients.values()]
        if any(report is None for report in reports):
            return float("nan")
        with jax.enable_x64(True):
            log_z = float(posterior.log_partition - server.prior.log_partition)
        if not np.isfinite(log_z):
            return float("nan")
        return sum(float(report.free_energy) for report in reports if report is not None) + log_z


def _signature(tree: PyTree) -> tuple[PyTree, tuple[tuple[tuple[int, ...], np.dtype], ...]]:
    """Structure, shapes and kinds of numbers."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves)


def _like(new: PyTree, old: PyTree) -> PyTree:
    """The same numbers in the types of `old`, so that a loop's state does not change its type."""
    return jax.tree.map(lambda n, o: jnp.asarray(n, jnp.asarray(o).dtype), new, old)
