"""All clients in one process: the default, and the simulator.

Clients' data are stacked once, in buckets of similar size, padded with copies of a row at weight 0, and split over the
devices. What is queued runs as one program per bucket. Clients whose entries or local states have different shapes
cannot share a program; then each shape has a program of its own.

Time is simulated: with `seconds` per visit and client, replies are ordered by the time at which they would arrive.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from cavity.core import Algorithm, BlockRounds, BlockState, Data, Engine, LocalUnits
from cavity.core.host import to_host
from cavity.core.messages import (
    Acknowledgement,
    ClientInput,
    ClientRecord,
    Clients,
    ClientState,
    Message,
    Reply,
    ServerState,
    Stacked,
)
from cavity.core.random import name_number
from cavity.ledger import client as client_ledger
from cavity.simulation.block import BlockInputs, Federation, run_block
from cavity.simulation.drive import (
    Work,
    common_inputs,
    message_keys,
    numbers_as_leaves,
    private_keys,
    run_clients,
)
from cavity.simulation.stacks import buckets, device_mesh, everywhere, splitting, spread, stack

Held = tuple[ClientInput, PyTree, PyTree]  # what a client receives, keeps and has spent


class LocalEngine(Engine):
    """Runs queued clients when their replies are collected.

    Args:
        algorithm: the method.
        clients: client name -> data, as numpy arrays.
        seed: the random seed.
        held_by_clients: whether the clients keep their own entries.
        states: what the clients kept, from a checkpoint.
        seconds: virtual seconds that a visit takes, by client; without it, all queued clients reply at once.
        secret: what the clients' private randomness comes from; None draws one.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        clients: Mapping[str, Data],
        *,
        seed: int = 0,
        held_by_clients: bool = False,
        states: Mapping[str, ClientState] | None = None,
        seconds: Mapping[str, float] | None = None,
        secret: bytes | None = None,
    ):
        self._algorithm, self._seed, self._seconds = algorithm, seed, seconds or {}
        self._traced = numbers_as_leaves(algorithm)
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._mesh = device_mesh()
        self._buckets = buckets(clients, self._mesh)
        self._places = {name: (b, i) for b, bucket in enumerate(self._buckets) for i, name in enumerate(bucket.names)}
        self._num_units = {name: len(data.units.weight) for name, data in clients.items() if data.units is not None}
        opened = {
            name: (states or {}).get(name)
            or client_ledger.open_client(algorithm, data, held_by_clients=held_by_clients)
            for name, data in clients.items()
        }
        padded = {name: self._buckets[b].num_units for name, (b, _) in self._places.items()}
        self._states = {name: _resized(state, padded[name]) for name, state in opened.items()}
        self._queue: list[tuple[float, Message]] = []
        self._now = 0.0

    @property
    def virtual_seconds(self) -> float | None:
        return self._now if self._seconds else None

    def submit(self, message: Message) -> None:
        self._queue.append((self._now + self._seconds.get(message.client, 0.0), message))

    def collect(self, num_replies: int) -> list[Reply]:
        self._queue.sort(key=lambda due: due[0])  # stable: replies due at the same time keep their order
        if num_replies < len(self._queue):
            horizon = self._queue[num_replies - 1][0]
        else:
            horizon = max((due for due, _ in self._queue), default=self._now)
        ready = [message for due, message in self._queue if due <= horizon]
        self._queue = [entry for entry in self._queue if entry[0] > horizon]
        self._now = max(self._now, horizon)
        return self._replies(ready)

    def client_states(self) -> dict[str, ClientState]:
        return {name: _resized(state, self._num_units.get(name)) for name, state in self._states.items()}

    def advance(self, server: ServerState, num_rounds: int) -> tuple[ServerState, BlockRounds] | None:
        groups = [bucket.names for bucket in self._buckets]
        order = tuple(name for group in groups for name in group)
        block = self._traced.server.block
        if block is None or self._seconds or not self._can_run_as_block() or not block.suits(server, order):
            return None
        before = server.clients
        settled = {
            name: client_ledger.settled_local(self._states[name], before[name].settled.sequence) for name in order
        }
        entries = stack([server.entries[name] for name in order]) if server.entries else None
        start, prior = to_host(
            (
                Federation(
                    state=BlockState(server.posterior, entries, server.method),
                    version=np.asarray(server.version, np.uint32),
                    sequences=tuple(np.array([before[name].sequence for name in group], np.uint32) for group in groups),
                    local=(),
                ),
                server.prior,
            )
        )
        start = replace(start, local=tuple(stack([settled[name] for name in group]) for group in groups))
        numbers = tuple(jnp.asarray([name_number(name) for name in group], jnp.uint32) for group in groups)
        # on one device: communication between devices after every round would cost more than it saves
        data = tuple(jax.device_put(bucket.data, self._mesh.devices[0]) for bucket in self._buckets)
        seed = jnp.asarray(self._seed, jnp.uint32)
        run = run_block(BlockInputs(self._traced, block, prior, seed, numbers, data), start, num_rounds)
        end, rounds, num_done = jax.tree.map(np.asarray, run)
        if num_done == 0:
            return server, []
        place = {name: i for i, name in enumerate(order)}
        places = np.array([place[name] for name in server.names])
        sequences = np.concatenate(end.sequences).tolist()
        records = Stacked(_reordered(jax.tree.map(lambda leaf: leaf[:num_done], rounds), places))
        last = records[len(records) - 1]
        for group, local in zip(groups, end.local, strict=True):
            for i, name in enumerate(group):
                kept = jax.tree.map(lambda leaf, i=i: leaf[i], local)
                self._states[name] = ClientState(local=kept, settled=sequences[place[name]])
        state = to_host(end.state)
        clients = {
            name: ClientRecord(
                sequence=sequences[place[name]],
                settled=Acknowledgement(sequences[place[name]], float(last.exponents[i])),
                report=jax.tree.map(lambda leaf, i=i: leaf[i].item(), last.report),
            )
            for i, name in enumerate(server.names)
        }
        rows = {name: jax.tree.map(lambda leaf, i=i: leaf[i], state.entries) for i, name in enumerate(order)}
        return replace(
            server,
            version=int(end.version),
            posterior=state.posterior,
            entries={name: rows[name] for name in server.entries},
            method=state.method,
            clients=Clients.of(clients),
        ), records

    def _can_run_as_block(self) -> bool:
        """Whether no client has spent anything, which would have to be stored after every round."""
        return all(state.spent is None for state in self._states.values())

    def _replies(self, messages: list[Message]) -> list[Reply]:
        replies: list[Reply] = []
        groups: dict[Hashable, list[tuple[Message, Held]]] = {}
        for message in messages:
            name = message.client
            if client_ledger.is_stale(self._states[name], message):
                continue
            stored = client_ledger.stored_reply(self._states[name], message)
            if stored is not None:
                replies.append(stored)
                continue
            state = self._states[name] = client_ledger.settle(self._algorithm, self._states[name], message)
            held = (client_ledger.inputs_for(state, message), state.local, state.spent)
            groups.setdefault((self._places[name][0], _signature(held)), []).append((message, held))
        for group in groups.values():
            replies += self._run(self._places[group[0][0].client][0], group)
        return replies

    def _run(self, bucket: int, group: list[tuple[Message, Held]]) -> list[Reply]:
        messages = [message for message, _ in group]
        names, data = self._buckets[bucket].names, self._buckets[bucket].data
        places = np.array([self._places[message.client][1] for message in messages])
        all_in_order = len(places) == len(names) and bool((places == np.arange(len(names))).all())
        if not all_in_order:
            data = jax.tree.map(lambda leaf: leaf[places], data)
        keys = message_keys(self._seed, messages)
        common, inputs = common_inputs([replace(message, inputs=held[0]) for message, held in group])
        held = stack([(own, local, spent) for own, (_, (_, local, spent)) in zip(inputs, group, strict=True)])
        private = None if self._traced.client.release is None else private_keys(self._secret, messages)
        keys, (inputs, local, spent), private = spread((keys, held, private), self._mesh)
        mesh = splitting(self._mesh, len(messages))
        work = Work(keys, inputs, local, data, everywhere(common, mesh), private, spent)
        outcome = jax.tree.map(np.asarray, run_clients(self._traced, work, mesh))
        replies = []
        for i, message in enumerate(messages):
            mine = jax.tree.map(lambda leaf, i=i: leaf[i], outcome)
            state, reply = client_ledger.commit(self._states[message.client], message, *mine)
            self._states[message.client] = state
            replies.append(reply)
        return replies


def _resized(state: ClientState, num_units: int | None) -> ClientState:
    """Local states with as many units as the client's bucket has, or as the client itself."""
    if num_units is None:
        return state
    pending = state.pending
    if pending is not None:
        pending = replace(pending, local=_padded(pending.local, num_units))
    return replace(state, local=_padded(state.local, num_units), pending=pending)


def _padded(local: PyTree, num_units: int) -> PyTree:
    """A local state for so many units, where it has units."""
    return local.resized(num_units) if isinstance(local, LocalUnits) else local


def _reordered(records: PyTree, places: np.ndarray) -> PyTree:
    """What is recorded of each client, in the order of `places`; a round's own numbers have no such axis."""
    return jax.tree.map(lambda leaf: leaf[:, places] if leaf.ndim > 1 else leaf, records)


def _signature(tree: PyTree) -> Hashable:
    """What must be equal for two clients to run in one program: structure, shapes and kinds of numbers."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves)
