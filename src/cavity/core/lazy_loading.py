"""Packages whose parts are loaded when they are first used (PEP 562), so that importing Cavity is fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    Args:
        package: its name.
        modules: module -> the public names that it has, separated by spaces.

    Returns:
        Two functions for the package to assign to `__getattr__` and `__dir__`.
    """
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}
    if hidden := homes.keys() & modules.keys():  # a loaded module becomes an attribute of its package
        raise ValueError(f"{package}: a module hides a public name: {', '.join(sorted(hidden))}")
    names = sorted(homes)

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; choose one of: {', '.join(names)}")
        return getattr(import_module(homes[name]), name)

    return load, lambda: list(names)


def listing(names: Sequence[str]) -> Callable[[], list[str]]:
    """The `__dir__` of a package whose public names are loaded at once.

    Args:
        names: its `__all__`.
    """
    return lambda: sorted(names)
