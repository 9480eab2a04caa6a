"""Run independent parts of an experiment in parallel processes, one per core; each is a function of plain arguments."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any


def _begin() -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import jax

    jax.config.update("jax_enable_x64", True)


def run_in_parallel(
    function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(arguments, result) of each task, in the order in which the tasks end."""
    workers = min(os.cpu_count() or 1, len(tasks))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin) as pool:
        running = {pool.submit(function, *task): task for task in tasks}
        for done in as_completed(running):
            yield running[done], done.result()
