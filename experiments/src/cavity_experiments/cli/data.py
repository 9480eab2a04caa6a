"""`cavity data`: list the real data sets of the experiments."""

from __future__ import annotations

import typer

data = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="The real data sets of the experiments.")


@data.callback()
def about() -> None:
    """Make `list` a subcommand, though it is the only one."""


@data.command("list")
def list_sets() -> None:
    """List the data sets that are available, the folders that were searched, and how to get the others.

    Example: `CAVITY_DATA=~/data cavity data list`
    """
    from cavity_experiments.sources import CATALOGUE, data_directory

    directory = data_directory()
    if directory is None:
        typer.echo("CAVITY_DATA is not set, so no folder was looked in. Set it to a folder that holds the files below.")
    else:
        there = "" if directory.is_dir() else ", which does not exist"
        typer.echo(f"Looked in {directory}, the folder that CAVITY_DATA names{there}.")
    width = max(len(entry.name) for entry in CATALOGUE)
    absent = []
    for entry in CATALOGUE:
        missing = list(entry.files) if directory is None else entry.missing(directory)
        state = "here   "
        if missing:
            absent.append((entry, missing))
            state = "OpenML " if entry.on_openml and directory is None else "missing"
        typer.echo(f"  {entry.name:<{width}}  {state}  {entry.about}")
    if not absent:
        return
    typer.echo("\nHow to get the rest. What a file must hold is checked when it is read.")
    for entry, missing in absent:
        how = f"put {', '.join(missing)} into the folder; from {entry.origin}"
        if entry.on_openml:
            how += "; or leave CAVITY_DATA unset, and scikit-learn downloads it from OpenML when it is first used"
        typer.echo(f"  {entry.name}: {how}")
