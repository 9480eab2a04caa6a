"""Clients too many to hold: loaded in chunks from their source, the next chunk while this one is computed.

Memory is that of a few chunks, however many clients there are. It is for methods whose clients keep nothing between
messages; entries, if a method has them, are at the server.

Clients differ in size, and a chunk takes as long as its largest. If the source knows their sizes, clients of similar
size run together; the results do not depend on this.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np
from jaxtyping import PyTree

from cavity.core import Algorithm, ClientSource, Data, Engine, pad
from cavity.core.messages import ClientInput, ClientState, Message, Reply
from cavity.errors import DataError, UnsuitableError
from cavity.simulation.drive import Work, common_inputs, in_own_precision, message_keys, numbers_as_leaves, run_clients
from cavity.simulation.stacks import FEW_ROWS, device_mesh, everywhere, splitting, spread, stack

LARGEST_CHUNK = 256  # clients
CHUNK_BYTES = 2**28  # of posteriors: each client of a chunk needs some copies of the posterior


def suitable_chunk(posterior: PyTree) -> int:
    """How many clients to run together: many for a small model, few for one that fills the memory by itself."""
    num_bytes = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(posterior))
    return max(1, min(LARGEST_CHUNK, CHUNK_BYTES // max(num_bytes, 1)))


def filled(num_clients: int, chunk: int, num_devices: int) -> int:
    """Up to how many clients a chunk is filled with copies, so that few numbers occur, each with a program of its own.

    Args:
        num_clients: how many there are.
        chunk: how many are at most run together.
        num_devices: that they are distributed over.

    Returns:
        At most a quarter more, and a multiple of the number of devices where there are several clients.
    """
    step = max(1 << max(num_clients.bit_length() - 3, 0), num_devices if num_clients > 1 else 1)
    return min(-(-num_clients // step) * step, max(chunk, num_clients))


class StreamingEngine(Engine):
    """Runs queued clients chunk by chunk; `collect` returns one chunk's replies at a time.

    Args:
        algorithm: the method.
        source: where the clients' data are.
        seed: the random seed.
        chunk: how many clients are at most loaded and run together; None takes what suits the size of the posterior.

    Attributes:
        chunk: how many clients are at most loaded and run together.
    """

    def __init__(self, algorithm: Algorithm, source: ClientSource, *, seed: int = 0, chunk: int | None = None):
        self._algorithm, self._source, self._seed = algorithm, source, seed
        self.chunk = suitable_chunk(algorithm.prior) if chunk is None else chunk
        self._traced = numbers_as_leaves(algorithm)
        self._mesh = device_mesh()
        self._queue: deque[Message] = deque()
        self._sizes: dict[str, int] = {}  # rows of the clients in the queue, if the source knows them
        self._in_order = True
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="cavity-prefetch")
        self._ahead: tuple[list[Message], Future[Data]] | None = None
        self._told: tuple[ClientInput | None, ClientInput | None] = (None, None)  # as received, and on the devices
        self._compute_seconds = 0.0

    @property
    def compute_seconds(self) -> float | None:
        return self._compute_seconds

    def submit(self, message: Message) -> None:
        self._queue.append(message)
        self._in_order = False

    def collect(self, num_replies: int) -> list[Reply]:
        self._ahead = self._ahead or self._load_next()
        if self._ahead is None:
            return []
        (messages, loading), self._ahead = self._ahead, None
        data = loading.result()
        self._ahead = self._load_next()
        return self._run(messages, data)

    def client_states(self) -> dict[str, ClientState]:
        return {}

    def close(self) -> None:
        self._loader.shutdown(cancel_futures=True)

    def _load_next(self) -> tuple[list[Message], Future[Data]] | None:
        messages = self._next_chunk()
        return (messages, self._loader.submit(self._load, [m.client for m in messages])) if messages else None

    def _next_chunk(self) -> list[Message]:
        """The largest first, together with those that are not much smaller; small ones in any case.

        Clients of unknown size are taken in the order of the queue.
        """
        if not self._in_order:
            known = {m.client: self._source.num_rows(m.client) for m in self._queue}
            self._sizes = {name: size for name, size in known.items() if size is not None}
            if len(self._sizes) == len(known):
                self._queue = deque(sorted(self._queue, key=lambda m: -self._sizes[m.client]))
            self._in_order = True
        chunk: list[Message] = []
        while self._queue and len(chunk) < self.chunk and (not chunk or self._fits(chunk, self._queue[0])):
            chunk.append(self._queue.popleft())
        return chunk

    def _fits(self, chunk: list[Message], message: Message) -> bool:
        largest, size = self._sizes.get(chunk[0].client), self._sizes.get(message.client)
        if largest is None or size is None:
            return True
        return 2 * size >= largest or (len(chunk) + 1) * largest <= FEW_ROWS

    def _load(self, names: list[str]) -> Data:
        """A chunk's data in one of few shapes: rows up to a power of two."""
        try:
            loaded = self._source.load(names)
        except Exception as error:
            error.add_note(f"while the data of {_listed(names)} were loaded")
            raise
        if len(loaded) != len(names):
            raise DataError(
                f"the source returned {len(loaded)} data sets for {_listed(names)}; it must return one each"
            )
        client = self._algorithm.client
        if client.release is not None or any(client.initial_local(data) is not None for data in loaded[:1]):
            raise UnsuitableError(
                f"the clients of {type(self._algorithm).__name__} keep something between messages, which streamed "
                "clients cannot; hold them in memory"
            )
        length = 1 << (max(len(data.weight) for data in loaded) - 1).bit_length()
        padded = [pad(data, length) for data in loaded]
        return stack(padded + padded[:1] * (filled(len(padded), self.chunk, self._mesh.size) - len(padded)))

    def _run(self, messages: list[Message], data: Data) -> list[Reply]:
        filled = messages + messages[:1] * (len(data.weight) - len(messages))
        mesh = splitting(self._mesh, len(filled))
        common, inputs = common_inputs(filled)
        keys, data, own = spread((message_keys(self._seed, filled), data, stack(inputs)), self._mesh)
        work = Work(keys, own, None, data, everywhere(self._in_place(common), mesh))
        jax.block_until_ready(work)  # what is put on the devices is not computed there
        began = time.perf_counter()
        updates, _, _ = jax.block_until_ready(run_clients(self._traced, work, mesh))
        self._compute_seconds += time.perf_counter() - began
        updates = jax.tree.map(np.asarray, updates)
        return [
            Reply(m.client, m.version, m.sequence, jax.tree.map(lambda leaf, i=i: leaf[i], updates))
            for i, m in enumerate(messages)
        ]

    def _in_place(self, common: ClientInput | None) -> ClientInput | None:
        """What all clients receive, on a device and in their precision; the same for all chunks of a version."""
        if common is None:
            return None
        before, placed = self._told
        if before is None or before.posterior is not common.posterior or before.shared is not common.shared:
            placed = in_own_precision(self._algorithm, jax.tree.map(jax.numpy.asarray, common))
            self._told = common, placed
        return placed


def _listed(names: list[str], most: int = 10) -> str:
    """The names of the clients that an error may be about, in one line."""
    more = f" and {len(names) - most} others" if len(names) > most else ""
    return f"{len(names)} clients ({', '.join(map(repr, names[:most]))}{more})"
