"""`cavity study new`: the first draft of a study file, from the columns of a CSV."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from cavity.errors import CavityError


def new(
    data: Annotated[
        Path,
        typer.Argument(metavar="CSV", help="One site's file; only its header and the types of its cells are used."),
    ],
    outcome: Annotated[str | None, typer.Option(help="The outcome column; by default the last one.")] = None,
    output: Annotated[Path, typer.Option(help="The study file to write.")] = Path("study.toml"),
    name: Annotated[str | None, typer.Option(help="The name of the study; by default that of the CSV file.")] = None,
    client: Annotated[
        list[str] | None, typer.Option(help="A site that takes part; repeat the option for each.")
    ] = None,
    with_levels: Annotated[
        bool, typer.Option("--with-levels", help="Write the levels of categories; they are values of your data.")
    ] = False,
) -> None:
    """Write a commented study file from a CSV's columns.

    The file contains no values of the data: the levels of categories are left for you to fill in.

    Example: `cavity study new mine.csv --outcome died --client leeds --client york`
    """
    from cavity.study.columns import DATE_REMEDY
    from cavity.study.draft import draft_study, guess_columns
    from cavity.study.guessing import holds_dates
    from cavity.study.reader import NAME
    from cavity.study.table import read_csv

    if output.exists():
        raise CavityError(f"{output}: the file exists already; give another --output, or remove it")
    table = read_csv(data)
    outcome = list(table.columns)[-1] if outcome is None else outcome
    title = data.stem if name is None else name
    stem = title.lower().replace(" ", "-")
    stem = stem if NAME.fullmatch(stem) else "study"
    text = draft_study(
        table,
        name=title,
        study_id=f"{stem}-{secrets.token_hex(3)}",
        outcome=outcome,
        clients=client or (),
        with_levels=with_levels,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    columns = guess_columns(table)
    open_ends = [] if client else ["`clients`"]
    if not with_levels:
        open_ends += [f"the levels of '{name}'" for name, column in columns.items() if column.level_names]
    typer.echo(f"{output}: the outcome is '{outcome}'; check every line before you share the file.")
    texts = [name for name, column in columns.items() if column.formula_problem is not None]
    dates = [column for column in texts if holds_dates(table.columns[column])]
    if dates:
        typer.echo(f"Dates, left out of the formula: {', '.join(dates)}. To use one, {DATE_REMEDY}.")
    if left_out := [column for column in texts if column not in dates]:
        typer.echo(f"Identifiers or free text, left out of the formula: {', '.join(left_out)}.")
    if open_ends:
        typer.echo(f"To be filled in: {', '.join(open_ends)}.")
    typer.echo(f"Then: cavity study check {output} --data {data}")
