"""Warnings that point at the user's own line, wherever in Cavity they are given."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

PACKAGE = str(Path(__file__).resolve().parents[1])
WRAPPERS = ("beartype", "jaxtyping", "equinox")  # of functions, in file names


def warn_user(message: str) -> None:
    """Give a UserWarning about the line outside Cavity that called it.

    Args:
        message: what is wrong, and what to do.
    """
    level, frame = 2, sys._getframe(1)
    while frame is not None and _is_inside(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level - 1 if frame is None else level)


def _is_inside(file: str) -> bool:
    return file.startswith(PACKAGE) or any(wrapper in file for wrapper in WRAPPERS)
