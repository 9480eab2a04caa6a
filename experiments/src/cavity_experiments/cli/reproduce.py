"""`cavity reproduce`: repeat an experiment of the papers and compare it with its thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cavity.cli.session import start_jax
from cavity_experiments.cli import registry
from cavity_experiments.cli.report import run_and_report


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(registry.REPRODUCE)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="About a minute; some checks are skipped.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Everything, with several seeds.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Folder for the results; results/NAME by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Repeat an experiment of the papers and compare it with its thresholds.

    The exit code is 1 if a check fails. The data sets are read from the folder that the environment variable
    CAVITY_DATA names, and downloaded from OpenML if it is not set.

    Example: `cavity reproduce pvi-adult --quick`
    """
    if quick and full:
        raise typer.BadParameter("--quick and --full exclude each other; give one of them")
    start_jax()
    experiment = registry.find(registry.REPRODUCE, name)
    from cavity_experiments.runner import Size

    size = Size.QUICK if quick else Size.FULL if full else Size.DEFAULT
    run_and_report(name, experiment, size=size, seed=seed, directory=output, as_json=as_json)
