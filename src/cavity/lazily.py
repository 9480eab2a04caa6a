"""Packages whose parts are loaded when they are first used (PEP 562), so that importing Cavity stays quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def from_rooms(package: str, rooms: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its name.
        rooms: module -> the public names that it has, with spaces between them.
    """
    homes = {name: f"{package}.{room}" for room, names in rooms.items() for name in names.split()}
    if hidden := homes.keys() & rooms.keys():  # a module, once loaded, takes its own name in the package
        raise ValueError(f"{package}: a module hides what it has of the same name: {', '.join(sorted(hidden))}")

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(homes))}")
        return getattr(import_module(homes[name]), name)

    return load
