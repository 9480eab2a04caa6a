"""`cavity study new`: the first draft of a study file, from the columns of a CSV."""

from __future__ import annotations

import secrets
import tomllib
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
    family: Annotated[
        str | None,
        typer.Option(help="The family of the outcome, such as poisson; by default by its type where that is safe."),
    ] = None,
    output: Annotated[Path, typer.Option(help="The study file to write.")] = Path("study.toml"),
    name: Annotated[str | None, typer.Option(help="The name of the study; by default after its outcome.")] = None,
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
    from cavity.study.draft import columns_left_out, draft_study
    from cavity.study.reader import NAME, NAME_RULE
    from cavity.study.table import read_csv

    if output.exists():
        raise CavityError(f"{output}: the file exists already; give another --output, or remove it")
    if wrong := [site for site in client or () if not NAME.fullmatch(site)]:
        raise CavityError(f"--client {wrong[0]!r} {NAME_RULE}, because it is also the name of a file")
    table = read_csv(data)
    outcome = list(table.columns)[-1] if outcome is None else outcome
    title = f"Study of {outcome}" if name is None else name
    stem = (outcome if name is None else name).lower().replace(" ", "-")
    stem = stem if NAME.fullmatch(stem) else "study"
    text = draft_study(
        table,
        name=title,
        study_id=f"{stem}-{secrets.token_hex(3)}",
        outcome=outcome,
        family=family,
        clients=client or (),
        with_levels=with_levels,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    left_out = columns_left_out(table, outcome)
    open_ends = [] if client else ["`clients`"]
    if "(FILL_IN)" in text or ", FILL_IN)" in text:
        open_ends.append("FILL_IN in the formula, the other column of the outcome")
    drafted = tomllib.loads(text)["columns"]
    if not with_levels:
        open_ends += [f"the levels of '{name}'" for name, column in drafted.items() if "levels" in column]
    typer.echo(f"{output}: the outcome is '{outcome}'; check every line before you share the file.")
    skipped: dict[str, list[str]] = {}
    for column, reason in left_out.items():
        skipped.setdefault(reason, []).append(column)
    for reason, names in skipped.items():
        remedy = f" To use one, {DATE_REMEDY}." if reason == "dates" else ""
        typer.echo(f"{reason.capitalize()}, left out of the formula: {', '.join(names)}.{remedy}")
    for column, block in drafted.items():
        if codes := block.get("missing_codes"):
            typer.echo(f"Read as missing values in '{column}': {', '.join(codes)}. See `missing_codes` in the file.")
    if open_ends:
        typer.echo(f"To be filled in: {', '.join(open_ends)}.")
    typer.echo(f"Then: cavity study check {output} --data {data}")
