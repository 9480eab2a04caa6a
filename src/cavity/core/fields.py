"""A part's numbers as array leaves: one compiled program serves a whole sweep over them.

They are strongly typed, so that it does not matter whether a number came from Python or numpy; a part casts them to
the precision of its problem.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from cavity.errors import CavityError


def as_number(value: Any) -> Any:
    """A real number; None stays None."""
    return None if value is None else jnp.asarray(value, float)


def as_count(value: Any) -> Array:
    """A whole number."""
    return jnp.asarray(value, int)


def require(value: Any, holds: Callable[[np.ndarray], Any], message: str) -> None:
    """Raise CavityError unless the number is finite and the condition holds; a traced one is not looked at."""
    if isinstance(value, Tracer):
        return
    number = np.asarray(value)
    if number.ndim:
        raise CavityError(f"{message}, and one number, not {number.tolist()}")
    if not (np.all(np.isfinite(number)) and np.all(holds(number))):
        raise CavityError(f"{message}, not {number}")
