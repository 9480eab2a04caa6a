"""All clients in one process: the embedded default, and the simulator.

Clients' data are stacked once, padded to the longest with copies of their first row at weight 0, and the
clients' halves run as one `jit(vmap(...))` over all that are queued. Rows or latents of different shapes cannot
share a program; then each shape is a program of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from cavity import ledger
from cavity.engines.drive import client_half
from cavity.interfaces import Algorithm, Data, Engine
from cavity.state import ClientState, Message, Reply


def pad(data: Data, length: int) -> Data:
    """The same rows, followed by copies of the first at weight 0 (copies, so that no loss overflows there)."""
    extra = length - len(data.weight)

    def lengthen(leaf: np.ndarray) -> np.ndarray:
        return np.concatenate([leaf, np.repeat(leaf[:1], extra, axis=0)])

    weight = np.concatenate([data.weight, np.zeros(extra)])
    return Data(jax.tree.map(lengthen, data.batch), weight, data.num_rows)


def client_keys(seed: Array, versions: Array, sequences: Array, names: Array) -> Array:
    """A key from (seed, version, attempt, client): the same in every engine, whoever else is working."""

    def one(version: Array, sequence: Array, name: Array) -> Array:
        key = jax.random.key(seed)
        for number in (version, sequence, name):
            key = jax.random.fold_in(key, number)
        return key

    return jax.vmap(one)(versions, sequences, names)


def name_number(name: str) -> int:
    """A number that depends on a client's name only, for its randomness."""
    return zlib.crc32(name.encode())


@eqx.filter_jit
def run_clients(
    algorithm: Algorithm, header: tuple, briefs: PyTree, local: PyTree, data: Data, places: Array | None
) -> tuple[PyTree, PyTree]:
    """The halves of several clients as one program; `places` picks their data out of the stack of all."""
    keys = client_keys(*header)
    if places is not None:
        data = jax.tree.map(lambda leaf: leaf[places], data)
    return eqx.filter_vmap(client_half, in_axes=(None, 0, 0, 0, 0))(algorithm, keys, briefs, local, data)


class LocalEngine(Engine):
    """Runs every queued client when replies are collected.

    Args:
        algorithm: both halves of the method.
        clients: client name -> data, as numpy arrays.
        seed: of all randomness.
        held_by_clients: the variant of the ledger.
        states: what the clients kept, from a checkpoint.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        clients: Mapping[str, Data],
        *,
        seed: int = 0,
        held_by_clients: bool = False,
        states: Mapping[str, ClientState] | None = None,
    ):
        self._algorithm, self._seed = algorithm, seed
        # a float would be a constant of the program, and each value of a sweep a program of its own
        self._traced = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, algorithm)
        self._places = {name: place for place, name in enumerate(clients)}
        longest = max(len(data.weight) for data in clients.values())
        padded = [pad(data, longest) for data in clients.values()]
        self._data = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *padded)
        self._states = {
            name: (states or {}).get(name) or ledger.open_client(algorithm, data, held_by_clients=held_by_clients)
            for name, data in clients.items()
        }
        self._queue: list[Message] = []

    def submit(self, message: Message) -> None:
        self._queue.append(message)

    def collect(self, num_replies: int) -> list[Reply]:
        queue, self._queue = self._queue, []
        replies, groups = [], {}
        for message in queue:
            name = message.client
            if ledger.is_stale(self._states[name], message):
                continue
            stored = ledger.stored_reply(self._states[name], message)
            if stored is not None:
                replies.append(stored)
                continue
            state = self._states[name] = ledger.settle(self._algorithm, self._states[name], message)
            work = (ledger.brief_for(state, message), state.local)
            groups.setdefault(_signature(work), []).append((message, work))
        for group in groups.values():
            replies += self._run(group)
        return replies

    def client_states(self) -> dict[str, ClientState]:
        return dict(self._states)

    def _run(self, group: list[tuple[Message, Any]]) -> list[Reply]:
        messages = [message for message, _ in group]
        briefs, local = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *[work for _, work in group])
        places = np.array([self._places[message.client] for message in messages])
        everybody = len(places) == len(self._places) and bool((places == np.arange(len(places))).all())
        header = (
            jnp.asarray(self._seed, jnp.uint32),
            jnp.asarray([message.version for message in messages], jnp.uint32),
            jnp.asarray([message.sequence for message in messages], jnp.uint32),
            jnp.asarray([name_number(message.client) for message in messages], jnp.uint32),
        )
        outcome = run_clients(
            self._traced, header, briefs, local, self._data, None if everybody else jnp.asarray(places)
        )
        answers, local = jax.tree.map(np.asarray, outcome)
        replies = []
        for i, message in enumerate(messages):
            mine = jax.tree.map(lambda leaf, i=i: leaf[i], (answers, local))
            state, reply = ledger.commit(self._states[message.client], message, *mine)
            self._states[message.client] = state
            replies.append(reply)
        return replies


def _signature(tree: PyTree) -> Any:
    """What two clients must share to run in one program: structure, shapes and kinds of numbers."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves)
