"""Run an experiment with progress, print its tables and checks, and set the exit code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from cavity_experiments.runner import Experiment, Result, Size

FAILED = 1
MANY_COLUMNS = 6  # in a table with more, headings are stacked


def run_and_report(
    name: str, experiment: Experiment, *, size: Size, seed: int, directory: Path | None, as_json: bool
) -> None:
    """Run an experiment with progress on stderr, print its results on stdout, and exit with 1 if a check fails."""
    from rich.console import Console

    from cavity_experiments import runner

    directory = Path("results") / name if directory is None else directory
    progress = Console(stderr=True, highlight=False)
    with progress.status(f"{name} ..."):
        result = runner.run(
            name,
            experiment,
            directory=directory,
            size=size,
            seed=seed,
            say=lambda line: progress.print(line, markup=False),
        )
    if as_json:
        typer.echo(json.dumps(result.report(), allow_nan=False))
    else:
        show(result)
        typer.echo(f"{', '.join([runner.RESULT, *result.figures])} in {directory}")
    if result.failed:
        raise typer.Exit(FAILED)


def show(result: Result) -> None:
    """The tables and numbers of a result, then its checks."""
    from rich.console import Console

    console = Console(highlight=False)
    for name, value in result.results.items():
        rows = [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
        if rows:
            table = _table(name.replace("_", " "))
            columns = list(dict.fromkeys(column for row in rows for column in row))
            for column in columns:
                is_text = any(isinstance(row.get(column), str) for row in rows)
                heading = column.replace("_", "\n" if len(columns) > MANY_COLUMNS else " ")
                table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
            for row in rows:
                table.add_row(*(number(row.get(column)) for column in columns))
            console.print(table)
        elif not isinstance(value, (list, Mapping)):
            console.print(f"{name.replace('_', ' ')}: {number(value)}")
    if result.checks:
        verdicts = {True: "[green]holds[/green]", False: "[bold red]FAILS[/bold red]", None: "not judged"}
        table = _table("checks")
        for column in ("check", "value", "bar", ""):
            table.add_column(column, justify="right" if column == "value" else "left")
        for check in result.checks:
            table.add_row(check.name, number(check.value), check.bar, verdicts[check.holds])
        console.print(table)
    console.print(f"{result.seconds:.0f} s, seed {result.settings['seed']}, size {result.settings['size']}")


def _table(title: str) -> Table:
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def number(value: Any) -> str:
    """A cell of a table: four digits, and empty if nothing was measured."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
