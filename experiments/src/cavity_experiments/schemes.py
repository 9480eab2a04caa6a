"""The federated learning schemes that PVI's section 5 compares, as choices of parts, and what their figures count.

Global VI is VI at one client with all rows, one step a round: the gradient is the sum of the clients' gradients, so
over a network every step would visit all clients. Streaming VB's first pass is VCL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cavity.aggregation import Fixed
from cavity.algorithms.cavities import AllButShare, Nothing
from cavity.core import Damping, Schedule
from cavity.core.messages import ServerState
from cavity.schedules import Sequential, Synchronous
from cavity.training import Observer, Record

UNDAMPED = Fixed(1.0)


@dataclass(frozen=True)
class Scheme:
    """Options of `PVI`, a schedule, and how many rounds (or passes) it runs."""

    schedule: Schedule
    rounds: int
    options: Mapping[str, Any] = field(default_factory=dict)


def schemes(
    num_rows: int, rounds: int, passes: int, synchronous: Damping, sequential: Damping | None = None
) -> dict[str, Scheme]:
    """All of them but global VI.

    Args:
        num_rows: of all clients together.
        rounds: of synchronous PVI.
        passes: of the sequential ones.
        synchronous: damping of synchronous PVI.
        sequential: damping of sequential PVI; None is adaptive.
    """
    split = {"damping": UNDAMPED, "removed": AllButShare(num_rows)}
    streaming = {"damping": UNDAMPED, "removed": Nothing()}
    return {
        "PVI, synchronous": Scheme(Synchronous(), rounds, {"damping": synchronous}),
        "PVI, sequential": Scheme(Sequential(), passes, {} if sequential is None else {"damping": sequential}),
        "BCM (same)": Scheme(Synchronous(), 1, {"damping": UNDAMPED}),
        "BCM (split)": Scheme(Synchronous(), 1, split),
        "VCL": Scheme(Sequential(), 1, streaming),
        "streaming VB": Scheme(Sequential(), passes, streaming),
    }


def counting_steps(schedule: Schedule, before: int = 0) -> Observer:
    """Writes the gradient steps so far into each record, as in the paper's figure 12: those that follow one another.

    Clients of a synchronous round work at the same time, so the longest solve counts; in a sequential pass all count.
    """
    combine: Callable[[Sequence[int]], int] = max if schedule.is_synchronous else sum
    total = before

    def count(record: Record, server: ServerState) -> None:
        nonlocal total
        reports = [client.report for client in server.clients.values() if client.report is not None]
        total += combine([int(report.steps) for report in reports])
        record["gradient_steps"] = total

    return count


def as_if_federated(history: Sequence[Record], num_clients: int) -> list[Record]:
    """The history of a pooled fit with one step a round, where every step would have visited all clients."""
    return [record | {"communications": num_clients * record["round"]} for record in history]
