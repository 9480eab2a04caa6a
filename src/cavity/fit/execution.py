"""Running rounds for a fit in this process, with checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cavity import training
from cavity.core.messages import ServerState
from cavity.core.progress import ProgressLine, Watcher
from cavity.fit import files, method
from cavity.fit.arguments import check_numbers
from cavity.fit.fit import Fit
from cavity.fit.population import EngineOptions
from cavity.io.checkpoints import RunDirectory
from cavity.training import Observer, Record, Stopping

Metrics = Mapping[str, Callable[..., float]]  # name -> function of the posterior


@dataclass(frozen=True)
class Options:
    """How rounds are run.

    Attributes:
        metrics: name -> function of the posterior, computed for the history.
        observers: called after each round with its record and the server's state.
        directory: where checkpoints are written; None writes none.
        checkpoint_seconds: least time between two checkpoints.
        rounds_per_block: rounds that run as one program; None is the algorithm's default.
        visit_seconds: virtual seconds per visit, by client.
        chunk: how many streamed clients are in memory at a time.
        progress: True shows a line of progress; a function is called with each `Progress`.
    """

    metrics: Metrics | None = None
    observers: Sequence[Observer] = ()
    directory: str | os.PathLike[str] | None = None
    checkpoint_seconds: float = 5.0
    rounds_per_block: int | None = None
    visit_seconds: Mapping[str, float] | None = None
    chunk: int | None = None
    progress: bool | Watcher = False

    def __post_init__(self) -> None:
        check_numbers(
            rounds_per_block=self.rounds_per_block, chunk=self.chunk, checkpoint_seconds=self.checkpoint_seconds
        )


def continue_run(fit: Fit, stopping: Stopping, options: Options) -> Fit:
    """Run further rounds of a fit.

    Args:
        fit: the fit, with the data of its clients.
        stopping: when to stop.
        options: how rounds are run.

    Returns:
        The fit after the last round.
    """
    engine_options = EngineOptions(fit.client_states, options.visit_seconds, options.chunk)
    engine = fit.population("continue").engine(fit.algorithm, fit.server, engine_options)

    def after(server: ServerState, history: list[Record], stopped: str) -> Fit:
        return replace(fit, server=server, history=history, stopped=stopped, client_states=engine.client_states())

    def checkpoint(server: ServerState, history: list[Record]) -> None:
        if options.directory is not None:
            stopped = stopping.reason(history, method.has_settled(fit.algorithm, server)) or "rounds"
            RunDirectory(options.directory).write(files.saved(after(server, history, stopped)), history)

    progress = ProgressLine() if options.progress is True else options.progress or None
    try:
        server, history, stopped = training.run(
            fit.algorithm,
            engine,
            fit.schedule,
            fit.server,
            fit.history,
            stopping,
            metrics=options.metrics,
            observers=options.observers,
            checkpoint=None if options.directory is None else checkpoint,
            checkpoint_seconds=options.checkpoint_seconds,
            rounds_per_block=method.block_or_default(fit.algorithm, options.rounds_per_block),
            progress=progress,
        )
    finally:
        engine.close()
    return after(server, history, stopped)
