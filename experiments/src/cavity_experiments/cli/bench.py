"""`cavity bench`: how fast Cavity is, against what it could be, measured in one run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cavity.cli.session import start_jax
from cavity_experiments.cli import registry
from cavity_experiments.cli.report import run_and_report


def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(registry.BENCH)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: does it run? No bar can be judged.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Where results go; by default results/NAME.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure speed, and hold it against its bars.

    The exit code is 1 where a check fails. Let nothing else run meanwhile.

    Example: `cavity bench core --json`
    """
    start_jax()
    experiment = registry.find(registry.BENCH, name)
    from cavity_experiments.runner import Size

    run_and_report(
        name, experiment, size=Size.QUICK if quick else Size.DEFAULT, seed=seed, directory=out, as_json=as_json
    )
