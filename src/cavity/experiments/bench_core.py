"""`cavity bench core`: what the core costs, each number as a ratio to something measured in the same run.

- Import: `import cavity` against `import jax`, each in fresh processes, the best of five.
- Rounds: the first synchronous round of ten clients (from the prior, so the most work) against the same solver on the
  same rows pooled at one client, after compilation, the best of five. A round solves ten problems where pooling
  solves one of ten times the rows, so the ratio is near 1 if ten small programs cost no more than one large one.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from cavity.algorithms import PVI
from cavity.data.partition import homogeneous, select
from cavity.errors import CavityError
from cavity.experiments.runner import Journal, Size
from cavity.models import logistic_regression
from cavity.results import run

NUM_CLIENTS, ROWS_PER_CLIENT, NUM_COLUMNS = 10, 4000, 20
REPEATS = 5
IMPORT_BAR = 1.3


def bench_core(journal: Journal, size: Size, seed: int) -> None:
    """Import time and the time of a round."""
    journal.settings(num_clients=NUM_CLIENTS, rows_per_client=ROWS_PER_CLIENT, num_columns=NUM_COLUMNS, repeats=REPEATS)
    _imports(journal)
    _rounds(journal, seed)


def _imports(journal: Journal) -> None:
    seconds = {"jax": np.inf, "cavity": np.inf}
    for repeat in range(REPEATS):  # in turns, so that a disturbance meets both
        for package in seconds:
            seconds[package] = min(seconds[package], _seconds(f"import {package}"))
        journal.say(f"import, {repeat + 1} of {REPEATS}")
    ratio = seconds["cavity"] / seconds["jax"]
    loaded = min(_seconds("import cavity; cavity.PVI, cavity.run, cavity.models") for _ in range(REPEATS))
    journal.row(
        "imports", jax=seconds["jax"], cavity=seconds["cavity"], ratio=ratio, cavity_with_all_parts=loaded
    )
    journal.check("core-import time of `import cavity` / `import jax`", ratio, "<= 1.3", ratio <= IMPORT_BAR)


def _seconds(statement: str) -> float:
    program = f"import time; began = time.perf_counter(); {statement}; print(time.perf_counter() - began)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    if finished.returncode != 0:
        raise CavityError(f"`{statement}` fails: {finished.stderr.strip().splitlines()[-1:]}")
    return float(finished.stdout)


def _rounds(journal: Journal, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_rows = NUM_CLIENTS * ROWS_PER_CLIENT
    x = rng.normal(size=(num_rows, NUM_COLUMNS))
    theta = rng.normal(size=NUM_COLUMNS) / np.sqrt(NUM_COLUMNS)
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-x @ theta))).astype(float)
    clients = {
        "federated": select((x, y), homogeneous(rng, num_rows, NUM_CLIENTS)),
        "pooled": {"pooled": (x, y)},
    }
    algorithm = PVI(logistic_regression(NUM_COLUMNS))
    for name, data in clients.items():
        run(algorithm, data, rounds=1)
        journal.say(f"{name}: compiled")
    best = {}
    for repeat in range(REPEATS):
        for name, data in clients.items():
            record = run(algorithm, data, rounds=1, seed=seed).history[0]
            if name not in best or record["seconds"] < best[name]["seconds"]:
                best[name] = record
        journal.say(f"first round, {repeat + 1} of {REPEATS}")
    for name, record in best.items():
        journal.row(
            "first_round", fit=name, clients=len(clients[name]), seconds=record["seconds"], steps=record["solver_steps"]
        )
    ratio = best["federated"]["seconds"] / best["pooled"]["seconds"]
    journal.check("core-round time of a round / the same Newton on pooled rows", ratio, "(no bar yet)", None)
