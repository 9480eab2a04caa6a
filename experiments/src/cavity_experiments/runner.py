"""What experiments and benchmarks share: settings, seeds, results, checks and figures.

An experiment is a function of a `Journal`, a `Size` and a seed. It writes into the journal, which keeps a complete
JSON file at all times, so an interrupted run loses no results:

    def shrinkage(journal: Journal, size: Size, seed: int) -> None:
        journal.settings(num_clients=10)
        journal.row("runs", seed=seed, kl=kl)
        journal.check("core-9 shrinkage", kl, "< 1e-2", kl < 1e-2)
        journal.figure("kl", lambda: plots.compare(histories, "kl"))
"""

from __future__ import annotations

import enum
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cavity.errors import CavityError
from cavity.io.checkpoints import write_atomically
from cavity.io.versions import versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULT = "result.json"


class Size(enum.Enum):
    """How much of an experiment to run: about a minute, what the checks need, or everything."""

    QUICK = "quick"
    DEFAULT = "default"
    FULL = "full"


@dataclass(frozen=True)
class Check:
    """A threshold, and whether a value meets it.

    Attributes:
        name: a short word and a number, then what it is: "core-3a synchronous PVI, split A".
        value: the measured value; None if the run did not measure it.
        bar: the threshold, in words: "< 1e-2 within 3 rounds".
        holds: whether it is met; None if this run cannot decide it.
    """

    name: str
    value: float | None
    bar: str
    holds: bool | None


@dataclass(frozen=True)
class Result:
    """The results of a run.

    Attributes:
        name: of the experiment.
        settings: what must be the same to repeat it.
        results: tables (lists of flat rows) and single numbers by name.
        checks: the thresholds.
        figures: files, relative to the run's directory.
        seconds: wall time, compilation included.
        versions: of Python and the packages that compute, and the kind and number of processors.
        complete: whether the experiment finished.
    """

    name: str
    settings: Mapping[str, Any]
    results: Mapping[str, Any]
    checks: tuple[Check, ...]
    figures: tuple[str, ...]
    seconds: float
    versions: Mapping[str, str]
    complete: bool

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that do not hold, without those that could not be decided."""
        return tuple(check for check in self.checks if check.holds is False)

    def report(self) -> dict[str, Any]:
        """Settings, results and checks in JSON's types, for programs that read the command's output."""
        return {entry: plain(getattr(self, entry)) for entry in ("settings", "results", "checks")}


Experiment = Callable[["Journal", Size, int], None]


class Journal:
    """Where an experiment writes its results as soon as it has them.

    Args:
        name: of the experiment.
        directory: for `result.json` and the figures; created if missing.
        say: shows one line of progress.
        size: a setting.
        seed: a setting.
    """

    def __init__(
        self,
        name: str,
        directory: str | os.PathLike[str],
        say: Callable[[str], None] = lambda line: None,
        *,
        size: Size = Size.DEFAULT,
        seed: int = 0,
    ):
        self.say = say
        self._name, self._directory = name, Path(directory)
        self._began = time.perf_counter()
        self._settings: dict[str, Any] = {"experiment": name, "size": size.value, "seed": seed}
        self._results: dict[str, Any] = {}
        self._checks: list[Check] = []
        self._figures: list[str] = []
        self._write()

    def settings(self, **settings: Any) -> None:
        """State what would have to be the same to repeat the run."""
        self._settings |= settings
        self._write()

    def put(self, name: str, value: Any) -> None:
        """One result: a number, or anything that JSON can hold."""
        self._results[name] = value
        self._write()

    def row(self, table: str, **cells: Any) -> None:
        """One more row of a table of results."""
        self._results.setdefault(table, []).append(cells)
        self._write()

    def check(self, name: str, value: Any, bar: str, holds: Any) -> None:
        """Compare a value with its threshold; `holds` is None if this run cannot decide it."""
        if any(check.name == name for check in self._checks):
            raise CavityError(f"the check {name!r} was made twice")
        self._checks.append(Check(name, plain(value), bar, None if holds is None else bool(holds)))
        self._write()

    def figure(self, name: str, draw: Callable[[], Figure]) -> None:
        """Save a figure as PNG; without matplotlib the run continues, with a message."""
        try:
            figure = draw()
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != "matplotlib":
                raise
            self.say(f"figure {name!r} is left out: matplotlib is not installed (pip install 'cavity[plots]')")
            return
        figure.savefig(self._directory / f"{name}.png", dpi=150)
        self._figures.append(f"{name}.png")
        self._write()

    def result(self, *, complete: bool) -> Result:
        """What was written so far."""
        return Result(
            name=self._name,
            settings=self._settings,
            results=self._results,
            checks=tuple(self._checks),
            figures=tuple(self._figures),
            seconds=time.perf_counter() - self._began,
            versions=versions(),
            complete=complete,
        )

    def close(self) -> Result:
        """The result of an experiment that came to its end."""
        self._write(complete=True)
        return self.result(complete=True)

    def _write(self, *, complete: bool = False) -> None:
        content = json.dumps(plain(self.result(complete=complete)), indent=2, allow_nan=False)
        write_atomically(self._directory / RESULT, content.encode() + b"\n")


def run(
    name: str,
    experiment: Experiment,
    *,
    directory: str | os.PathLike[str],
    size: Size = Size.DEFAULT,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Result:
    """Run an experiment; its directory has all that was found, also where it is interrupted."""
    journal = Journal(name, directory, say, size=size, seed=seed)
    experiment(journal, size, seed)
    return journal.close()


def plain(value: Any) -> Any:
    """The value in JSON's types. A number that is not finite has none, and becomes null: never a zero.

    Example:
        >>> import numpy as np
        >>> plain({"kl": np.float64(0.5), "rows": np.array([1, 2]), "free_energy": float("nan")})
        {'kl': 0.5, 'rows': [1, 2], 'free_energy': None}
    """
    if isinstance(value, (Check, Result)):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(entry) for entry in value]
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(value, "tolist"):  # arrays and scalars of numpy and JAX
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON; give numbers, strings, lists and dicts")
