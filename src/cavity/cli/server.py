"""`cavity server`: runs a study's server, with the Flower programs that it needs."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cavity.cli.session import AllowModel, Level, level_or_default, start_jax
from cavity.errors import CavityError

if TYPE_CHECKING:
    from cavity.network.flower import ServerSide
    from cavity.network.server import ServerConfig
    from cavity.study.schema import Study


def server(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.")],
    keys: Annotated[Path, typer.Option(help="The server's folder of keys.")] = Path("keys/server"),
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    output: Annotated[
        Path | None, typer.Option(help="The run's folder; created if missing; by default runs/ID.")
    ] = None,
    min_clients: Annotated[
        int | None,
        typer.Option(min=1, help="Start with this many clients, pause with fewer; by default wait for all to start."),
    ] = None,
    level: Level = None,
    round_timeout: Annotated[float, typer.Option(min=1, help="Seconds that a client has to reply.")] = 300.0,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Show the run on a page for a browser on this machine.")
    ] = False,
    dashboard_port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port of this page; 0 takes a free one.")
    ] = 0,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no keys; loopback addresses only.")] = False,
    allow_model: AllowModel = None,
) -> None:
    """Run a study's server to the end of the study; when restarted with the same folder, it resumes.

    The run's folder gets the files of `cavity run`, and `status.json` and `server.log`.

    Example: `cavity server study.toml --keys keys/server`
    """
    os.umask(0o077)  # files are readable by their owner only
    start_jax()
    probability = level_or_default(level)
    from cavity.cli.logs import terminal_and_log
    from cavity.network.dashboard import Dashboard
    from cavity.network.flower import FlowerTransport
    from cavity.network.run_directory import only_one
    from cavity.network.server import StudyServer, server_log
    from cavity.network.study_session import check_for_network
    from cavity.study.reader import read_study

    study = read_study(file, allow_models=allow_model or ())
    check_for_network(study)
    directory = Path("runs") / study.id if output is None else output
    side, config = _side_and_config(study, keys, host, port, directory, insecure)
    config = replace(config, min_clients=min_clients, round_timeout=round_timeout, level=probability)
    with only_one(directory, "a server"):
        notify = terminal_and_log(server_log(directory))
        notify(f"{study.name}: server at {host}:{port}, folder {directory}")
        live = Dashboard(study, directory, server_log(directory), dashboard_port) if dashboard else None
        if live is not None:
            notify(f"dashboard: {live.address}")
        transport = FlowerTransport(side)
        try:
            text = file.read_text(encoding="utf-8")
            config = replace(config, notify=notify, watch=None if live is None else live.watch)
            run = StudyServer(study, text, directory, transport, config, reopen=transport.reopen).run()
        finally:
            transport.close()
            if live is not None:
                live.close()
    if run is not None and run.history:
        typer.echo(str(run.summary(probability)))
        typer.echo(f"Results: {directory}\nReport: {directory / 'report.html'}")


def _side_and_config(
    study: Study, keys: Path, host: str, port: int, directory: Path, insecure: bool
) -> tuple[ServerSide, ServerConfig]:
    from cavity.network.flower import ServerSide
    from cavity.network.server import ServerConfig

    folder = (directory / "flower").absolute()
    if insecure:
        check_loopback(host)
        return ServerSide(host, port, folder), ServerConfig()
    from cavity.network import keys as key_files

    key_files.need(keys, key_files.CERTIFICATE, key_files.KEY, key_files.AUTHORITY)
    public = key_files.client_public_keys(keys, study)
    side = ServerSide(
        host, port, folder, keys / key_files.CERTIFICATE, keys / key_files.KEY, keys / key_files.AUTHORITY, nodes=public
    )
    verify = {name: key_files.client_verifier(key) for name, key in public.items()}
    return side, ServerConfig(sign=key_files.server_signer(keys), verify=verify)


def check_loopback(host: str) -> None:
    """Raise CavityError unless an address is a loopback address."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise CavityError(
            f"--insecure is allowed for loopback addresses only, and {host} is not one; use 127.0.0.1, or create keys "
            "with `cavity study keys`"
        )
