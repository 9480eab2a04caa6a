"""Which classes a file or a message may hold, and which values their fields may have.

A component is rebuilt from its fields, past its constructor. So a class must be one of Cavity's parts or records, or
one that the caller names, and every value must be of the kind that the field's annotation says. Nothing outside the
packages below is ever imported because a file names it, and a message imports nothing at all.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jaxtyping
import numpy as np

from cavity.core.messages import Record
from cavity.errors import CheckpointError, printable

PACKAGES = frozenset(
    {
        "algorithms", "distributions", "divergences", "hyperparameters", "core", "likelihoods", "losses",
        "models", "schedules", "aggregation", "solvers",
    }
)  # fmt: skip
MODULES = frozenset(
    {
        "cavity.network.protocol", "cavity.study.columns", "cavity.study.encoding", "cavity.study.scaling",
    }
)  # fmt: skip
_NAME = re.compile(r"(cavity\.([a-z][a-z0-9_]*)(?:\.[a-z][a-z0-9_]*)*):([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)

Check = Callable[[Any], bool]


def name_of(cls: type) -> str:
    """How a class is written."""
    return f"{cls.__module__}:{cls.__qualname__}"


def is_component(cls: Any) -> bool:
    """Whether a class is a part or a record, or a named tuple as optimisers use them."""
    return isinstance(cls, type) and (
        issubclass(cls, (eqx.Module, Record)) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


def class_of(name: Any, given: Mapping[str, type], *, imports: bool) -> Any:
    """The class of this name.

    Args:
        name: as `name_of` writes it.
        given: those from outside Cavity that the caller allows, by name.
        imports: whether a module of Cavity's parts may be imported for it.

    Raises:
        CheckpointError: there is none, or it may not be rebuilt.
    """
    if not isinstance(name, str):
        raise CheckpointError("its manifest does not describe a tree (a class without a name)")
    if name in given:
        return given[name]
    if name.split(":")[0].split(".")[0] != "cavity":
        module, _, qualified = name.partition(":")
        raise CheckpointError(
            f"it holds a {printable(qualified)} from {printable(module)}, which is not Cavity's; load it together "
            "with the algorithm"
        )
    return _part_of_cavity(name, imports)


@lru_cache(maxsize=1024)
def _part_of_cavity(name: str, imports: bool) -> Any:
    unknown = CheckpointError(f"it holds {printable(name)}, which is not a component that this version of Cavity knows")
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise unknown
    module, package, qualified = parts.groups()
    if package not in PACKAGES and module not in MODULES:
        raise unknown
    if imports:
        try:
            importlib.import_module(module)
        except ImportError:
            raise unknown from None
    cls = vars(sys.modules[module]).get(qualified) if module in sys.modules else None
    whole = is_component(cls) and getattr(cls, "__module__", None) == module and not inspect.isabstract(cls)
    if cls is None or not whole or issubclass(cls, tuple):
        raise unknown
    return cls


def rebuilt(cls: Any, fields: dict[str, Any]) -> Any:
    """A component with these fields.

    Raises:
        CheckpointError: they are not those of the class, or of other kinds.
    """
    checks = _checks_of(cls)
    if fields.keys() != checks.keys():
        raise CheckpointError(f"its {cls.__name__} has other fields than this version's; use the version that wrote it")
    for name, value in fields.items():
        if not checks[name](value):
            raise CheckpointError(f"its {cls.__name__} has a {type(value).__name__} as {name}, which cannot be")
    if issubclass(cls, tuple):
        return cls(**fields)
    # past __init__, which may compute or check: the fields are exactly what was there
    instance = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(instance, name, value)
    return instance


@lru_cache(maxsize=1024)
def _checks_of(cls: Any) -> dict[str, Check]:
    """A check for each field, from its annotation; one that cannot be read allows all."""
    if inspect.isabstract(cls):
        raise CheckpointError(f"it holds a {cls.__name__}, which is abstract")
    if issubclass(cls, tuple):
        return dict.fromkeys(getattr(cls, "_fields", ()), _anything)
    exact = issubclass(cls, Record)
    try:
        hints = typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):  # names for type checkers only, or a jaxtyping shape
        hints = {}
    return {field.name: _check_of(hints.get(field.name, Any), exact) for field in dataclasses.fields(cls)}


def _check_of(hint: Any, exact: bool) -> Check:
    """Whether a value is of the kind that an annotation says.

    Args:
        hint: the annotation.
        exact: for a record, whose numbers are Python's; those of a part may be arrays.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = [_check_of(option, exact) for option in inner]
        return lambda value: any(option(value) for option in options)
    if origin is tuple:
        return _check_of_tuple(inner, exact)
    if origin is dict:
        of_values = _check_of(inner[1], exact)
        return lambda value: type(value) is dict and all(map(of_values, value.values()))
    return _check_of_class(hint, exact)


def _check_of_tuple(inner: tuple[Any, ...], exact: bool) -> Check:
    checks = [_check_of(each, exact) for each in inner if each is not Ellipsis]
    if inner[-1:] == (Ellipsis,):
        return lambda value: type(value) is tuple and all(map(checks[0], value))
    return lambda value: (
        type(value) is tuple
        and len(value) == len(checks)
        and all(check(each) for check, each in zip(checks, value, strict=True))
    )


def _check_of_class(cls: Any, exact: bool) -> Check:
    if cls is type(None):
        return lambda value: value is None
    if cls is str:
        return lambda value: isinstance(value, str)
    if cls in (bool, int, float):
        return _PLAIN[cls] if exact else lambda value: _PLAIN[cls](value) or _is_numbers(value)
    if not isinstance(cls, type):
        return _anything
    if issubclass(cls, enum.Enum):
        values = [member.value for member in cls]
        return lambda value: type(value) in (str, int) and value in values
    if issubclass(cls, (eqx.Module, Record)):
        return lambda value: isinstance(value, cls)
    if issubclass(cls, (np.ndarray, jax.Array, jaxtyping.AbstractArray)):
        return lambda value: value is None or type(value) is bool or _PLAIN[float](value) or _is_numbers(value)
    return _anything


def _anything(value: Any) -> bool:
    return True


def _is_numbers(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc"


_PLAIN: dict[type, Check] = {
    bool: lambda value: type(value) is bool,
    int: lambda value: type(value) is int and value.bit_length() <= 64,
    float: lambda value: type(value) is float or (type(value) is int and value.bit_length() <= 64),
}
