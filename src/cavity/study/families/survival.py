"""What the families of survival outcomes have in common: `Surv(time, status)` or `Surv(start, stop, status)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cavity.likelihoods.survival_times import NUM_COLUMNS, STATUS_CODES
from cavity.study.columns import Boolean, Column, Number, Numeric
from cavity.study.encoding import FormulaEncoding
from cavity.study.families.family import Family
from cavity.study.guessing import RawColumn

COLUMNS = "Surv() takes two columns, time and status, or three, start, stop and status"


@dataclass(frozen=True)
class SurvivalFamily(Family):
    """A family whose outcome is a time that may be censored, and may start late."""

    outcome_function: ClassVar[str | None] = "Surv"
    left_hint: ClassVar[str] = ", as in `Surv(time, status) ~ age`"

    def outcome_problem(self, outcome: tuple[Column, ...]) -> str | None:
        if len(outcome) not in NUM_COLUMNS:
            return f"{COLUMNS}, not {len(outcome)}"
        *times, status = outcome
        if wrong := [column.name for column in times if not column.is_numeric]:
            return f"the time '{wrong[0]}' of Surv() must be a number"
        match status:
            case Boolean():
                return None
            case Numeric(range=(low, high)) if not low <= 0 <= 1 <= high:
                return f"the range of '{status.name}' does not have 0 and 1; {STATUS_CODES}"
            case Numeric():
                return None
        return f"the last column of Surv(), '{status.name}', is the status, 0 and 1 or boolean; {STATUS_CODES}"

    def has_late_entry(self, encoding: FormulaEncoding) -> bool:
        """Whether the outcome has a start."""
        return len(encoding.outcome) == max(NUM_COLUMNS)

    def outcome_column(self, raw: RawColumn, position: int) -> Column:
        if raw.levels is None and raw.is_boolean:
            return Boolean(name=raw.name, missing=raw.missing)
        return Number(name=raw.name, missing=raw.missing)
