"""`cavity bench scale`: the clients of the StackOverflow task, ten of them per round, with five million weights.

342,477 simulated clients, with as many rows as table 1 of FedEP (Guo et al., 2023) says, and 1,000 of them, each in a
separate process: the cost of more clients before the first round and in memory, and the share of the time that is spent
in the client parts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable

from cavity.errors import CavityError
from cavity_experiments import scale_run
from cavity_experiments.runner import Journal, Size

MEMORY_BAR, START_BAR, COMPUTE_GOAL = 1.2, 10.0, 0.8


def bench_scale(journal: Journal, size: Size, seed: int) -> None:
    """Start-up, memory and speed with very many clients, against those with few."""
    quick = size is Size.QUICK
    few, many = (100, 20_000) if quick else (1_000, 342_477)
    num_words, num_tags, rounds = (500, 50, 2) if quick else (10_000, 500, 5)
    sizes = scale_run.SIZES
    journal.settings(
        num_weights=num_words * num_tags,
        clients_per_round=scale_run.CLIENTS_PER_ROUND,
        rounds=rounds,
        rows_per_client=f"log-normal, {sizes.mean} +- {sizes.sd}, at most {sizes.maximum}",
        batch_size=scale_run.BATCH_SIZE,
        epochs=scale_run.EPOCHS,
    )
    found = {}
    for num_clients in (few, many):
        journal.say(f"{rounds} rounds with {scale_run.CLIENTS_PER_ROUND} of {num_clients:,} clients, twice")
        found[num_clients] = _in_own_process(journal.say, num_clients, num_words, num_tags, rounds, seed)
        journal.row("scale", **found[num_clients])
    start, share = found[many]["start_seconds"], found[many]["compute_share"]
    ratio = found[many]["megabytes"] / found[few]["megabytes"]
    for name, value, bar, holds in (
        (f"scale-5a start-up with {many:,} clients, seconds", start, "< 10", start < START_BAR),
        (f"scale-5b peak memory of {many:,} clients / of {few:,}", ratio, "<= 1.2", ratio <= MEMORY_BAR),
        ("scale-5c share of the rounds in compute", share, ">= 0.8", share >= COMPUTE_GOAL),
    ):
        journal.check(name, value, bar, None if quick else holds)


def _in_own_process(say: Callable[[str], None], *numbers: int) -> dict[str, float | int]:
    """What `scale_run` measures; it shows progress and speed on stderr."""
    command = [sys.executable, "-m", "cavity_experiments.scale_run", *map(str, numbers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = deque(maxlen=5)
        for line in process.stderr:
            said.append(line)
            say(line.rstrip())
        found = process.stdout.read()
    if process.returncode != 0:
        raise CavityError(f"the rounds with {numbers[0]:,} clients fail: {''.join(said).strip()[-300:]}")
    return json.loads(found)
