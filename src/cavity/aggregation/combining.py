"""The server part of methods without entries: the next posterior from all replies of a round (SFVI, averaging).

Each accepted reply is used exactly once.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from cavity.aggregation.entries import without
from cavity.core.algorithm import Absorbed, BlockPart, BlockState, ServerPart
from cavity.core.host import is_finite, is_floating, to_host
from cavity.core.messages import Change, ClientUpdate, Reply, ServerState
from cavity.core.types import Leaf

LARGE = 100_000  # numbers in an update from which a program stacks them; for fewer it would take longer to start
INFINITE_ALONE = "its update alone makes the posterior infinite"


class CombiningServer(ServerPart):
    """The server part of a method without entries. Everything here may be traced: a block of rounds is one program."""

    @abc.abstractmethod
    def exchange(self, seed: Leaf, version: Leaf, method: PyTree) -> PyTree:
        """What all clients are sent in one round: noise of the global latents, a key, shared parameters."""

    @abc.abstractmethod
    def combine(
        self, posterior: PyTree, method: PyTree, exchange: PyTree, updates: ClientUpdate, share: Leaf
    ) -> tuple[PyTree, PyTree]:
        """The next posterior and the method's next state, from the updates, stacked, of this share of all clients."""

    @abc.abstractmethod
    def bound(self, method: PyTree) -> Float[Leaf, ""] | float:
        """The estimate of the global bound in the method's state."""

    entries: None = eqx.field(default=None, init=False, static=True)

    @property
    def block(self) -> BlockPart | None:
        return CombiningBlock(self)

    def shared(self, server: ServerState) -> PyTree:
        with jax.enable_x64(True):
            drawn = _jitted_exchange(
                self, np.asarray(server.seed, np.uint32), np.asarray(server.version, np.uint32), server.method
            )
        return jax.tree.map(np.asarray, drawn)

    def absorb(self, server: ServerState, replies: Sequence[Reply]) -> Change:
        """The next posterior, in float64. Updates that make it infinite by themselves are refused."""
        updates: ClientUpdate | tuple[ClientUpdate, ...] = tuple(reply.update for reply in replies)
        if sum(np.size(leaf) for leaf in jax.tree.leaves(updates[0])) < LARGE:
            updates = jax.tree.map(lambda *leaves: np.stack(leaves), *updates)
        share = np.asarray(len(replies) / len(server.clients))
        exchange = self.shared(server)
        with jax.enable_x64(True):
            combined = _jitted_combine(self, server.posterior, server.method, exchange, updates, share)
        posterior, method = to_host(combined)
        usable = is_finite((posterior, method))
        if not usable and len(replies) > 1:
            alone = {reply.client: self.absorb(server, [reply]).exponents[reply.client] for reply in replies}
            bad = {name: INFINITE_ALONE for name, exponent in alone.items() if not exponent}
            if bad:
                return without(bad, server, replies, lambda others: self.absorb(server, others))
        if not usable:
            posterior, method = server.posterior, server.method
        return Change(posterior, server.entries, method, {reply.client: float(usable) for reply in replies})


@eqx.filter_jit
def _jitted_exchange(part: CombiningServer, seed: Leaf, version: Leaf, method: PyTree) -> PyTree:
    return part.exchange(seed, version, method)


@eqx.filter_jit
def _jitted_combine(
    part: CombiningServer,
    posterior: PyTree,
    method: PyTree,
    exchange: PyTree,
    updates: ClientUpdate | tuple[ClientUpdate, ...],
    share: Leaf,
) -> tuple[PyTree, PyTree]:
    # here, and not before: updates of millions of weights would be copied together, and in double precision
    if isinstance(updates, tuple):
        updates = jax.tree.map(lambda *leaves: jnp.stack(leaves), *updates)
    double = jax.tree.map(lambda leaf: leaf.astype(np.float64) if is_floating(leaf) else leaf, updates)
    return part.combine(posterior, method, exchange, double, share)


class CombiningBlock(BlockPart):
    """The same as a traced function."""

    part: CombiningServer

    def suits(self, server: ServerState, order: tuple[str, ...]) -> bool:
        return True

    def shared(self, seed: Array, version: Array, state: BlockState) -> PyTree:
        return self.part.exchange(seed, version, state.method)

    def absorb(self, prior: PyTree, state: BlockState, shared: PyTree, updates: ClientUpdate) -> Absorbed:
        whole = jnp.asarray(1.0, jnp.result_type(*jax.tree.leaves(state.posterior)))
        posterior, method = self.part.combine(state.posterior, state.method, shared, updates, whole)
        # a gradient that is not finite makes a posterior that is not
        return Absorbed(
            state=BlockState(posterior, None, method),
            exponents=jnp.ones_like(updates.report.gap),
            bound=jnp.asarray(self.part.bound(method)),
            usable=is_sum_finite(posterior),
        )


def is_sum_finite(tree: PyTree) -> Array:
    """Whether the sum of all floating leaves is finite: one pass, without comparisons."""
    return jnp.isfinite(
        sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating))
    )
