"""Pytrees as named arrays and a small JSON description: never pickle, no code.

A packed tree is a dict of numpy arrays and a *manifest* that says how they are nested. Components are written by
the qualified name of their class and rebuilt from their fields; only classes of Cavity, and those that the caller
names, are ever rebuilt. A file is an ordinary `.npz` with the manifest as one more array, so that numpy can read
the numbers without Cavity; the archive's comment is a checksum of everything before it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import io
import json
import sys
import zipfile
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from cavity.errors import CheckpointError
from cavity.state import Record

FORMAT = 2  # 2: the ledger keeps records of those only who have been written to
MANIFEST = "manifest"


def pack(tree: PyTree) -> dict[str, np.ndarray]:
    """The arrays of a tree by path, with the manifest among them."""
    arrays: dict[str, np.ndarray] = {}
    manifest = {"format": FORMAT, "tree": _describe(tree, "", arrays)}
    arrays[MANIFEST] = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
    return arrays


def unpack(arrays: dict[str, np.ndarray], types: Iterable[type] = ()) -> PyTree:
    """The tree that `pack` packed. `types` are classes outside Cavity that may appear in it."""
    try:
        manifest = json.loads(arrays[MANIFEST].tobytes())
        written_format, tree = manifest["format"], manifest["tree"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise CheckpointError("there is no readable manifest; this was not written by Cavity") from None
    if written_format != FORMAT:
        raise CheckpointError(
            f"it has format {written_format}, this version of Cavity reads format {FORMAT}; "
            "use the version that wrote it"
        )
    try:
        return _restore(tree, arrays, {_type_name(cls): cls for cls in types})
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"its manifest does not describe a tree ({type(error).__name__}: {error})") from None


def to_bytes(tree: PyTree) -> bytes:
    """A packed tree as the bytes of an `.npz` file."""
    buffer = io.BytesIO()
    np.savez(buffer, **pack(tree))  # pyright: ignore[reportArgumentType]
    return seal(buffer.getvalue())


def from_bytes(content: bytes, types: Iterable[type] = ()) -> PyTree:
    """The inverse of `to_bytes`; a file that is not, byte for byte, what was written is not looked into."""
    if seal(content[: -hashlib.sha256().digest_size]) != content:
        raise CheckpointError("it is damaged, was cut off, or was not written by Cavity")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, TypeError, ValueError, OSError, EOFError) as error:
        raise CheckpointError(f"it is not an archive of arrays ({error})") from None
    return unpack(arrays, types)


def seal(archive: bytes) -> bytes:
    """A zip archive without a comment, or with one yet to come, with its SHA-256 as the comment."""
    digest = hashlib.sha256(archive[:-2])  # the last two bytes are the length of the comment
    return archive[:-2] + digest.digest_size.to_bytes(2, "little") + digest.digest()


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
        found |= {cls for cls in vars(sys.modules[module]).values() if isinstance(cls, type) and _is_component(cls)}
    return found


def _is_component(cls: type) -> bool:
    return issubclass(cls, (eqx.Module, Record)) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


def num_bytes(tree: PyTree) -> int:
    """How many bytes of numbers a tree carries over a wire (floats as float64)."""
    return sum(8 * np.size(leaf) for leaf in jax.tree.leaves(tree) if eqx.is_array_like(leaf))


def _type_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _describe(node: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    if node is None or isinstance(node, (bool, int, str)):
        return node
    if isinstance(node, (np.ndarray, np.generic, jax.Array)):
        name, array = path or "value", np.asarray(node)
        if array.dtype.kind not in "biufcUS":  # numpy would pickle objects, and forget what a bfloat16 is
            raise TypeError(f"an array of {array.dtype} at {path or 'the root'} cannot be written; use float32")
        arrays[name] = array
        return {"array": name}
    if isinstance(node, float):
        return {"float": node.hex()}  # exact, infinities and NaN included
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        names = getattr(node, "_fields", ())
        fields = {name: _describe(getattr(node, name), f"{path}/{name}", arrays) for name in names}
        return {"namedtuple": _type_name(type(node)), "fields": fields}
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
        return {"module": _type_name(type(node)), "fields": fields}
    raise TypeError(f"a {type(node).__name__} at {path or 'the root'} cannot be written; use arrays and numbers")


def _restore(node: Any, arrays: dict[str, np.ndarray], types: dict[str, type]) -> Any:
    if not isinstance(node, dict):
        return node
    if "float" in node:
        return float.fromhex(node["float"])
    if "array" in node:
        return arrays[node["array"]]
    if "list" in node:
        return [_restore(child, arrays, types) for child in node["list"]]
    if "tuple" in node:
        return tuple(_restore(child, arrays, types) for child in node["tuple"])
    if "dict" in node:
        return {key: _restore(child, arrays, types) for key, child in node["dict"]}
    fields = {name: _restore(child, arrays, types) for name, child in node["fields"].items()}
    if "namedtuple" in node:
        return _foreign_type(node["namedtuple"], types)(**fields)
    cls = _cavity_type(node["module"]) if _is_of_cavity(node["module"]) else _foreign_type(node["module"], types)
    if fields.keys() != {field.name for field in dataclasses.fields(cls)}:
        raise CheckpointError(f"its {cls.__name__} has other fields than this version's; use the version that wrote it")
    # past __init__, which may compute or check: the fields are exactly what was there
    instance = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(instance, name, value)
    return instance


def _is_of_cavity(name: str) -> bool:
    return name.split(":")[0].split(".")[0] == "cavity"


def _foreign_type(name: str, types: dict[str, type]) -> Any:
    if name not in types:
        module, _, qualified = name.partition(":")
        raise CheckpointError(
            f"it holds a {qualified} from {module}, which is not Cavity's; load it together with the algorithm"
        )
    return types[name]


def _cavity_type(name: str) -> Any:
    module, _, qualified = name.partition(":")
    try:
        cls = getattr(importlib.import_module(module), qualified)
    except (ImportError, AttributeError):
        raise CheckpointError(f"it holds a {name}, which this version of Cavity does not know") from None
    if not (isinstance(cls, type) and issubclass(cls, (eqx.Module, Record))):
        raise CheckpointError(f"{name} is not a component of Cavity")
    return cls
