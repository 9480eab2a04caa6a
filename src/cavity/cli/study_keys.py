"""`cavity study keys`: the keys of a study, and who gets which of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def keys(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.")],
    host: Annotated[list[str], typer.Option(help="The server's name or address, as clients reach it.")],
    output: Annotated[Path, typer.Option(help="The folder for the keys; it must not exist.")] = Path("keys"),
) -> None:
    """Create the certificate authority, the server's certificate and a key pair for each client.

    Give each folder to its owner over a channel that you trust, and keep no copy of the clients' folders.

    Example: `cavity study keys study.toml --host server.example.org`
    """
    from cavity.network.keys import make_keys
    from cavity.study.reader import read_study

    for handout in make_keys(read_study(file), output, host):
        typer.echo(f"{handout.folder}: {handout.description}")
    typer.echo("Anyone who has a client's folder can act as that client.")
