"""Survival outcomes as arrays: `[n, 2]` with time and status, or `[n, 3]` with start, stop and status.

Status is 1 where the event happened at the time, and 0 where the row was censored then. With a start, the row was
observed from then on only (left truncation): it is at risk at times t with start < t <= stop.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cavity.core import Likelihood
from cavity.core.likelihood import Outcomes

NUM_COLUMNS = (2, 3)
STATUS_CODES = "status is 1 for an event and 0 for a censored row"


class SurvivalLikelihood(Likelihood):
    """A likelihood of survival outcomes.

    Attributes:
        late_entry: whether outcomes have a start.
    """

    late_entry: eqx.AbstractVar[bool]

    @property
    def num_outcomes(self) -> int:
        return 3 if self.late_entry else 2

    def check(self, y: np.ndarray) -> str | None:
        return survival_problem(y)


class SurvivalTimes(NamedTuple):
    """The columns of survival outcomes."""

    start: Float[Array, " *batch"] | None
    stop: Float[Array, " *batch"]
    status: Float[Array, " *batch"]


def survival_times(y: Outcomes) -> SurvivalTimes:
    """The columns of outcomes `[..., 2]` or `[..., 3]`; there is no start in the first."""
    y = jnp.asarray(y)
    start = y[..., 0] if y.shape[-1] == 3 else None
    return SurvivalTimes(start, y[..., -2], y[..., -1])


def survival_problem(y: np.ndarray) -> str | None:
    """What is wrong with these outcomes and the remedy; None where they are valid."""
    if y.ndim != 2 or y.shape[1] not in NUM_COLUMNS:
        return "a survival outcome has two columns, time and status, or three, start, stop and status"
    status, stop = y[:, -1], y[:, -2]
    if not np.isin(status, (0, 1)).all():
        if np.isin(status, (1, 2)).all():
            return f"the status is coded 1 and 2; {STATUS_CODES}: subtract 1 if 2 means the event"
        others = int((~np.isin(status, (0, 1))).sum())
        return f"the status has {_values(others)} other than 0 and 1; {STATUS_CODES}"
    if count := int((stop <= 0).sum()):
        return (
            f"{_values(count)} of the time {'is' if count == 1 else 'are'} zero or negative; survival times are "
            "positive: correct or drop these rows (a time within the first day may be given as 0.5)"
        )
    if y.shape[1] == 2:
        return None
    start = y[:, 0]
    if count := int((start < 0).sum()):
        return f"{_values(count)} of the start {'is' if count == 1 else 'are'} negative; count time from 0"
    if count := int((stop <= start).sum()):
        rows = "row has" if count == 1 else "rows have"
        return f"{count} {rows} a stop that is not after the start; correct these rows, or drop those without time"
    return None


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count} values"
