"""`cavity bench core`: the cost of the core; each number is a ratio to a reference that is measured in the same run.

First `import cavity` against `import jax`, each in fresh processes, the best of five; then the local engine against
programs written by hand for one problem (`handwritten.py`), see `core_speed.py`.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from cavity.errors import CavityError
from cavity_experiments import core_speed
from cavity_experiments.runner import Journal, Size

IMPORT_BAR = 1.3


def bench_core(journal: Journal, size: Size, seed: int) -> None:
    """Import time, and the speed and memory of the local engine."""
    quick = size is Size.QUICK
    journal.settings(num_clients=core_speed.NUM_CLIENTS)
    _imports(journal, repeats=1 if quick else 5)
    core_speed.adam_steps(journal, quick=quick, seed=seed)
    core_speed.newton(journal, quick=quick, seed=seed)
    core_speed.many_clients(journal, quick=quick, seed=seed)
    core_speed.network(journal, quick=quick, seed=seed)
    core_speed.memory(journal, quick=quick)
    core_speed.block_of_rounds(journal, quick=quick, seed=seed)


def _imports(journal: Journal, repeats: int) -> None:
    seconds = {"jax": np.inf, "cavity": np.inf}
    for repeat in range(repeats):  # in turns, so that a disturbance meets both
        for package in seconds:
            seconds[package] = min(seconds[package], _seconds(f"import {package}"))
        journal.say(f"import, {repeat + 1} of {repeats}")
    ratio = seconds["cavity"] / seconds["jax"]
    loaded = min(_seconds("import cavity; cavity.PVI, cavity.run, cavity.models") for _ in range(repeats))
    journal.row("imports", jax=seconds["jax"], cavity=seconds["cavity"], ratio=ratio, cavity_with_all_parts=loaded)
    journal.check("core-import time of `import cavity` / `import jax`", ratio, "<= 1.3", ratio <= IMPORT_BAR)


def _seconds(statement: str) -> float:
    program = f"import time; began = time.perf_counter(); {statement}; print(time.perf_counter() - began)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    if finished.returncode != 0:
        raise CavityError(f"`{statement}` fails: {finished.stderr.strip().splitlines()[-1:]}")
    return float(finished.stdout)
