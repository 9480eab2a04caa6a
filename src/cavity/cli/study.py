"""`cavity study`: the file that all sites agree on. Each subcommand has its own file."""

from __future__ import annotations

import typer

from cavity.cli.study_check import check
from cavity.cli.study_keys import keys
from cavity.cli.study_new import new

study = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Write a study file, check data against it, create its keys.",
)
study.command()(new)
study.command()(check)
study.command()(keys)
