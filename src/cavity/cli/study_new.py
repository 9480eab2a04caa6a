"""`cavity study new`: the first draft of a study file, from the columns of a CSV."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from cavity.errors import CavityError


def new(
    data: Annotated[Path, typer.Argument(metavar="CSV", help="One site's file; its header and types are looked at.")],
    outcome: Annotated[str | None, typer.Option(help="The column to be explained; by default the last one.")] = None,
    output: Annotated[Path, typer.Option(help="The study file to write.")] = Path("study.toml"),
    name: Annotated[str | None, typer.Option(help="Of the study; by default that of the CSV file.")] = None,
    client: Annotated[list[str] | None, typer.Option(help="Who takes part; once for each.")] = None,
    with_levels: Annotated[
        bool, typer.Option("--with-levels", help="Write the levels of categories; they are values of your data.")
    ] = False,
) -> None:
    """Write a commented study file from a CSV's columns.

    No value of the data is in it: the levels of categories are left for you to fill in.

    Example: `cavity study new mine.csv --outcome died --client leeds --client york`
    """
    from cavity.study.columns import DATE_REMEDY, Category, Text
    from cavity.study.draft import MOST_LEVELS, draft_study
    from cavity.study.guessing import guess_from_text, holds_dates
    from cavity.study.reader import NAME
    from cavity.study.table import read_csv

    if output.exists():
        raise CavityError(f"{output}: it is there already; give another --output, or remove it")
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
    kinds = {column: guess_from_text(column, cells, most_levels=MOST_LEVELS) for column, cells in table.columns.items()}
    open_ends = [] if client else ["`clients`"]
    if not with_levels:
        open_ends += [f"the levels of '{column}'" for column, kind in kinds.items() if isinstance(kind, Category)]
    typer.echo(f"{output}: the outcome is '{outcome}'; look at every line of it before you share it.")
    texts = [column for column, kind in kinds.items() if isinstance(kind, Text)]
    dates = [column for column in texts if holds_dates(table.columns[column])]
    if dates:
        typer.echo(f"Dates, and left out of the formula: {', '.join(dates)}. To use one, {DATE_REMEDY}.")
    if left_out := [column for column in texts if column not in dates]:
        typer.echo(f"Taken for identifiers or free text, and left out of the formula: {', '.join(left_out)}.")
    if open_ends:
        typer.echo(f"To be filled in: {', '.join(open_ends)}.")
    typer.echo(f"Then: cavity study check {output} --data {data}")
