"""Whether two sites have the same study, and where not.

Comments, the order of keys, and whether a default is spelled out do not matter: what is compared is what was read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any

from cavity.study.columns import Column
from cavity.study.line_numbers import spelled
from cavity.study.schema import Part, Study

FORMAT = 2  # to be raised when the meaning of a key changes


def settings(study: Study) -> dict[str, Any]:
    """Every key of the study by its path in the file, as values of JSON; sorted."""
    found: dict[str, Any] = {"format": FORMAT}
    for field in fields(study):
        if field.compare:  # what a site says for itself is not compared
            _collect(getattr(study, field.name), (field.name,), found)
    return dict(sorted(found.items()))


def digest(study: Study) -> str:
    """SHA-256 of the settings, in hexadecimal."""
    return hashlib.sha256(json.dumps(settings(study), ensure_ascii=True).encode()).hexdigest()


def differences(ours: Study | Mapping[str, Any], theirs: Study | Mapping[str, Any]) -> list[str]:
    """The keys, by their paths, in which two studies (or their settings) differ; none if they are the same."""
    a, b = (settings(study) if isinstance(study, Study) else dict(study) for study in (ours, theirs))
    return sorted(path for path in a.keys() | b.keys() if _spelled(a, path) != _spelled(b, path))


def _spelled(values: Mapping[str, Any], path: str) -> str | None:
    return json.dumps(values[path]) if path in values else None


def _collect(value: Any, path: tuple[str, ...], found: dict[str, Any]) -> None:
    """Fields of records are keys of tables; what is not there is not compared."""
    if value is None or value == ():
        return
    if isinstance(value, Part):
        found[spelled(path)] = [value.word, value.number]
    elif isinstance(value, tuple) and all(isinstance(item, Column) for item in value):
        for column in value:
            found[spelled((*path, column.name, "type"))] = type(column).__name__.lower()
            for field in fields(column):
                if field.name != "name":
                    _collect(getattr(column, field.name), (*path, column.name, field.name), found)
    elif isinstance(value, tuple) and all(isinstance(item, tuple) for item in value):
        for key, item in value:
            _collect(item, (*path, key), found)
    elif is_dataclass(value):
        for field in fields(value):
            _collect(getattr(value, field.name), (*path, field.name), found)
    elif isinstance(value, StrEnum):
        found[spelled(path)] = value.value
    else:
        found[spelled(path)] = list(value) if isinstance(value, tuple) else value
