"""The interface of an optimiser; optax has many. A solver takes the function that makes one from a step size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from jaxtyping import Array, Float, PyTree


@runtime_checkable
class Optimiser(Protocol):
    """A gradient transformation, as optax defines it."""

    @property
    def init(self) -> Callable[[PyTree], PyTree]:
        """From parameters to the initial state."""
        ...

    @property
    def update(self) -> Callable[..., tuple[PyTree, PyTree]]:
        """From a gradient, the state and the parameters to an update of the parameters and the next state."""
        ...


MakeOptimiser = Callable[[Float[Array, ""]], Optimiser]
