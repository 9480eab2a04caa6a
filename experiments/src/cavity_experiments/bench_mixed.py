"""`cavity bench mixed`: time and memory of a large mixed model by formula, everything default.

183,000 simulated rows in 30,542 groups over 20 clients, logistic with random intercepts, in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys

from cavity.errors import CavityError
from cavity_experiments import mixed_size
from cavity_experiments.runner import Journal, Size

SECONDS, MEGABYTES = 240.0, 3000.0
OFF = 4.0  # sds from the values of the simulation


def bench_mixed(journal: Journal, size: Size, seed: int) -> None:
    """The fit and its summary; quick has a hundredth of the rows."""
    quick = size is Size.QUICK
    groups, rows = (305, 1830) if quick else (30_542, 183_000)
    journal.settings(formula=mixed_size.FORMULA, family="bernoulli", true=mixed_size.TRUE, seed=seed)
    journal.say(f"{rows:,} rows in {groups:,} groups over 20 clients")
    command = [sys.executable, "-m", "cavity_experiments.mixed_size", *map(str, (groups, rows, 20, seed))]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise CavityError(f"the fit fails: {finished.stderr.strip()[-300:]}")
    found = json.loads(finished.stdout)
    journal.row("size", **found)
    for name, value, bar, holds in (
        ("mixed-size seconds", found["seconds"], "< 240", found["seconds"] < SECONDS),
        ("mixed-size peak megabytes", found["megabytes"], "< 3000", found["megabytes"] < MEGABYTES),
        ("mixed-size estimates from the truth, in sds", found["off"], "< 4", found["off"] < OFF),
    ):
        journal.check(name, value, bar, None if quick else holds)
