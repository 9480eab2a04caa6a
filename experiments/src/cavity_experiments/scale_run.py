"""Some rounds with simulated clients without state, measured in a separate process.

    python -m cavity_experiments.scale_run NUM_CLIENTS NUM_WORDS NUM_TAGS ROUNDS SEED

prints JSON: the seconds until the first round can begin, the megabytes that rounds take beyond what the process held
before them, at their peak, clients per second, and the share of the rounds' time in the compiled client parts. The
same rounds are run twice, and timed the second time, when nothing is left to compile. Progress goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter
from typing import Any

import jax
import numpy as np

import cavity
from cavity.datasets.sources import Generated, HeavyTailed
from cavity.fit.run import prepare
from cavity.models.neural.bag_of_words import bag_of_words
from cavity.schedules import SampledCount
from cavity.solvers import SGMCMC, ScaledIdentity, SGDIterates
from cavity_experiments.core_memory import peak_megabytes

SIZES = HeavyTailed(397, 1279, maximum=4000)  # table 1; longer ones would only take longer
CLIENTS_PER_ROUND, WORDS_PER_ROW, TAGS_PER_ROW = 10, 20, 5
BATCH_SIZE, EPOCHS = 100, 5
STEP_SIZE, PRECISION_PER_ROW = 1.0, 1e-8  # of a client's descent; of table 7


def texts(num_words: int, num_tags: int) -> Any:
    """Makes a client's rows: common words are common, and each tag goes with some words."""

    def make(rng: np.random.Generator, num_rows: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        words = (num_words * rng.random((num_rows, WORDS_PER_ROW)) ** 3).astype(np.int32)
        words[np.arange(WORDS_PER_ROW) >= rng.integers(3, WORDS_PER_ROW + 1, num_rows)[:, None]] = -1
        # one tag of each stretch of the tags, so that no row has one twice
        stretch = num_tags // TAGS_PER_ROW
        tags = words[:, :TAGS_PER_ROW] % stretch + stretch * np.arange(TAGS_PER_ROW, dtype=np.int32)
        tags[words[:, :TAGS_PER_ROW] < 0] = -1
        return words, tags

    return make


def measure(num_clients: int, num_words: int, num_tags: int, rounds: int, seed: int) -> dict[str, float | int]:
    """Start-up, memory and speed with so many clients, ten of them per round."""
    spread = ScaledIdentity(PRECISION_PER_ROW)
    solver = SGMCMC(SGDIterates(STEP_SIZE), spread, num_epochs=EPOCHS, burn_in=1, batch_size=BATCH_SIZE)
    method = cavity.FedSEP(bag_of_words(num_words, num_tags), solver=solver)
    began = perf_counter()
    source = Generated(num_clients, SIZES, texts(num_words, num_tags), seed=seed)
    start = prepare(method, source, schedule=SampledCount(CLIENTS_PER_ROUND), seed=seed)
    start_seconds = perf_counter() - began
    before = peak_megabytes(from_here=True)
    first = start.refine(rounds, tolerance=0.0, progress=True).history[-1]
    megabytes = peak_megabytes() - before
    again = start.refine(rounds, tolerance=0.0, progress=True).history[-1]
    return {
        "clients": num_clients,
        "start_seconds": start_seconds,
        "megabytes": megabytes,
        "megabytes_before": before,
        "seconds": again["seconds"],
        "seconds_with_compilation": first["seconds"],
        "clients_per_second": again["communications"] / again["seconds"],
        "compute_share": again["compute_seconds"] / again["seconds"],
    }


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)  # as the command does
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
