"""`cavity bench`: measure the speed of Cavity relative to reference programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cavity.cli.session import start_jax
from cavity_experiments.cli import registry
from cavity_experiments.cli.report import run_and_report


def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(registry.BENCH)}.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes, to see that it runs; no threshold is checked.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Folder for the results; results/NAME by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure speed and compare it with thresholds.

    The exit code is 1 if a check fails. Run nothing else at the same time.

    Example: `cavity bench core --json`
    """
    start_jax()
    experiment = registry.find(registry.BENCH, name)
    from cavity_experiments.runner import Size

    run_and_report(
        name, experiment, size=Size.QUICK if quick else Size.DEFAULT, seed=seed, directory=output, as_json=as_json
    )
