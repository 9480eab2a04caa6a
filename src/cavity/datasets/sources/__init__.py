"""Clients that are loaded when they are needed: from one file each, from one indexed file, or generated.

Each is a `ClientSource`: `cavity.run(algorithm, source)` holds a few clients in memory at a time.
"""

from cavity.datasets.sources.files import ClientFiles, write_client_files
from cavity.datasets.sources.generated import CIFAR100, EMNIST, STACKOVERFLOW, Generated, HeavyTailed
from cavity.datasets.sources.indexed import IndexedClients, write_indexed_clients

__all__ = [
    "CIFAR100",
    "EMNIST",
    "STACKOVERFLOW",
    "ClientFiles",
    "Generated",
    "HeavyTailed",
    "IndexedClients",
    "write_client_files",
    "write_indexed_clients",
]
