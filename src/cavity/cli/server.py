"""`cavity server`: a study's server, with the Flower programs that it needs."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cavity.cli.session import AllowModel, start_jax
from cavity.errors import CavityError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cavity.network.flower import ServerSide
    from cavity.network.server import ServerConfig
    from cavity.study.schema import Study


def server(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.")],
    keys: Annotated[Path, typer.Option(help="The server's folder of keys.")] = Path("keys/server"),
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen at.")] = 8000,
    output: Annotated[Path | None, typer.Option(help="The run's folder; by default runs/ID of the study.")] = None,
    min_clients: Annotated[
        int | None,
        typer.Option(min=1, help="Begin with so many, pause with fewer; by default all to begin, one to go on."),
    ] = None,
    round_timeout: Annotated[float, typer.Option(min=1, help="Seconds that a client has for an answer.")] = 300.0,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no keys; loopback addresses only.")] = False,
    allow_model: AllowModel = None,
) -> None:
    """Run a study's server until its end; started again in the same folder, it goes on where it was.

    The run's folder gets what that of `cavity run` gets, with `status.json` and `server.log`.

    Example: `cavity server study.toml --keys keys/server`
    """
    os.umask(0o077)  # all that is written is for its owner
    start_jax()
    from cavity.cli.logs import logging_to
    from cavity.network.flower import FlowerPost
    from cavity.network.run_directory import only_one
    from cavity.network.server import StudyServer, server_log
    from cavity.network.study_session import check_for_network
    from cavity.study.reader import read_study

    study = read_study(file, allow_models=allow_model or ())
    check_for_network(study)
    directory = Path("runs") / study.id if output is None else output
    side, manner = _side_and_manner(study, keys, host, port, directory, insecure)
    with only_one(directory, "a server"):
        say = logging_to(server_log(directory))
        say(f"{study.name}: server at {host}:{port}, folder {directory}")
        transport = FlowerPost(side)
        try:
            text = file.read_text(encoding="utf-8")
            run = StudyServer(
                study, text, directory, transport, manner(min_clients, round_timeout, say), reopen=transport.reopen
            ).run()
        finally:
            transport.close()
    if run is not None and run.history:
        typer.echo(str(run.summary()))
        typer.echo(f"Results: {directory}")


def _side_and_manner(
    study: Study, keys: Path, host: str, port: int, directory: Path, insecure: bool
) -> tuple[ServerSide, Callable[..., ServerConfig]]:
    from cavity.network.flower import ServerSide
    from cavity.network.server import ServerConfig

    folder = (directory / "flower").absolute()
    if insecure:
        check_loopback(host)
        return ServerSide(host, port, folder), lambda least, seconds, say: ServerConfig(least, seconds, say=say)
    from cavity.network import keys as made

    made.need(keys, made.CERTIFICATE, made.KEY, made.AUTHORITY)
    public = made.client_public_keys(keys, study)
    side = ServerSide(host, port, folder, keys / made.CERTIFICATE, keys / made.KEY, keys / made.AUTHORITY, nodes=public)
    sign, verify = made.server_signer(keys), {name: made.client_verifier(key) for name, key in public.items()}
    return side, lambda least, seconds, say: ServerConfig(least, seconds, sign, verify, say)


def check_loopback(host: str) -> None:
    """Raise CavityError unless an address is of this machine only."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise CavityError(
            f"--insecure is for this machine only, and {host} is not: give 127.0.0.1, or make keys with "
            "`cavity study keys`"
        )
