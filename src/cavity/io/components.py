"""Rebuild a component from its stored fields, after a check of every value against the field's annotation.

A component is rebuilt without its constructor, which may compute or check. So each value must be of the type that the
annotation of its field states. `cavity.io.type_table` says which classes may be rebuilt.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache

import equinox as eqx
import jax
import jaxtyping
import numpy as np

from cavity.core.messages import Record
from cavity.errors import CheckpointError, printable
from cavity.io.type_table import Stored, fields_of

Check = Callable[[object], bool]


def rebuild(stored: Stored, values: Mapping[str, object]) -> object:
    """A component with these values in its fields.

    An older version of a class that lacks a field gets the default of the field.

    Args:
        stored: the class, and the fields of the version that was stored.
        values: a value for each of these fields.

    Raises:
        CheckpointError: a field is missing, is not one of the class, or has a value of another type.
    """
    cls = stored.cls
    if tuple(values) != stored.fields and values.keys() != set(stored.fields):
        _refuse_fields(cls.__name__, stored.fields, values)
    if stored.fields != fields_of(cls):
        values = {**_defaults_for(stored), **values}
    checks = _checks_of(cls)
    for name, value in values.items():
        if not checks[name](value):
            raise CheckpointError(f"its {cls.__name__} has a {type(value).__name__} as {name}, which is not allowed")
    if issubclass(cls, tuple):
        return cls(**values)
    instance = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


def _refuse_fields(name: str, expected: tuple[str, ...], values: Mapping[str, object]) -> typing.NoReturn:
    missing = [f"lacks the field {field}" for field in expected if field not in values]
    extra = [f"has the unknown field {printable(field, 50)}" for field in values if field not in expected]
    raise CheckpointError(f"its {name} {(missing + extra)[0]}; use the version of Cavity that wrote it")


@lru_cache(maxsize=1024)
def _defaults_for(stored: Stored) -> dict[str, object]:
    """The values of the fields that an older version of a class does not have."""
    cls = stored.cls
    current, known = fields_of(cls), _defaults_of(cls)
    gone = [name for name in stored.fields if name not in current]
    new = [name for name in current if name not in stored.fields]
    if gone or any(name not in known for name in new):
        raise CheckpointError(
            f"its {cls.__name__} is of an older version with other fields; use the version of Cavity that wrote it"
        )
    return {name: known[name] for name in new}


def _defaults_of(cls: type) -> dict[str, object]:
    """The fields of a class that have a default, with the default as the constructor would store it."""
    if issubclass(cls, tuple):
        return dict(getattr(cls, "_field_defaults", {}))
    found: dict[str, object] = {}
    for field in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            continue
        found[field.name] = field.metadata.get("converter", lambda value: value)(value)
    return found


@lru_cache(maxsize=1024)
def _checks_of(cls: type) -> dict[str, Check]:
    """A check for each field, from its annotation; an annotation that cannot be evaluated allows every value."""
    if inspect.isabstract(cls):
        raise CheckpointError(f"it holds a {cls.__name__}, which is abstract")
    if issubclass(cls, tuple):
        return dict.fromkeys(fields_of(cls), _anything)
    exact, hints = issubclass(cls, Record), _hints_of(cls)
    return {name: _check_of(hints.get(name), exact) for name in fields_of(cls)}


def _hints_of(cls: type) -> dict[str, object]:
    """The annotations of a class and its bases, without those that cannot be evaluated."""
    found: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        for name, annotation in inspect.get_annotations(base).items():
            alone = type(base.__name__, (), {"__annotations__": {name: annotation}, "__module__": base.__module__})
            found.pop(name, None)
            try:
                found[name] = typing.get_type_hints(alone)[name]
            except (NameError, TypeError, AttributeError, SyntaxError):  # names for type checkers, or a jaxtyping shape
                continue
    return found


def _check_of(hint: object, exact: bool) -> Check:
    """A function that says whether a value is of the type that an annotation states.

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
        return lambda value: isinstance(value, dict) and all(map(of_values, value.values()))
    return _check_of_class(hint, exact) if inspect.isclass(hint) else _anything


def _check_of_tuple(inner: tuple[object, ...], exact: bool) -> Check:
    checks = [_check_of(each, exact) for each in inner if each is not Ellipsis]
    repeated = inner[-1:] == (Ellipsis,)

    def check(value: object) -> bool:
        if type(value) is not tuple:
            return False
        each = checks * len(value) if repeated else checks
        return len(value) == len(each) and all(test(item) for test, item in zip(each, value, strict=True))

    return check


def _check_of_class(cls: type, exact: bool) -> Check:
    if cls is type(None):
        return lambda value: value is None
    if cls in _NUMBERS:
        plain = _NUMBERS[cls]
        return plain if exact else lambda value: plain(value) or _is_numbers(value)
    if issubclass(cls, enum.Enum):
        values = [member.value for member in cls]
        return lambda value: type(value) in (str, int) and value in values
    if cls is str or issubclass(cls, (eqx.Module, Record)):
        return lambda value: isinstance(value, cls)
    if issubclass(cls, (np.ndarray, np.generic, jax.Array, jaxtyping.AbstractArray)):
        return lambda value: value is None or type(value) is bool or _is_float(value) or _is_numbers(value)
    return _anything


def _anything(value: object) -> bool:
    return True


def _is_numbers(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc"


def _is_int(value: object) -> bool:
    return type(value) is int and value.bit_length() <= 64


def _is_float(value: object) -> bool:
    return type(value) is float or _is_int(value)


_NUMBERS: dict[type, Check] = {bool: lambda value: type(value) is bool, int: _is_int, float: _is_float}
