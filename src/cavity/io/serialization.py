"""Pytrees as named arrays and a small JSON description: never pickle, no code.

A packed tree is a dict of numpy arrays and a *manifest* that says how they are nested. Components are written by the
identifier of their class (`cavity.io.type_table`) and rebuilt from their fields (`cavity.io.components`). A file is an
ordinary `.npz` with the manifest as one more array, so that numpy can read the numbers without Cavity. The comment of
the archive is a checksum of everything before it. Cavity itself reads the file with `cavity.io.archive`.

Content that cannot be read raises `CheckpointError`. Reading takes memory in proportion to the content.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import io
import json
import sys
from collections.abc import Iterable
from functools import singledispatch
from typing import NoReturn

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from cavity.core.messages import Record
from cavity.errors import CheckpointError, printable
from cavity.io import archive, components, type_table
from cavity.io.archive import Entry

FORMAT = 3  # 3: classes by identifier; 2: the ledger keeps records only of clients that were sent a message
MANIFEST = "manifest"
MAX_DEPTH = 100  # of nested nodes
_LONGEST_FLOAT = 32  # characters of a float in hexadecimal
_TOO_WIDE = ("float128", "float96", "complex256", "complex192")  # of other sizes on other machines

Json = dict[str, object] | list[object] | str | int | bool | None


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much is read, and whether modules are imported for it.

    Attributes:
        manifest: largest number of bytes of the manifest, which takes up to thirty times as much memory when it is
            read; None for no limit.
        arrays: largest number of arrays; None for no limit.
        imports: whether a module that the table of types names may be imported.
    """

    manifest: int | None = None
    arrays: int | None = None
    imports: bool = True


FILE = Limits()  # of any size: there may be a hundred thousand clients
MESSAGE = Limits(manifest=2**20, arrays=10_000, imports=False)


def pack(tree: PyTree) -> dict[str, np.ndarray]:
    """The arrays of a tree by path, with the manifest among them.

    Raises:
        TypeError: the tree holds a value that cannot be written, such as a function.
    """
    writer = _Writer({}, {})
    manifest = {"format": FORMAT, "tree": _describe(tree, "", writer)}
    return writer.arrays | {MANIFEST: np.frombuffer(json.dumps(manifest).encode(), np.uint8)}


def unpack(entries: dict[str, Entry], types: Iterable[type] = (), limits: Limits = FILE) -> PyTree:
    """The tree that was packed.

    Args:
        entries: the arrays by path; each is used exactly once.
        types: classes from outside Cavity that may appear in it.
        limits: of what is read.
    """
    written = entries.pop(MANIFEST, None)
    if written is None or written.dtype != np.uint8:
        raise CheckpointError("there is no readable manifest; this was not written by Cavity")
    if limits.manifest is not None and len(written.data) > limits.manifest:
        raise CheckpointError(f"its manifest has {len(written.data):,} bytes; at most {limits.manifest:,} are read")
    try:
        manifest = _DECODER.decode(bytes(written.data).decode())
    except (ValueError, RecursionError):
        manifest = None
    match manifest:
        case {"format": int(number), "tree": tree} if number == FORMAT and number is not True:
            restored = _Reader(entries, type_table.by_name(types), limits.imports).read(tree)
        case {"format": number, "tree": _}:
            raise _another_format(number)
        case _:
            raise CheckpointError("there is no readable manifest; this was not written by Cavity")
    if entries:
        raise CheckpointError("it holds arrays that its manifest does not mention")
    return restored


def _another_format(number: object) -> CheckpointError:
    plain = number is None or type(number) in (int, str)
    shown = printable(str(number), 20) if plain else "unknown"
    return CheckpointError(
        f"it has format {shown}, and this version of Cavity reads format {FORMAT}; use the version that wrote it (for "
        "messages: install the same version on all sides)"
    )


def to_bytes(tree: PyTree) -> bytes:
    """A packed tree as the bytes of an `.npz` file."""
    buffer = io.BytesIO()
    np.savez(buffer, **pack(tree))  # pyright: ignore[reportArgumentType]
    return seal(buffer.getvalue())


