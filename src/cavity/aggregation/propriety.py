"""How much of an update keeps the posterior proper: exponents are halved until it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from cavity.core.fields import is_traced
from cavity.core.types import Leaf

T = TypeVar("T", bound=PyTree)
MAX_HALVINGS = 40  # 2^-40 of an update is nothing: a posterior that is still improper then is refused
HALVINGS_ALONE = 10  # of one update by itself


def proper_scale(is_proper: Callable[[float | Leaf], bool | Leaf], most: int = MAX_HALVINGS) -> float | Leaf:
    """The largest of 1, 1/2, ..., 2^-most for which the posterior is proper; 0 where none is.

    It can be traced. Where `is_proper` answers with a plain boolean, it is called until it is true.

    Args:
        is_proper: whether the posterior is proper if all exponents are multiplied by this scale.
        most: the largest number of halvings.
    """
    first = is_proper(1.0)
    if not is_traced(first):
        scales = (2.0**-halvings for halvings in range(1, most + 1))
        return 1.0 if first else next((scale for scale in scales if is_proper(scale)), 0.0)

    def too_large(carry: tuple[Leaf, Leaf]) -> Leaf:
        scale, proper = carry
        return ~proper & (scale > 2.0**-most)

    def halve(carry: tuple[Leaf, Leaf]) -> tuple[Leaf, Leaf]:
        return carry[0] / 2, jnp.asarray(is_proper(carry[0] / 2))

    scale, proper = jax.lax.while_loop(too_large, halve, (jnp.ones(()), jnp.asarray(first)))
    return jnp.where(proper, scale, 0.0)


def halved(scale: float | Leaf, change: Callable[[T], T], state: T) -> T:
    """`change` applied to `state` once for each halving in `scale`."""
    if not is_traced(scale):
        for _ in range(round(float(-np.log2(scale)))):
            state = change(state)
        return state

    def like(new: T, old: T) -> T:
        return jax.tree.map(lambda n, o: jnp.asarray(n, jnp.asarray(o).dtype), new, old)

    count = jnp.round(-jnp.log2(jnp.where(scale > 0, scale, 1.0))).astype(jnp.int32)
    return jax.lax.fori_loop(0, count, lambda _, state: like(change(state), state), state)
