"""Pytrees as named arrays and a small JSON description: never pickle, no code.

A packed tree is a dict of numpy arrays and a *manifest* that says how they are nested. Components are written by
the qualified name of their class and rebuilt from their fields (`cavity.io.components` says which). A file is an
ordinary `.npz` with the manifest as one more array, so that numpy can read the numbers without Cavity; the archive's
comment is a checksum of everything before it. Cavity itself reads it with `cavity.io.archive`.

Whatever is wrong with what is read is a `CheckpointError`, and reading takes memory in proportion to the content.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from cavity.core.messages import Record
from cavity.errors import CheckpointError, printable
from cavity.io import archive, components
from cavity.io.archive import Entry

FORMAT = 2  # 2: the ledger keeps records of those only who have been written to
MANIFEST = "manifest"
MAX_DEPTH = 100  # of what is nested
_LONGEST_FLOAT = 32  # characters of a float in hexadecimal


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much is read, and what for.

    Attributes:
        manifest: bytes of the manifest, which take up to thirty times as much memory when read; None for any.
        arrays: how many; None for any.
        imports: whether a module of Cavity's parts may be imported for a class.
    """

    manifest: int | None = None
    arrays: int | None = None
    imports: bool = True


FILE = Limits()  # of any size: there may be a hundred thousand clients
MESSAGE = Limits(manifest=2**20, arrays=10_000, imports=False)


def pack(tree: PyTree) -> dict[str, np.ndarray]:
    """The arrays of a tree by path, with the manifest among them."""
    arrays: dict[str, np.ndarray] = {}
    manifest = {"format": FORMAT, "tree": _describe(tree, "", arrays)}
    arrays[MANIFEST] = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
    return arrays