def from_bytes(content: bytes | memoryview, types: Iterable[type] = (), limits: Limits = FILE) -> PyTree:
    """The inverse of `to_bytes`. The checksum is compared first; content that was changed is not read further.

    Args:
        content: what `to_bytes` returned.
        types: classes from outside Cavity that may appear in it.
        limits: of what is read.

    Raises:
        CheckpointError: it is damaged, or does not describe a tree of components with proper fields.
    """
    if not is_sealed(content):
        raise CheckpointError("it is damaged, was cut off, or was not written by Cavity")
    return unpack(archive.entries(content, limits.arrays), types, limits)


def seal(archive: bytes) -> bytes:
    """A zip archive with its SHA-256 as the comment.

    Args:
        archive: without a comment; its last two bytes, the length of the comment, are replaced.
    """
    digest = hashlib.sha256(archive[:-2])
    return archive[:-2] + digest.digest_size.to_bytes(2, "little") + digest.digest()


def is_sealed(content: bytes | memoryview) -> bool:
    """Whether content ends with its checksum, as `seal` writes it."""
    digest = hashlib.sha256(memoryview(content)[:-_SEAL])
    return content[-_SEAL:] == digest.digest_size.to_bytes(2, "little") + digest.digest()


_SEAL = 2 + hashlib.sha256().digest_size  # bytes: the length of the comment, and the comment


def types_in(tree: PyTree) -> set[type]:
    """The classes of all components in a tree, at any depth."""
    found: set[type] = set()
    unseen: list[object] = [tree]
    while unseen:
        node = unseen.pop()
        if type_table.is_component(type(node)):
            found.add(type(node))
        unseen += _children(node)
    return found


def types_beside(tree: PyTree) -> set[type]:
    """The classes in a tree and all components in their modules: what a part and its state may hold."""
    found = types_in(tree)
    for module in {cls.__module__ for cls in found}:
        classes = [cls for cls in vars(sys.modules[module]).values() if inspect.isclass(cls)]
        found |= {cls for cls in classes if type_table.is_component(cls)}
    return found


def is_self_contained(tree: PyTree) -> bool:
    """Whether a reader knows all classes in a tree: they are in the table of types or registered."""
    return all(map(type_table.is_known, types_in(tree)))


def num_bytes(tree: PyTree) -> int:
    """How many bytes of numbers a tree has when it is sent (floats as float64)."""
    return sum(8 * np.size(leaf) for leaf in jax.tree.leaves(tree) if eqx.is_array_like(leaf))


@singledispatch
def _children(node: object) -> Iterable[object]:
    return ()


@_children.register(list)
@_children.register(tuple)
def _(node: list[object] | tuple[object, ...]) -> Iterable[object]:
    return node


@_children.register(dict)
def _(node: dict[str, object]) -> Iterable[object]:
    return node.values()


@_children.register(eqx.Module)
@_children.register(Record)
def _(node: eqx.Module | Record) -> Iterable[object]:
    return [getattr(node, name, None) for name in type_table.fields_of(type(node))]


@dataclasses.dataclass(slots=True)
class _Writer:
    """What has been written so far.

    Attributes:
        arrays: by path.
        classes: those met, by name.
    """

    arrays: dict[str, np.ndarray]
    classes: dict[str, type]

    def component(self, node: object, path: str) -> Json:
        """The description of a component, from its fields."""
        cls = type(node)
        name = type_table.name_of(cls)
        if self.classes.setdefault(name, cls) is not cls:
            raise TypeError(
                f"two classes are called {cls.__qualname__}, at {path or 'the root'}; register them under identifiers "
                "of their own (`cavity.io.register`)"
            )
        fields = type_table.fields_of(cls)
        return {
            "type": name,
            "fields": {field: _describe(getattr(node, field), f"{path}/{field}", self) for field in fields},
        }


@singledispatch
def _describe(node: object, path: str, writer: _Writer) -> Json:
    """The description of a tree in JSON; its arrays go to the writer."""
    raise TypeError(f"a {type(node).__name__} at {path or 'the root'} cannot be written; use arrays and numbers")


@_describe.register(type(None))
@_describe.register(bool)
@_describe.register(int)
@_describe.register(str)
def _(node: str | int | bool | None, path: str, writer: _Writer) -> Json:
    return node


@_describe.register(float)
def _(node: float, path: str, writer: _Writer) -> Json:
    return {"float": node.hex()}  # exact, infinities and NaN included


