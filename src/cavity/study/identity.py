"""Whether two sites have the same study, and where the studies differ.

Comments, the order of keys, aliases and whether a default is written out do not matter: what was read is compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import StrEnum

from cavity.study.columns import Column, FixedScaling
from cavity.study.families.family import Family
from cavity.study.line_numbers import spelled
from cavity.study.part import Part
from cavity.study.priors import GroupPriorChoice, PriorChoice, SlopePrior
from cavity.study.schema import AlgorithmChoice, ModelChoice, RunChoice, Study

FORMAT = 3  # increase it when the meaning of a key changes

Path = tuple[str, ...]
RecordWithKeys = (
    Column
    | Family
    | PriorChoice
    | GroupPriorChoice
    | SlopePrior
    | ModelChoice
    | AlgorithmChoice
    | RunChoice
    | FixedScaling
)
Value = str | int | float | bool | list[str | float | None]


def settings(study: Study) -> dict[str, Value]:
    """Every key of the study by its path in the file, as values of JSON; sorted."""
    found: dict[str, Value] = {"format": FORMAT}
    for field in fields(study):
        if field.compare:  # a site's own settings are not compared
            found |= {spelled(path): value for path, value in _settings(getattr(study, field.name), (field.name,))}
    return dict(sorted(found.items()))


def digest(study: Study) -> str:
    """SHA-256 of the settings, in hexadecimal."""
    return hashlib.sha256(json.dumps(settings(study), ensure_ascii=True).encode()).hexdigest()


def differences(ours: Study | Mapping[str, Value], theirs: Study | Mapping[str, Value]) -> list[str]:
    """The keys, by their paths, in which two studies (or their settings) differ; none if they are the same."""
    a, b = (settings(study) if isinstance(study, Study) else dict(study) for study in (ours, theirs))
    return sorted(path for path in a.keys() | b.keys() if _written(a, path) != _written(b, path))


def _written(values: Mapping[str, Value], path: str) -> str | None:
    return json.dumps(values[path]) if path in values else None


def _settings(value: object, path: Path) -> Iterator[tuple[Path, Value]]:
    """Fields of records are keys of tables; what is not set is not compared."""
    match value:
        case None | ():
            return
        case StrEnum():
            yield path, value.value
        case str() | int() | float():
            yield path, value
        case Part():
            yield path, [value.word, value.number]
        case Family():
            yield path, value.name
            yield from _fields(value, path[:-1])
        case Column():
            yield (*path, value.name, "type"), value.type_name
            yield from _fields(value, (*path, value.name), "name")
        case PriorChoice():
            yield from _fields(value, path, "extra", "priors")
            yield from _settings(value.extra, path)
            yield from _settings(value.priors, ("priors",))
        case GroupPriorChoice():
            yield from _fields(value, path[:-1])
        case ModelChoice() | AlgorithmChoice() | RunChoice() | FixedScaling() | SlopePrior():
            yield from _fields(value, path)
        case tuple():
            yield from _items(value, path)
        case _:
            raise TypeError(f"{spelled(path)} has a {type(value).__name__}, which a study cannot have")


def _fields(record: RecordWithKeys, path: Path, *without: str) -> Iterator[tuple[Path, Value]]:
    for field in fields(record):
        if field.name not in without:
            yield from _settings(getattr(record, field.name), (*path, field.name))


def _items(items: tuple[object, ...], path: Path) -> Iterator[tuple[Path, Value]]:
    """A list of plain values is one setting; columns, and pairs of a name and a value, have one setting each."""
    plain: list[str | float | None] = []
    for item in items:
        match item:
            case Column():
                yield from _settings(item, path)
            case (str() as name, value):
                yield from _settings(value, (*path, name))
            case str() | int() | float():
                plain.append(item)
    if plain:
        yield path, plain
