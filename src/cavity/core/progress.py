"""The progress of a run, its speed, and the time that it may still take."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EVERY_SECONDS = 0.2  # between two updates of a line on a terminal
EVERY_SECONDS_IN_A_FILE = 30.0


@dataclass(frozen=True)
class Progress:
    """The progress of a run at one moment.

    Attributes:
        round: the round that is under way, from 1.
        rounds: the maximum number of rounds.
        visits: accepted replies of this round so far.
        visits_in_round: how many make a round.
        gap: the largest gap after the last complete round, in nats; NaN in the first round, infinite before all clients
            have replied, and after an improper start.
        clients_per_second: replies per second since the run began.
        seconds_left: at that speed, if all rounds are needed.
    """

    round: int
    rounds: int
    visits: int
    visits_in_round: int
    gap: float
    clients_per_second: float
    seconds_left: float

    def __str__(self) -> str:
        parts = [f"round {self.round} of at most {self.rounds}"]
        if self.visits_in_round > 1:
            parts.append(f"{self.visits:,} of {self.visits_in_round:,} clients")
        if math.isfinite(self.gap):  # in sampled rounds it is infinite until all clients have replied
            parts.append(f"change {self.gap:.1e} nats")
        speed = self.clients_per_second
        parts.append(f"{speed:,.0f} clients/s" if speed >= 100 else f"{speed:.3g} clients/s")
        parts.append(f"at most {_duration(self.seconds_left)} left")
        return ", ".join(parts)


Watcher = Callable[[Progress], None]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ProgressLine:
    """A watcher that keeps one line of a terminal up to date (by default stderr), or adds some to a file."""

    def __init__(self, stream: Any = None):
        self._stream = sys.stderr if stream is None else stream
        self._shown, self._width = time.monotonic(), 0

    def __call__(self, progress: Progress) -> None:
        terminal = self._stream.isatty()
        now, ended = time.monotonic(), progress.seconds_left == 0
        if not ended and now - self._shown < (EVERY_SECONDS if terminal else EVERY_SECONDS_IN_A_FILE):
            return
        self._shown, text = now, str(progress)
        if terminal:
            self._stream.write("\r" + text.ljust(self._width) + ("\n" if ended else ""))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


class Stopwatch:
    """Counts replies over a run and reports them to a watcher."""

    def __init__(self, watcher: Watcher | None, rounds: int):
        self._watcher, self._rounds = watcher, rounds
        self._began, self._replies = time.monotonic(), 0
        self.begin(0, 1, ())

    def begin(self, rounds_done: int, visits_in_round: int, last: Sequence[Mapping[str, Any]]) -> None:
        """So many rounds are done; `last` is the record of the last one, if there is one."""
        self._rounds_done, self._visits_in_round = rounds_done, visits_in_round
        self._gap = last[-1]["gap"] if last else float("nan")

    def on_replies(self, visits: int, new_replies: int) -> None:
        """So many visits since `begin`, the newest by so many replies."""
        self._replies += new_replies
        if self._watcher is None:
            return
        speed = self._replies / max(time.monotonic() - self._began, 1e-9)
        left = max((self._rounds - self._rounds_done) * self._visits_in_round - visits, 0)
        done, visits = divmod(visits, self._visits_in_round)
        if done > 0 and visits == 0:  # the end of a round is its last visit, not the beginning of the next
            done, visits = done - 1, self._visits_in_round
        self._watcher(
            Progress(
                round=self._rounds_done + done + 1,
                rounds=self._rounds,
                visits=visits,
                visits_in_round=self._visits_in_round,
                gap=self._gap,
                clients_per_second=speed,
                seconds_left=left / speed if speed > 0 else float("inf"),
            )
        )
