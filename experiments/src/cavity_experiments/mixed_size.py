"""A large mixed model by formula with default settings, measured in a separate process.

    python -m cavity_experiments.mixed_size NUM_GROUPS NUM_ROWS NUM_CLIENTS SEED

prints JSON: the seconds and the peak memory of the fit with its summary, and how far the estimates are from the values
of the simulation in sds. Logistic regression with three covariates and an intercept per group.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter, process_time

import jax
import numpy as np

import cavity
from cavity_experiments.core_memory import peak_megabytes

FORMULA = "y ~ x1 + x2 + x3 + (1 | g)"
TRUE = {"intercept": -0.5, "x1": 0.6, "x2": -0.3, "x3": 0.2, "1|g_sigma": 1.2}


def clients(num_groups: int, num_rows: int, num_clients: int, seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Simulated rows: groups of unequal size, each at one client; x1 is the same for all rows of a group."""
    rng = np.random.default_rng(seed)
    group = np.sort(np.concatenate([np.arange(num_groups), rng.integers(0, num_groups, num_rows - num_groups)]))
    level = TRUE["1|g_sigma"] * rng.normal(size=num_groups)
    x = {"x1": rng.normal(size=num_groups)[group], "x2": rng.normal(size=num_rows), "x3": rng.normal(size=num_rows)}
    logits = TRUE["intercept"] + level[group] + sum(TRUE[name] * column for name, column in x.items())
    columns = {"y": rng.random(num_rows) < 1 / (1 + np.exp(-logits)), **x, "g": group}
    home = group * num_clients // num_groups
    return {f"client {i}": {name: column[home == i] for name, column in columns.items()} for i in range(num_clients)}


def measure(num_groups: int, num_rows: int, num_clients: int, seed: int) -> dict[str, float | int]:
    """The fit and its summary, everything default."""
    rows = clients(num_groups, num_rows, num_clients, seed)
    before, began = peak_megabytes(from_here=True), perf_counter()
    fit = cavity.regression(FORMULA, rows, family="bernoulli", progress=True)
    fitted = perf_counter() - began
    summary = fit.summary()
    print(summary, file=sys.stderr)
    seconds = perf_counter() - began
    off = [abs(summary[name].mean - value) / summary[name].sd for name, value in TRUE.items()]
    return {
        "groups": num_groups,
        "rows": num_rows,
        "clients": num_clients,
        "seconds": seconds,
        "seconds_of_summary": seconds - fitted,
        "cpu_seconds": process_time(),
        "megabytes": peak_megabytes(),
        "megabytes_before": before,
        "rounds": len(fit.history),
        "converged": bool(fit.converged),
        "off": max(off),
    }


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)  # as the command does
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
