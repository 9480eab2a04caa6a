"""`cavity study`: the file that all parties agree on. Its subcommands have a file each."""

from __future__ import annotations

import typer

from cavity.cli.study_check import check
from cavity.cli.study_keys import keys
from cavity.cli.study_new import new

study = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Write a study file, check data against it, make its keys."
)
study.command()(new)
study.command()(check)
study.command()(keys)
