"""Clients too many to hold: loaded in chunks from their source, the next chunk while this one is computed.

Memory is that of a few chunks, however many clients there are. It is for methods whose clients keep nothing between
messages; rows, where a method has them, are at the server.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np

from cavity.engines.drive import Work, message_keys, numbers_as_leaves, run_clients
from cavity.engines.stacks import device_mesh, splitting, spread, stack
from cavity.errors import DataError, UnsuitableError
from cavity.interfaces import Algorithm, ClientSource, Data, Engine, pad
from cavity.state import ClientState, Message, Reply


class StreamingEngine(Engine):
    """Runs queued clients chunk by chunk; `collect` returns one chunk's replies at a time.

    Args:
        algorithm: both halves of the method.
        source: where the clients' data are.
        seed: of all randomness.
        chunk: how many clients are loaded and run together.
    """

    def __init__(self, algorithm: Algorithm, source: ClientSource, *, seed: int = 0, chunk: int = 256):
        self._algorithm, self._source, self._seed, self._chunk = algorithm, source, seed, chunk
        self._traced = numbers_as_leaves(algorithm)
        self._mesh = device_mesh()
        self._queue: deque[Message] = deque()
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="cavity-prefetch")
        self._ahead: tuple[list[Message], Future[Data]] | None = None

    def submit(self, message: Message) -> None:
        self._queue.append(message)

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
        messages = [self._queue.popleft() for _ in range(min(self._chunk, len(self._queue)))]
        return (messages, self._loader.submit(self._load, [m.client for m in messages])) if messages else None

    def _load(self, names: list[str]) -> Data:
        """A chunk's data in one of few shapes: rows up to a power of two, clients up to the size of a chunk."""
        try:
            loaded = self._source.load(names)
        except Exception as error:
            error.add_note(f"while the data of {_listed(names)} were loaded")
            raise
        if len(loaded) != len(names):
            raise DataError(
                f"the source returned {len(loaded)} data sets for {_listed(names)}; it must return one each"
            )
        if any(self._algorithm.initial_local(data) is not None for data in loaded[:1]):
            raise UnsuitableError(
                f"the clients of {type(self._algorithm).__name__} keep something between messages, which streamed "
                "clients cannot; hold them in memory"
            )
        length = 1 << (max(len(data.weight) for data in loaded) - 1).bit_length()
        padded = [pad(data, length) for data in loaded]
        return stack(padded + padded[:1] * (self._chunk - len(padded)))

    def _run(self, messages: list[Message], data: Data) -> list[Reply]:
        filled = messages + messages[:1] * (self._chunk - len(messages))
        keys = message_keys(self._seed, filled)
        keys, data, briefs = spread((keys, data, stack([m.brief for m in filled])), self._mesh)
        work = Work(keys, briefs, None, data)
        answers, _ = run_clients(self._traced, work, splitting(self._mesh, self._chunk))
        answers = jax.tree.map(np.asarray, answers)
        return [
            Reply(m.client, m.version, m.sequence, jax.tree.map(lambda leaf, i=i: leaf[i], answers))
            for i, m in enumerate(messages)
        ]


def _listed(names: list[str], most: int = 10) -> str:
    """Who a problem may be about, in a line."""
    more = f" and {len(names) - most} others" if len(names) > most else ""
    return f"{len(names)} clients ({', '.join(map(repr, names[:most]))}{more})"
