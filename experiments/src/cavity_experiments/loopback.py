"""Both sides of a network in one process, with Flower's own programs between them: for benchmarks and tests.

The SuperLink and a SuperNode per client are real. Server and clients are threads here, which saves starting an
interpreter and compiling for each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from cavity.network.flower import LOOPBACK, FlowerTransport, ServerSide
from cavity.network.flower_node import ClientSide, FlowerNode
from cavity.network.processes import free_port


class Loopback:
    """A transport and its clients, until the end of a `with` block.

    Args:
        server: how the SuperLink listens.
        clients: how each client connects.
        answers: client -> function from a message to its response; looked up for every message.

    Attributes:
        transport: the server's transport.
        nodes: the clients' sides.
    """

    def __init__(
        self,
        server: ServerSide,
        clients: Mapping[str, ClientSide],
        updates: Mapping[str, Callable[[bytes], bytes]],
    ):
        def update(name: str, content: bytes) -> bytes:
            return updates[name](content)

        self._over = threading.Event()
        self.transport = FlowerTransport(server)
        self.nodes = {name: FlowerNode(side, partial(update, name)) for name, side in clients.items()}
        self._threads = [threading.Thread(target=node.serve, args=(self._over.is_set,)) for node in self.nodes.values()]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self.transport.close()


def unkeyed(folder: Path, names: Iterable[str]) -> tuple[ServerSide, dict[str, ClientSide]]:
    """Both sides without TLS and keys, at a free port of this machine."""
    port = free_port()
    clients = {name: ClientSide(f"{LOOPBACK}:{port}", folder / name) for name in names}
    return ServerSide(LOOPBACK, port, folder / "server"), clients