@_describe.register(np.ndarray)
@_describe.register(np.generic)
@_describe.register(jax.Array)
def _(node: np.ndarray | np.generic | jax.Array, path: str, writer: _Writer) -> Json:
    name, array = path or "value", np.asarray(node)
    # numpy would pickle objects, and lose the type of a bfloat16
    if array.dtype.kind not in "biufcUS" or array.dtype.name in _TOO_WIDE:
        raise TypeError(f"an array of {array.dtype} at {path or 'the root'} cannot be written; use float32")
    writer.arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
    return {"array": name}


@_describe.register(list)
def _(node: list[object], path: str, writer: _Writer) -> Json:
    return {"list": [_describe(child, f"{path}/{i}", writer) for i, child in enumerate(node)]}


@_describe.register(tuple)
def _(node: tuple[object, ...], path: str, writer: _Writer) -> Json:
    if type_table.is_component(type(node)):
        return writer.component(node, path)
    return {"tuple": [_describe(child, f"{path}/{i}", writer) for i, child in enumerate(node)]}


@_describe.register(dict)
def _(node: dict[object, object], path: str, writer: _Writer) -> Json:
    entries = [[key, _describe(child, f"{path}/{i}", writer)] for i, (key, child) in enumerate(node.items())]
    if not all(isinstance(key, str) for key in node):
        raise TypeError(f"only dicts with string keys can be written; at {path or 'the root'}")
    return {"dict": entries}


@_describe.register(eqx.Module)
@_describe.register(Record)
def _(node: eqx.Module | Record, path: str, writer: _Writer) -> Json:
    return writer.component(node, path)


@dataclasses.dataclass(slots=True)
class _Reader:
    """Rebuilds a tree from its description.

    Attributes:
        entries: the arrays that are not used yet.
        given: classes from outside Cavity by name; None where two have the same name.
        imports: whether modules that the table of types names may be imported.
    """

    entries: dict[str, Entry]
    given: dict[str, type | None]
    imports: bool

    def read(self, node: object, depth: int = 0) -> PyTree:
        """The tree that a node of the manifest describes."""
        match node:
            case None | bool() | int():
                return node
            case str():
                return _text(node)
            case _ if depth > MAX_DEPTH:
                return _refuse(f"it is nested more than {MAX_DEPTH} deep")
            case dict():
                return self._node(node, depth + 1)
            case _:
                return _refuse("a list without a kind")

    def _node(self, node: dict[str, object], depth: int) -> PyTree:
        if len(node) == 2:
            match node:
                case {"type": str(name), "fields": dict(fields)}:
                    stored = type_table.find(name, self.given, imports=self.imports)
                    return components.rebuild(stored, {field: self.read(fields[field], depth) for field in fields})
        if len(node) == 1:
            match node:
                case {"array": str(name)}:
                    return self._array(name)
                case {"float": str(text)}:
                    return _float(text)
                case {"list": list(items)}:
                    return [self.read(child, depth) for child in items]
                case {"tuple": list(items)}:
                    return tuple([self.read(child, depth) for child in items])
                case {"dict": list(pairs)}:
                    return self._dict(pairs, depth)
        return _refuse("a node of no known kind")

    def _array(self, name: str) -> np.ndarray:
        entry = self.entries.pop(name, None)
        return _refuse("an array that is missing or already used") if entry is None else entry.array()

    def _dict(self, pairs: list[object], depth: int) -> dict[str, PyTree]:
        found: dict[str, PyTree] = {}
        for pair in pairs:
            match pair:
                case [str(key), child] if key not in found:
                    found[_text(key)] = self.read(child, depth)
                case _:
                    _refuse("a dict with a key that is not text, or appears twice")
        return found


def _refuse(why: str) -> NoReturn:
    raise CheckpointError(f"its manifest does not describe a tree ({why})")


def _text(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            _refuse("text that is not Unicode")
    return text


def _float(text: str) -> float:
    try:
        if len(text) <= _LONGEST_FLOAT:
            return float.fromhex(text)
    except (ValueError, OverflowError):
        pass
    return _refuse("not a number")


def _unlike_json(text: str) -> NoReturn:
    raise ValueError(f"a manifest does not hold {text[:20]}")


_DECODER = json.JSONDecoder(
    object_pairs_hook=lambda pairs: found if len(found := dict(pairs)) == len(pairs) else _unlike_json("a key twice"),
    parse_float=_unlike_json,
    parse_constant=_unlike_json,
)
