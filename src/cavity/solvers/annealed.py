"""Adam with a step size that falls to zero over a solve, so that it converges instead of fluctuating."""

from __future__ import annotations

from functools import cache

from jaxtyping import Array, Float

from cavity.solvers.optimiser import MakeOptimiser, Optimiser


@cache
def annealed_adam(num_steps: int) -> MakeOptimiser:
    """A function from a step size to Adam with a cosine schedule of this length.

    The same length returns the same function, so that a sweep over step sizes compiles once.

    Example: `SharedDescent(annealed_adam(300), 0.03, num_steps=300)`
    """
    import optax

    def optimiser(step_size: Float[Array, ""]) -> Optimiser:
        return optax.adam(optax.cosine_decay_schedule(step_size, num_steps))

    return optimiser
