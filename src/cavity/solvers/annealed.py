"""Adam whose steps fall to nothing over a solve: it ends where it would hover."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def annealed_adam(num_steps: int) -> Callable[[Any], Any]:
    """From a step size to Adam with a cosine of this length; one function per length, so that a sweep compiles once.

    Example: `SharedDescent(annealed_adam(300), 0.03, num_steps=300)`
    """
    import optax

    def optimiser(step_size: Any) -> Any:
        return optax.adam(optax.cosine_decay_schedule(step_size, num_steps))

    return optimiser
