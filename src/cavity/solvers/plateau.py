"""A convergence test for a noisy objective."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from cavity.core.fields import as_count, as_number


class PlateauState(eqx.Module):
    """Sums over the current window, the best window so far, and the number of windows since then."""

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
        expected_loss_only: watch the expected loss rather than the whole objective. This is the early stopping of PVI's
            section 5.3.1 against over-pruning, which needs a tight start.
    """

    window: Int[Array, ""] = eqx.field(converter=as_count, default=100)
    patience: Int[Array, ""] = eqx.field(converter=as_count, default=5)
    tolerance: Float[Array, ""] = eqx.field(converter=as_number, default=0.0)
    expected_loss_only: bool = eqx.field(static=True, default=False)

    def init(self, dtype: DTypeLike) -> PlateauState:
        """The state before the first step."""
        zero, none = jnp.zeros((), dtype), jnp.asarray(0)
        return PlateauState(zero, none, jnp.full((), jnp.inf, dtype), none)

    def update(self, state: PlateauState, value: Float[Array, ""], loss: Float[Array, ""]) -> PlateauState:
        """The state after a step with this objective and expected loss."""
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


def updated(
    plateau: Plateau | None, state: PlateauState | None, value: Float[Array, ""], loss: Float[Array, ""]
) -> PlateauState | None:
    """The state of a convergence test after a step; None where there is no test."""
    return None if plateau is None or state is None else plateau.update(state, value, loss)


def has_reached(plateau: Plateau | None, state: PlateauState | None) -> Bool[Array, ""]:
    """Whether a convergence test says to stop; never where there is no test."""
    return jnp.asarray(False) if plateau is None or state is None else plateau.reached(state)