def unpack(entries: dict[str, Entry], types: Iterable[type] = (), limits: Limits = FILE) -> PyTree:
    """The tree that was packed.

    Args:
        entries: the arrays by path; each is used exactly once.
        types: classes outside Cavity that may appear in it.
        limits: of what is read.
    """
    written = entries.pop(MANIFEST, None)
    if written is None or written.dtype != np.uint8:
        raise CheckpointError("there is no readable manifest; this was not written by Cavity")
    if limits.manifest is not None and len(written.data) > limits.manifest:
        raise CheckpointError(f"its manifest has {len(written.data):,} bytes; at most {limits.manifest:,} are read")
    try:
        manifest = _DECODER.decode(bytes(written.data).decode())
        written_format, tree = manifest["format"], manifest["tree"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise CheckpointError("there is no readable manifest; this was not written by Cavity") from None
    if written_format != FORMAT:
        plain = written_format is None or isinstance(written_format, (int, str))
        raise CheckpointError(
            f"it has format {printable(str(written_format), 20) if plain else 'unknown'}, this version of Cavity reads "
            f"format {FORMAT}; use the version that wrote it"
        )
    restored = _Reader(entries, {components.name_of(cls): cls for cls in types}, limits.imports).read(tree)
    if entries:
        raise CheckpointError("it holds arrays that its manifest does not mention")
    return restored


def to_bytes(tree: PyTree) -> bytes:
    """A packed tree as the bytes of an `.npz` file."""
    buffer = io.BytesIO()
    np.savez(buffer, **pack(tree))  # pyright: ignore[reportArgumentType]
    return seal(buffer.getvalue())


def from_bytes(content: bytes | memoryview, types: Iterable[type] = (), limits: Limits = FILE) -> PyTree:
    """The inverse of `to_bytes`; content that is not, byte for byte, what was written is not looked into.

    Raises:
        CheckpointError: it is damaged, or does not describe a tree of components with proper fields.
    """
    if not is_sealed(content):
        raise CheckpointError("it is damaged, was cut off, or was not written by Cavity")
    return unpack(archive.entries(content, limits.arrays), types, limits)


def seal(archive: bytes) -> bytes:
    """A zip archive without a comment, or with one yet to come, with its SHA-256 as the comment."""
    digest = hashlib.sha256(archive[:-2])  # the last two bytes are the length of the comment
    return archive[:-2] + digest.digest_size.to_bytes(2, "little") + digest.digest()


def is_sealed(content: bytes | memoryview) -> bool:
    """Whether content ends with its checksum, as `seal` writes it."""
    digest = hashlib.sha256(memoryview(content)[:-_SEAL])
    return content[-_SEAL:] == digest.digest_size.to_bytes(2, "little") + digest.digest()


_SEAL = 2 + hashlib.sha256().digest_size  # bytes: the length of the comment, and the comment


def types_in(tree: PyTree) -> set[type]:
    """The classes of all components in a tree, at any depth: what a resume may rebuild."""
    found: set[type] = set()
    unseen: list[Any] = [tree]
    while unseen:
        node = unseen.pop()
        if isinstance(node, (eqx.Module, Record)):
            found.add(type(node))
            unseen += [getattr(node, field.name, None) for field in dataclasses.fields(node)]  # pyright: ignore[reportArgumentType]
        elif isinstance(node, dict):
            unseen += node.values()
        elif isinstance(node, (list, tuple)):
            if hasattr(node, "_fields"):
                found.add(type(node))
            unseen += node
    return found


def types_beside(tree: PyTree) -> set[type]:
    """The classes in a tree, and those that stand beside them in their modules: what a part and its state may hold."""
    found = types_in(tree)
    for module in {cls.__module__ for cls in found}:
        found |= {cls for cls in vars(sys.modules[module]).values() if components.is_component(cls)}
    return found


def num_bytes(tree: PyTree) -> int:
    """How many bytes of numbers a tree carries over a wire (floats as float64)."""
    return sum(8 * np.size(leaf) for leaf in jax.tree.leaves(tree) if eqx.is_array_like(leaf))


def _describe(node: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    if node is None or isinstance(node, (bool, int, str)):
        return node
    if isinstance(node, (np.ndarray, np.generic, jax.Array)):
        name, array = path or "value", np.asarray(node)
        if (
            array.dtype.kind not in "biufcUS" or array.dtype.name in _TOO_WIDE
        ):  # numpy would pickle objects, and forget what a bfloat16 is
            raise TypeError(f"an array of {array.dtype} at {path or 'the root'} cannot be written; use float32")
        arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
        return {"array": name}
    if isinstance(node, float):
        return {"float": node.hex()}  # exact, infinities and NaN included
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        names = getattr(node, "_fields", ())
        fields = {name: _describe(getattr(node, name), f"{path}/{name}", arrays) for name in names}
        return {"namedtuple": components.name_of(type(node)), "fields": fields}
    if isinstance(node, (list, tuple)):
        kind = "list" if isinstance(node, list) else "tuple"
        return {kind: [_describe(child, f"{path}/{i}", arrays) for i, child in enumerate(node)]}
    if isinstance(node, dict):
        entries = [[key, _describe(child, f"{path}/{i}", arrays)] for i, (key, child) in enumerate(node.items())]
        if not all(isinstance(key, str) for key, _ in entries):
            raise TypeError(f"only dicts with string keys can be written; at {path or 'the root'}")
        return {"dict": entries}
    if isinstance(node, (eqx.Module, Record)):
        fields = {
            field.name: _describe(getattr(node, field.name), f"{path}/{field.name}", arrays)
            for field in dataclasses.fields(node)  # pyright: ignore[reportArgumentType]
        }
        return {"module": components.name_of(type(node)), "fields": fields}
    raise TypeError(f"a {type(node).__name__} at {path or 'the root'} cannot be written; use arrays and numbers")


@dataclasses.dataclass(slots=True)
class _Reader:
    """Rebuilds a tree from its description.

    Attributes:
        entries: the arrays that are not used yet.
        given: classes from outside Cavity by name.
        imports: whether modules of Cavity's parts may be imported.
    """

    entries: dict[str, Entry]
    given: Mapping[str, type]
    imports: bool

    def read(self, node: Any, depth: int = 0) -> Any:
        """The tree that a node of the manifest describes."""
        if node is None or isinstance(node, (bool, int)):
            return node
        if isinstance(node, str):
            return _text(node)
        if depth > MAX_DEPTH:
            _refuse(f"it is nested more than {MAX_DEPTH} deep")
        if not isinstance(node, dict):
            _refuse("a list without a name")
        if len(node) == 1:
            ((kind, value),) = node.items()
            return self._plain(kind, value, depth + 1)
        kind = "module" if "module" in node else "namedtuple"
        if node.keys() != {kind, "fields"} or not isinstance(node["fields"], dict):
            _refuse("a node of no known kind")
        cls = components.class_of(node[kind], self.given, imports=self.imports)
        if issubclass(cls, tuple) != (kind == "namedtuple"):
            raise CheckpointError(f"its {cls.__name__} is not a {kind}; use the version that wrote it")
        return components.rebuilt(cls, {name: self.read(child, depth + 1) for name, child in node["fields"].items()})

    def _plain(self, kind: str, value: Any, depth: int) -> Any:
        if kind == "array":
            entry = self.entries.pop(value, None) if isinstance(value, str) else None
            return _refuse("an array that is not there, or used already") if entry is None else entry.array()
        if kind == "float":
            return _float(value)
        if not isinstance(value, list):
            _refuse("a node of no known kind")
        if kind == "list":
            return [self.read(child, depth) for child in value]
        if kind == "tuple":
            return tuple([self.read(child, depth) for child in value])
        if kind != "dict":
            _refuse("a node of no known kind")
        return self._dict(value, depth)

    def _dict(self, pairs: list[Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for pair in pairs:
            if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)) or pair[0] in found:
                _refuse("a dict with a key that is not text, or comes twice")
            found[_text(pair[0])] = self.read(pair[1], depth)
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


def _float(text: Any) -> float:
    try:
        if len(text) <= _LONGEST_FLOAT:
            return float.fromhex(text)
    except (TypeError, ValueError, OverflowError):
        pass
    return _refuse("not a number")


def _unlike_json(text: str) -> NoReturn:
    raise ValueError(f"a manifest does not hold {text[:20]}")


_DECODER = json.JSONDecoder(
    object_pairs_hook=lambda pairs: found if len(found := dict(pairs)) == len(pairs) else _unlike_json("a key twice"),
    parse_float=_unlike_json,
    parse_constant=_unlike_json,
)
_TOO_WIDE = ("float128", "float96", "complex256", "complex192")  # of other sizes on other machines
