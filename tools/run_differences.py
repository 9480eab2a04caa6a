"""How far the runs of `record_runs.py` are from a record of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-12  # relative
MEAN, SD = "summary/mean", "summary/sd"  # the names of the arrays with the parameters' means and standard deviations

Numbers = dict[str, np.ndarray]


@dataclass(frozen=True)
class Difference:
    """How far a run is from its record.

    Attributes:
        relative: the largest difference of an array, relative to the largest number of that array.
        where: the name of that array.
        absolute: the largest difference in that array.
        in_sds: the largest difference of a posterior mean in posterior standard deviations.
    """

    relative: float
    where: str
    absolute: float
    in_sds: float

    def __str__(self) -> str:
        differs = "" if self.relative <= TOLERANCE else "   differs"
        where = self.where if self.relative else ""
        return f"{self.relative:9.1e} {self.absolute:9.1e} {self.in_sds:9.1e}  {where}{differs}".rstrip()


def array_difference(found: np.ndarray, recorded: np.ndarray) -> tuple[float, float]:
    """The largest difference relative to the largest number, and absolute; infinite where shapes or NaNs differ.

    Numbers that are infinite in both, with the same sign, agree.
    """
    if found.shape != recorded.shape or (np.isnan(found) != np.isnan(recorded)).any():
        return float("inf"), float("inf")
    same = (found == recorded) | np.isnan(found)
    finite = np.isfinite(recorded)
    if not (same | finite & np.isfinite(found)).all():
        return float("inf"), float("inf")
    scale = max(float(np.max(np.abs(recorded), initial=0.0, where=finite)), 1e-300)
    apart = np.abs(np.where(same, 0.0, found) - np.where(same, 0.0, recorded))
    absolute = float(np.max(apart, initial=0.0))
    return absolute / scale, absolute


def run_difference(found: Numbers, recorded: Numbers) -> Difference:
    """How far a run is from its record; infinite where one of them has an array that the other lacks."""
    if lacking := found.keys() ^ recorded.keys():
        return Difference(float("inf"), f"only in one: {', '.join(sorted(lacking))}", float("inf"), float("inf"))
    by_array = {key: array_difference(found[key], recorded[key]) for key in recorded}
    where = max(by_array, key=lambda key: by_array[key][0], default="no arrays")
    relative, absolute = by_array.get(where, (float("inf"), float("inf")))
    in_sds = 0.0
    for key in (key for key in recorded if key.endswith(MEAN) and found[key].shape == recorded[key].shape):
        sd = recorded[key.removesuffix(MEAN) + SD]
        apart = np.abs(found[key] - recorded[key])
        in_sds = max(in_sds, float(np.max(np.divide(apart, sd, where=sd > 0, out=np.zeros_like(apart)), initial=0.0)))
    return Difference(relative, where, absolute, in_sds)


def by_run(arrays: Numbers) -> dict[str, Numbers]:
    """Run -> its arrays, from the arrays of a file."""
    runs: dict[str, Numbers] = {}
    for key, value in arrays.items():
        name, of_run = key.split("|")
        runs.setdefault(name, {})[of_run] = value
    return runs


def compare(later: Iterable[tuple[str, Numbers]], recorded: dict[str, Numbers]) -> bool:
    """Print how far every run is from its record; whether all agree.

    Args:
        later: runs and their arrays.
        recorded: of the same runs; a run that only one of the two has does not agree.
    """
    print(f"{'run':32}  relative  absolute    in sds  largest in")
    agree, seen = True, set()
    for name, found in later:
        difference = run_difference(found, recorded.get(name, {}))
        agree, seen = agree and difference.relative <= TOLERANCE, seen | {name}
        print(f"{name:32} {difference}", flush=True)
    for name in recorded.keys() - seen:
        agree = False
        print(f"{name:32} was not run again", flush=True)
    return agree
