"""Progress lines of long runs, for the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cavity_experiments.runner import Journal


def each_tenth(journal: Journal, label: str, total: int) -> Callable[[dict[str, Any], Any], None]:
    """An observer that shows a line at each tenth of `total` rounds: the bound, the time, the time left."""

    def observe(record: dict[str, Any], server: Any) -> None:
        count, seconds = record["round"], record["seconds"]
        if count % max(total // 10, 1) == 0 and count < total:
            bound, left = record["free_energy"], seconds / count * (total - count)
            journal.say(f"{label}: {count} of {total}, bound {bound:.5g}, {seconds:.0f} s, {left:.0f} s left")

    return observe
