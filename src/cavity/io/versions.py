"""The versions of the software that computed a result. They are written beside it, so that it can be repeated."""

from __future__ import annotations

import importlib.metadata
import os
import platform

_PACKAGES = ("cavity", "jax", "jaxlib", "equinox", "numpy")


def versions(*more: str) -> dict[str, str]:
    """The versions of Python and of the packages that compute, and the machine.

    Args:
        more: names of further packages.

    Returns:
        Name -> version.
    """
    found = {"python": platform.python_version()}
    for package in (*_PACKAGES, *more):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    return found | {"machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"}
