"""The line of a key in a TOML file, which Python's reader does not give."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence


def line_of(text: str, path: Sequence[str]) -> int | None:
    """The line of a key, or of its table if the key is missing; None if neither is found.

    Args:
        text: of the file.
        path: the keys that lead to the value.
    """
    table: tuple[str, ...] = ()
    best = None
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("[") and (header := _path(stripped)) is not None:
            table = found = header
        elif "=" in stripped and (key := _path(stripped.split("=", 1)[0] + "= 0")) is not None:
            found = (*table, *key)
        else:
            continue
        if found == tuple(path):
            return number
        if found == tuple(path)[:-1]:
            best = number if best is None else best
    return best


def spelled(path: Sequence[str]) -> str:
    """A path of keys as TOML writes it: names that are not bare are quoted."""
    return ".".join(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key) for key in path)


def _path(line: str) -> tuple[str, ...] | None:
    """The keys that a line of TOML sets; None if it sets none."""
    try:
        node: object = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    path = []
    while True:
        match node:
            case dict() if len(node) == 1:
                (key, node), *_ = node.items()
                path.append(str(key))
            case _:
                return tuple(path)
