"""Numbers of a part as array leaves, so that one compiled program serves a sweep over them.

The leaves are strongly typed: it does not matter whether a number came from Python or numpy. A part casts them to the
precision of its problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, overload

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from cavity.core.types import Leaf
from cavity.errors import CavityError, UnsuitableError

Number = float | int | np.number | Leaf  # one number, from Python, numpy or jax
Count = int | np.integer | Leaf  # one whole number
T = TypeVar("T")


@overload
def as_number(value: None) -> None: ...
@overload
def as_number(value: Number | Sequence[float]) -> Array: ...
def as_number(value: Number | Sequence[float] | None) -> Array | None:
    """A real number as an array leaf; None stays None."""
    return None if value is None else jnp.asarray(value, float)


def as_count(value: Number | Sequence[int]) -> Array:
    """A whole number as an array leaf."""
    return jnp.asarray(value, int)


def require(
    value: Number | Sequence[float], holds: Callable[[np.ndarray], bool | np.bool_ | np.ndarray], message: str
) -> None:
    """Check a number that a user gave. A traced number is not checked.

    Args:
        value: the number.
        holds: the condition.
        message: what the number must be, for the error.

    Raises:
        CavityError: the value is not one finite number, or the condition does not hold.
    """
    if is_traced(value):
        return
    number = np.asarray(value)
    if number.ndim:
        raise CavityError(f"{message}, and one number, not {number.tolist()}")
    if not (np.all(np.isfinite(number)) and np.all(holds(number))):
        raise CavityError(f"{message}, not {number}")


def require_kind(value: object, kind: type[T], message: str, error: type[CavityError] = CavityError) -> T:
    """Check the kind of a part that a user gave.

    Args:
        value: the part.
        kind: the class that it must be an instance of.
        message: what the part must be, for the error.
        error: the class of the error.

    Returns:
        The part.

    Raises:
        CavityError: the part is of another kind. The message ends with the name of its class, or with the value itself
            where it is not a part of Cavity.
    """
    if isinstance(value, kind):
        return value
    raise error(f"{message}, not {type(value).__name__ if isinstance(value, eqx.Module) else repr(value)}")


def require_capability(found: T | None, message: str) -> T:
    """Check that a part has a capability, which it returns as an object, or None.

    Args:
        found: what the part returned.
        message: what needs the capability, which part lacks it, and the remedy, for the error.

    Returns:
        The capability.

    Raises:
        UnsuitableError: the part lacks it.
    """
    if found is None:
        raise UnsuitableError(message)
    return found


def is_traced(value: Number | Sequence[float]) -> bool:
    """Whether a number is only known when a compiled function runs."""
    return isinstance(value, Tracer)
