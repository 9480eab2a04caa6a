"""`cavity run`: a study in one process, with a CSV file per client, as a test of the network run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cavity.cli.session import AllowModel, Level, level_or_default, start_jax
from cavity.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

    from cavity.study.schema import Study
    from cavity.study.table import Table
    from cavity.training import Record


def run(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.")],
    data: Annotated[Path, typer.Option(help="The folder with NAME.csv for every client of the study.")],
    output: Annotated[
        Path | None, typer.Option(help="The folder for the results; by default runs/ID with the study's id.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run that was interrupted.")] = False,
    level: Level = None,
    allow_model: AllowModel = None,
) -> None:
    """Run a study in one process. The result is the same as over the network.

    The folder gets `report.html` for people, with its tables as CSV, Markdown and LaTeX; `summary.csv`,
    `covariance.csv`, `draws.csv` and `posterior.npz` for programs, in the units of the data; `history.jsonl`,
    `versions.json`, a copy of the study and a checkpoint.

    Example: `cavity run study.toml --data hospitals --output runs/rehearsal`
    """
    start_jax()
    probability = level_or_default(level)
    from rich.console import Console

    from cavity.study.reader import read_study
    from cavity.study.report_facts import study_facts
    from cavity.study.run import open_run, run_study, write_results

    study = read_study(file, allow_models=allow_model or ())
    tables = _tables(study, data)
    progress = Console(stderr=True, highlight=False)
    for line in _dropped(study, tables):
        progress.print(line, markup=False)
    directory = Path("runs") / study.id if output is None else output
    open_run(directory, study, file.read_text(encoding="utf-8"), resume=resume)
    with progress.status(f"{study.name} ..."):
        fit = run_study(
            study,
            tables,
            directory=directory,
            resume=resume,
            observers=[lambda record, server: _show(progress, record)],
        )
    write_results(fit, directory, probability, study_facts(study, fit, probability, tables))
    typer.echo(str(fit.summary(probability)))
    if fit.algorithm.model.ratios is not None:
        ratios = fit.summary(probability, exponentiate=True)
        typer.echo("\n" + str(replace(ratios, remarks=(), checks=tuple)))
    typer.echo(f"Results: {directory}\nReport: {directory / 'report.html'}")


def _tables(study: Study, folder: Path) -> dict[str, Table]:
    from cavity.study.table import read_csv

    if folder.is_file():
        raise DataError(f"{folder}: this is a file; --data is the folder with NAME.csv for every client of the study")
    if not folder.is_dir():
        raise DataError(f"{folder}: folder not found; check the path")
    if lacking := [name for name in study.clients if not (folder / f"{name}.csv").is_file()]:
        raise DataError(f"{folder}: {lacking[0]}.csv not found; every client of the study needs a file there")
    return {name: read_csv(folder / f"{name}.csv") for name in study.clients}


def _show(progress: Console, record: Record) -> None:
    """Show rounds 1 to 9, 10 to 90, 100 to 900 and so on, so that many short rounds do not fill the screen."""
    number, gap = record["round"], record["gap"]
    if number % 10 ** (len(str(number)) - 1) == 0:
        change = "" if not math.isfinite(gap) else f": change {gap:.1e} nats"
        progress.print(f"round {number}{change}")


def _dropped(study: Study, tables: dict[str, Table]) -> list[str]:
    from cavity.study.rows import read_rows

    counts = {name: len(table) - len(read_rows(study.used_columns, table)) for name, table in tables.items()}
    return [
        f"{name}: {count} of {len(tables[name])} rows dropped because of missing values"
        for name, count in counts.items()
        if count
    ]
