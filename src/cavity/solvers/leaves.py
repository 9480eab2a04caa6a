"""A solver's numbers as array leaves: a compiled solve serves a whole sweep over them.

They are strongly typed, so that it does not matter whether a number came from Python or numpy; a solver casts them to
the precision of its problem.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array


def as_number(value: Any) -> Any:
    """A real number; None stays None."""
    return None if value is None else jnp.asarray(value, float)


def as_count(value: Any) -> Array:
    """A whole number."""
    return jnp.asarray(value, int)
