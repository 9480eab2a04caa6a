"""The names under which classes are stored: a table from identifier to class, with the fields of each version.

`types.toml` is the table. A file or a message names a class as `identifier/version`, such as `algorithms.pvi/1`, and
never by its module. A class can therefore move to another module without making stored files unreadable.
`tools/type_table.py` checks the table against the code and updates it.

A class from outside Cavity has one of two names. After `register` it has the identifier that it was registered with.
Otherwise it is written as `user:Name`, and a reader finds it only among the classes that the caller passes.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import equinox as eqx

from cavity.core.messages import Record
from cavity.errors import CavityError, CheckpointError, printable

TABLE = Path(__file__).with_name("types.toml")
OUTSIDE = "user:"  # prefix of the name of a class that is neither in the table nor registered
UPDATE = "run `python tools/type_table.py update`"
_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    Attributes:
        path: where the class is, as `module:Class`.
        versions: the names of its fields in version 1, version 2 and so on.
    """

    path: str
    versions: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A class that may be rebuilt.

    Attributes:
        cls: the class.
        fields: the names of the fields in the stored version.
    """

    cls: type
    fields: tuple[str, ...]


_registered: dict[str, tuple[type, int]] = {}  # identifier -> class and version


def read_table(path: Path = TABLE) -> dict[str, Row]:
    """Read a table.

    Args:
        path: of the TOML file.

    Returns:
        Identifier -> row.
    """
    found = tomllib.loads(path.read_text())
    return {name: Row(row["class"], tuple(map(tuple, row["fields"]))) for name, row in found.items()}


@cache
def table() -> dict[str, Row]:
    """The table of Cavity, read once."""
    return read_table()


@cache
def _identifiers() -> dict[str, str]:
    """Path of a class -> its identifier."""
    return {row.path: identifier for identifier, row in table().items()}


def register(identifier: str, cls: type, *, version: int = 1) -> None:
    """Let files and messages hold a class from outside Cavity, under an identifier of its own.

    Register a class when its module is imported, at the side that writes and at the side that reads. `cavity.load`
    then works without `algorithm=`, and the class can move to another module.

    Args:
        identifier: at least two words with a dot between them, such as "mylab.robust_loss". The first word must not be
            one that Cavity's own table uses.
        cls: an `equinox.Module` or a named tuple.
        version: increase it when the fields of the class change.

    Raises:
        CavityError: the identifier is malformed or taken, or the class cannot be stored.
    """
    if not is_component(cls):
        raise CavityError(f"{cls.__name__} cannot be registered: only equinox modules and named tuples can be stored")
    if _IDENTIFIER.fullmatch(identifier) is None:
        raise CavityError(f"identifier {identifier!r}: use lower-case words with a dot between, such as 'mylab.loss'")
    if identifier.split(".")[0] in {known.split(".")[0] for known in table()}:
        raise CavityError(f"identifier {identifier!r}: the first word is reserved for Cavity's own classes")
    taken = _registered.get(identifier)
    if taken is not None and _path_of(taken[0]) != _path_of(cls):  # the same path: a module that was loaded again
        raise CavityError(f"identifier {identifier!r} is already registered for {_path_of(taken[0])}")
    _registered[identifier] = (cls, version)
    name_of.cache_clear()


def unregister(identifier: str) -> None:
    """Forget a class that was registered; afterwards files with it cannot be read.

    Args:
        identifier: under which it was registered.
    """
    if identifier not in _registered:
        raise CavityError(f"no class is registered as {identifier!r}")
    del _registered[identifier]
    name_of.cache_clear()


def clear_caches() -> None:
    """Forget what was found in the table, after the table or the loaded modules have changed."""
    for cached in (_identifiers, name_of, _in_table):
        cached.cache_clear()


def is_component(cls: type) -> bool:
    """Whether a class is a part or a record of Cavity, or a named tuple as optimisers use them."""
    return issubclass(cls, (eqx.Module, Record)) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


@lru_cache(maxsize=1024)
def fields_of(cls: type) -> tuple[str, ...]:
    """The names of the fields of a component."""
    if issubclass(cls, tuple):
        return getattr(cls, "_fields", ())
    return tuple(field.name for field in dataclasses.fields(cls))  # pyright: ignore[reportArgumentType]


@lru_cache(maxsize=1024)
def name_of(cls: type) -> str:
    """How a class is written: `identifier/version`, or `user:Name`.

    Raises:
        CheckpointError: it is a class of Cavity that the table does not have, or has with other fields.
    """
    for identifier, (registered, version) in _registered.items():
        if registered is cls:
            return f"{identifier}/{version}"
    package = cls.__module__.partition(".")[0]
    identifier = _identifiers().get(_path_of(cls)) or _identifiers().get(f"{package}:{cls.__qualname__}")
    own = package == __name__.partition(".")[0]
    if identifier is not None:
        row = table()[identifier]
        if _loaded(row.path) is cls and row.versions[-1] == fields_of(cls):
            return f"{identifier}/{len(row.versions)}"
    if own:
        problem = "is not in" if identifier is None else "has other fields than in"
        raise CheckpointError(f"{_path_of(cls)} {problem} the table of stored types; {UPDATE}")
    return OUTSIDE + cls.__qualname__


def is_known(cls: type) -> bool:
    """Whether a reader finds a class without being given it: it is in the table or registered."""
    return not name_of(cls).startswith(OUTSIDE)


def by_name(types: Iterable[type]) -> dict[str, type | None]:
    """The classes among `types` that are not known, by the name under which they are written.

    Args:
        types: any classes.

    Returns:
        Name -> class, or None where two classes have the same name.
    """
    found: dict[str, type | None] = {}
    package = __name__.partition(".")[0]
    for cls in types:
        if cls.__module__.partition(".")[0] != package and not is_known(cls):
            name = name_of(cls)
            found[name] = cls if found.get(name, cls) is cls else None
    return found


def find(name: str, given: dict[str, type | None], *, imports: bool) -> Stored:
    """The class that a file or a message names.

    Args:
        name: as `name_of` writes it.
        given: classes from outside Cavity that the caller allows, from `by_name`.
        imports: whether a module that the table names may be imported.

    Raises:
        CheckpointError: the identifier or the version is not known, or the class cannot be imported.
    """
    if name.startswith(OUTSIDE):
        return _outside(name, given)
    identifier, _, version = name.partition("/")
    if identifier in _registered:
        cls, current = _registered[identifier]
        if version != str(current):
            raise _another_version(identifier, version, str(current))
        return Stored(cls, fields_of(cls))
    return _in_table(name, imports)


def _outside(name: str, given: dict[str, type | None]) -> Stored:
    shown = printable(name.removeprefix(OUTSIDE))
    if name not in given:
        raise CheckpointError(
            f"it holds a {shown}, a class from outside Cavity; load it together with the algorithm (`algorithm=`), or "
            "register the class before (`cavity.io.register`)"
        )
    cls = given[name]
    if cls is None:
        raise CheckpointError(
            f"it holds a {shown}, and two classes have this name; register them (`cavity.io.register`)"
        )
    return Stored(cls, fields_of(cls))


@lru_cache(maxsize=1024)
def _in_table(name: str, imports: bool) -> Stored:
    identifier, _, version = name.partition("/")
    row = table().get(identifier)
    if row is None:
        raise CheckpointError(
            f"it holds {printable(name)}, which is not a type that this version of Cavity knows; use the version that "
            "wrote it (a type of your own: call `cavity.io.register` first)"
        )
    number = int(version) if version.isdecimal() and version.isascii() and len(version) < 9 else 0
    newest = len(row.versions)
    if not 1 <= number <= newest or version != str(number):
        raise _another_version(identifier, version, str(newest) if newest == 1 else f"1 to {newest}")
    if imports:
        _import(identifier, row.path)
    cls = _loaded(row.path)
    if cls is None:
        raise CheckpointError(f"it holds {identifier}, which is not a type that is in use here")
    if row.versions[-1] != fields_of(cls):
        raise CheckpointError(f"{_path_of(cls)} has other fields than in the table of stored types; {UPDATE}")
    return Stored(cls, row.versions[number - 1])


def _another_version(identifier: str, version: str, known: str) -> CheckpointError:
    return CheckpointError(
        f"its {identifier} has version {printable(version, 20) or 'unknown'}, and the version known here is {known}; "
        "use the version of Cavity that wrote it"
    )


def _import(identifier: str, path: str) -> None:
    try:
        importlib.import_module(path.partition(":")[0])
    except ImportError as error:
        raise CheckpointError(f"it holds {identifier}, which cannot be imported ({error})") from None


def _loaded(path: str) -> type | None:
    """The class at a path, if its module is loaded and has it."""
    module, _, name = path.partition(":")
    cls = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return cls if inspect.isclass(cls) and is_component(cls) else None


def _path_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
