"""When a noisy objective has stopped falling."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cavity.core.fields import as_count, as_number


class PlateauState(eqx.Module):
    """Sums over the current window, the best window so far, and how many windows have not beaten it."""

    total: Float[Array, ""]
    count: Int[Array, ""]
    best: Float[Array, ""]
    waited: Int[Array, ""]


class Plateau(eqx.Module):
    """Stop when `patience` windows in a row did not lower the best window's mean by more than `tolerance` nats.

    Attributes:
        window: steps per window; an epoch is a good choice.
        patience: windows without progress before stopping.
        tolerance: in nats, what counts as progress.
        expected_loss_only: watch the expected loss and not the whole objective: the early stopping of PVI's section
            5.3.1 against over-pruning, which needs a tight start.
    """

    window: Int[Array, ""] = eqx.field(converter=as_count, default=100)
    patience: Int[Array, ""] = eqx.field(converter=as_count, default=5)
    tolerance: Float[Array, ""] = eqx.field(converter=as_number, default=0.0)
    expected_loss_only: bool = eqx.field(static=True, default=False)

    def init(self, dtype: Any) -> PlateauState:
        """Nothing seen yet."""
        zero, none = jnp.zeros((), dtype), jnp.asarray(0)
        return PlateauState(zero, none, jnp.full((), jnp.inf, dtype), none)

    def update(self, state: PlateauState, value: Float[Array, ""], loss: Float[Array, ""]) -> PlateauState:
        """One step's objective and expected loss."""
        total = state.total + (loss if self.expected_loss_only else value)
        count = state.count + 1
        full = count >= self.window
        mean = total / count
        better = mean < state.best - self.tolerance.astype(mean.dtype)
        return PlateauState(
            total=jnp.where(full, 0.0, total),
            count=jnp.where(full, 0, count),
            best=jnp.where(full & better, mean, state.best),
            waited=jnp.where(full, jnp.where(better, 0, state.waited + 1), state.waited),
        )

    def reached(self, state: PlateauState) -> Bool[Array, ""]:
        """Whether to stop."""
        return state.waited >= self.patience
