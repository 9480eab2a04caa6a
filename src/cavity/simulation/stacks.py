"""Clients' data as few large arrays: padded, in buckets of similar size, divided among the available devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from cavity.core import Data, pad

AXIS = "clients"
FEW_ROWS = 4096


def stack(trees: Sequence[PyTree]) -> PyTree:
    """One tree with a leading axis; on the host, so that the next step decides about devices and precision."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def stack_padded(clients: Sequence[Data]) -> Data:
    """Several clients' data as one, each padded to the longest."""
    longest = max(len(data.weight) for data in clients)
    most_units = max(0 if data.units is None else len(data.units.weight) for data in clients)
    return stack([pad(data, longest, most_units) for data in clients])


@dataclass(frozen=True)
class Bucket:
    """Clients of similar size, and their stacked data on the devices."""

    names: tuple[str, ...]
    data: Data

    @property
    def num_units(self) -> int | None:
        """To how many units its clients are padded; None for models without any."""
        return None if self.data.units is None else self.data.units.weight.shape[1]


def buckets(clients: Mapping[str, Data], mesh: Mesh) -> list[Bucket]:
    """Clients of one form and similar size together, in the order given: none is padded to more than twice its rows.

    If there are few rows in total, all clients are in one bucket, whatever their sizes: compiling another program would
    take longer.
    """
    sizes = {name: len(data.weight) for name, data in clients.items()}
    forms = {name: _form(data) for name, data in clients.items()}
    groups: list[list[str]] = []
    for name in sorted(sizes, key=lambda name: (forms[name], -sizes[name])):
        largest, padded = (sizes[groups[-1][0]], len(groups[-1]) + 1) if groups else (0, 0)
        alike = bool(groups) and forms[name] == forms[groups[-1][0]]
        if alike and (2 * sizes[name] >= largest or padded * largest <= FEW_ROWS):
            groups[-1].append(name)
        else:
            groups.append([name])
    together = [[name for name in clients if name in group] for group in map(set, groups)]
    return [Bucket(tuple(names), spread(stack_padded([clients[name] for name in names]), mesh)) for names in together]


def _form(data: Data) -> str:
    """What clients of one stack have in common: the names, kinds and columns of their arrays."""
    leaves, structure = jax.tree.flatten(data.batch)
    return f"{structure} {[(leaf.shape[1:], leaf.dtype.kind) for leaf in leaves]}"


def device_mesh() -> Mesh:
    """All devices of this process in a row."""
    return Mesh(np.array(jax.devices()), (AXIS,))


def splitting(mesh: Mesh, num_clients: int) -> Mesh | None:
    """The mesh, if so many clients can be split over it evenly."""
    return mesh if mesh.size > 1 and num_clients % mesh.size == 0 else None


def spread(tree: PyTree, mesh: Mesh) -> PyTree:
    """Put a stack on the devices: split over clients where their number allows, whole on the first one otherwise."""
    leaves = jax.tree.leaves(tree)
    if leaves and splitting(mesh, leaves[0].shape[0]):
        return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(AXIS)))
    return jax.tree.map(jnp.asarray, tree)


def everywhere(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """What all clients share, on every device that has some of them: copied once, and not with every step."""
    return jax.device_put(tree, None if mesh is None else NamedSharding(mesh, PartitionSpec()))
