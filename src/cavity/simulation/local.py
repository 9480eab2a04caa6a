"""All clients in one process: the embedded default, and the simulator.

Clients' data are stacked once, in buckets of similar size, padded with copies of a row at weight 0, and split over the
devices. What is queued runs as one program per bucket. Rows or latents of different shapes cannot share a program; then
each shape is a program of its own.

Time is virtual: with `seconds` per visit and client, replies come in the order in which they would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from cavity import ledger
from cavity.core import Algorithm, BlockRounds, CombiningAlgorithm, Data, Engine, EntryAlgorithm
from cavity.core.messages import (
    Acknowledgement,
    ClientRecord,
    Clients,
    ClientState,
    Message,
    Reply,
    ServerState,
    Stacked,
)
from cavity.ledger import client as client_ledger
from cavity.simulation.block import Ledger, run_block
from cavity.simulation.combined import Federation, run_combined
from cavity.simulation.drive import Work, common_inputs, message_keys, name_number, numbers_as_leaves, run_clients
from cavity.simulation.stacks import buckets, device_mesh, everywhere, splitting, spread, stack


class LocalEngine(Engine):
    """Runs queued clients when their replies are collected.

    Args:
        algorithm: both halves of the method.
        clients: client name -> data, as numpy arrays.
        seed: of all randomness.
        held_by_clients: the variant of the ledger.
        states: what the clients kept, from a checkpoint.
        seconds: virtual seconds that a visit takes, by client; without, all queued clients reply at once.
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
    ):
        self._algorithm, self._seed, self._seconds = algorithm, seed, seconds or {}
        self._traced = numbers_as_leaves(algorithm)
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
        self._states = {name: self._resized(state, padded[name]) for name, state in opened.items()}
        self._queue: list[tuple[float, Message]] = []
        self._now = 0.0

    @property
    def virtual_seconds(self) -> float | None:
        return self._now if self._seconds else None

    def submit(self, message: Message) -> None:
        self._queue.append((self._now + self._seconds.get(message.client, 0.0), message))

    def collect(self, num_replies: int) -> list[Reply]:
        self._queue.sort(key=lambda due: due[0])  # stable: those due together stay in order
        if num_replies < len(self._queue):
            horizon = self._queue[num_replies - 1][0]
        else:
            horizon = max((due for due, _ in self._queue), default=self._now)
        ready = [message for due, message in self._queue if due <= horizon]
        self._queue = [entry for entry in self._queue if entry[0] > horizon]
        self._now = max(self._now, horizon)
        return self._answer(ready)

    def client_states(self) -> dict[str, ClientState]:
        return {name: self._resized(state, self._num_units.get(name)) for name, state in self._states.items()}

    def _resized(self, state: ClientState, num_units: int | None) -> ClientState:
        """Local latents with as many units as the client's bucket has, or as the client itself."""
        if num_units is None or state.local is None:
            return state
        pending = state.pending
        if pending is not None:
            pending = replace(pending, local=self._algorithm.resized(pending.local, num_units))
        return replace(state, local=self._algorithm.resized(state.local, num_units), pending=pending)

    def advance(self, server: ServerState, num_rounds: int) -> tuple[ServerState, BlockRounds] | None:
        algorithm = self._traced
        if isinstance(algorithm, CombiningAlgorithm):
            return self._advance_combined(algorithm, server, num_rounds)
        if not (isinstance(algorithm, EntryAlgorithm) and algorithm.in_blocks and self._can_advance(server)):
            return None
        names = server.names
        start = Ledger(
            posterior=server.posterior,
            entries=stack([server.entries[name] for name in names]),
            method=server.method,
            version=np.uint32(server.version),
            sequences=np.array([server.clients[name].sequence for name in names], np.uint32),
        )
        start, prior = ledger.to_host((start, server.prior))
        numbers = jnp.asarray([name_number(name) for name in names], jnp.uint32)
        seed = jnp.asarray(self._seed, jnp.uint32)
        # on one device: what they would have to tell each other after every round costs more than it saves
        data = jax.device_put(self._buckets[0].data, self._mesh.devices[0])
        block = run_block(algorithm, prior, start, seed, numbers, data, num_rounds)
        end, rounds, num_done = ledger.to_host(block)
        if num_done == 0:
            return server, []
        said = Stacked(jax.tree.map(lambda leaf: leaf[:num_done], rounds))
        last = said[len(said) - 1]
        records = {
            name: ClientRecord(
                sequence=int(end.sequences[i]),
                settled=Acknowledgement(int(end.sequences[i]), float(last.exponents[i])),
                report=jax.tree.map(lambda leaf, i=i: leaf[i], last.report),
            )
            for i, name in enumerate(names)
        }
        rows = {name: jax.tree.map(lambda leaf, i=i: leaf[i], end.entries) for i, name in enumerate(names)}
        return replace(
            server,
            version=int(end.version),
            posterior=end.posterior,
            entries=rows,
            clients=Clients.of(records),
            method=end.method,
        ), said

    def _advance_combined(
        self, algorithm: CombiningAlgorithm, server: ServerState, num_rounds: int
    ) -> tuple[ServerState, BlockRounds] | None:
        """A block of rounds of a method that combines replies; what the clients keep goes with it."""
        if self._seconds:
            return None
        groups = [bucket.names for bucket in self._buckets]
        before = server.clients
        settled = {
            name: client_ledger.settled_local(self._states[name], before[name].settled.sequence)
            for name in server.names
        }
        start = Federation(
            posterior=server.posterior,
            method=server.method,
            version=np.uint32(server.version),
            sequences=tuple(np.array([before[name].sequence for name in group], np.uint32) for group in groups),
            local=tuple(stack([settled[name] for name in group]) for group in groups),
        )
        numbers = tuple(jnp.asarray([name_number(name) for name in group], jnp.uint32) for group in groups)
        data = tuple(jax.device_put(bucket.data, self._mesh.devices[0]) for bucket in self._buckets)
        seed = jnp.asarray(self._seed, jnp.uint32)
        end, rounds, num_done = jax.tree.map(
            np.asarray, run_combined(algorithm, start, seed, numbers, data, num_rounds)
        )
        if num_done == 0:
            return server, []
        order = [name for group in groups for name in group]
        places = np.array([order.index(name) for name in server.names])
        sequences = dict(zip(order, np.concatenate(end.sequences).tolist(), strict=True))
        said = Stacked(replace_order(jax.tree.map(lambda leaf: leaf[:num_done], rounds), places))
        last = said[len(said) - 1]
        for group, local in zip(groups, end.local, strict=True):
            for i, name in enumerate(group):
                kept = jax.tree.map(lambda leaf, i=i: leaf[i], local)
                self._states[name] = ClientState(local=kept, settled=sequences[name])
        records = {
            name: ClientRecord(
                sequence=sequences[name],
                settled=Acknowledgement(sequences[name], 1.0),
                report=jax.tree.map(lambda leaf, i=i: leaf[i].item(), last.report),
            )
            for i, name in enumerate(server.names)
        }
        posterior, method = ledger.to_host((end.posterior, end.method))
        clients, version = Clients.of(records), int(end.version)
        return replace(server, version=version, posterior=posterior, method=method, clients=clients), said

    def _can_advance(self, server: ServerState) -> bool:
        """One bucket with everybody in order, uniform rows at the server, nothing at the clients, double precision."""
        return (
            bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
            and not server.held_by_clients
            and not self._seconds
            and len(self._buckets) == 1
            and self._buckets[0].names == server.names
            and len({_signature(row) for row in server.entries.values()}) == 1
            and all(state.local is None for state in self._states.values())
            and hasattr(type(server.posterior), "log_partition")
        )

    def _answer(self, messages: list[Message]) -> list[Reply]:
        replies, groups = [], {}
        for message in messages:
            name = message.client
            if client_ledger.is_stale(self._states[name], message):
                continue
            stored = client_ledger.stored_reply(self._states[name], message)
            if stored is not None:
                replies.append(stored)
                continue
            state = self._states[name] = client_ledger.settle(self._algorithm, self._states[name], message)
            told = (client_ledger.inputs_for(state, message), state.local)
            groups.setdefault((self._places[name][0], _signature(told)), []).append((message, told))
        for (bucket, _), group in groups.items():
            replies += self._run(bucket, group)
        return replies

    def _run(self, bucket: int, group: list[tuple[Message, Any]]) -> list[Reply]:
        messages = [message for message, _ in group]
        names, data = self._buckets[bucket].names, self._buckets[bucket].data
        places = np.array([self._places[message.client][1] for message in messages])
        everybody = len(places) == len(names) and bool((places == np.arange(len(names))).all())
        if not everybody:
            data = jax.tree.map(lambda leaf: leaf[places], data)
        keys = message_keys(self._seed, messages)
        common, inputs = common_inputs([replace(message, inputs=inputs) for message, (inputs, _) in group])
        told = stack([(inputs, local) for inputs, (_, (_, local)) in zip(inputs, group, strict=True)])
        keys, (inputs, local) = spread((keys, told), self._mesh)
        mesh = splitting(self._mesh, len(messages))
        outcome = run_clients(self._traced, Work(keys, inputs, local, data, everywhere(common, mesh)), mesh)
        updates, local = jax.tree.map(np.asarray, outcome)
        replies = []
        for i, message in enumerate(messages):
            mine = jax.tree.map(lambda leaf, i=i: leaf[i], (updates, local))
            state, reply = client_ledger.commit(self._states[message.client], message, *mine)
            self._states[message.client] = state
            replies.append(reply)
        return replies


def replace_order(said: PyTree, places: np.ndarray) -> PyTree:
    """What was said of each client, in the order of `places`; a round's own numbers have no such axis."""
    return jax.tree.map(lambda leaf: leaf[:, places] if leaf.ndim > 1 else leaf, said)


def _signature(tree: PyTree) -> Any:
    """What two clients must share to run in one program: structure, shapes and kinds of numbers."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves)
