"""`cavity client`: a client of a study, with its data, and with the Flower program that it needs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cavity.cli.server import check_loopback
from cavity.cli.session import AllowModel, start_jax
from cavity.errors import CavityError

if TYPE_CHECKING:
    from cavity.network.flower_node import ClientSide


def client(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.")],
    name: Annotated[str, typer.Option(help="Your name in the study's list of clients.")],
    data: Annotated[Path, typer.Option(help="Your CSV file; it is read here, and its rows never leave.")],
    keys: Annotated[Path | None, typer.Option(help="Your folder of keys; by default keys/clients/NAME.")] = None,
    server: Annotated[str, typer.Option(help="The server's address, host:port.")] = "127.0.0.1:8000",
    output: Annotated[Path | None, typer.Option(help="Your folder; by default sites/ID/NAME.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent first, and send nothing.")
    ] = False,
    rejoin: Annotated[
        bool, typer.Option("--rejoin", help="Come back after `cavity leave`, perhaps with new rows.")
    ] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no keys; loopback addresses only.")] = False,
    allow_model: AllowModel = None,
) -> None:
    """Take part in a study until its end; started again in the same folder, it goes on where it was.

    Your folder gets `sent.jsonl` (time, size and digest of all that has left), `client.log`, and in the end the
    results.

    Example: `cavity client study.toml --name leeds --data leeds.csv --server server.example.org:8000`
    """
    os.umask(0o077)  # all that is written is for its owner, and so is what JAX writes
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA fills screens about programs from its own cache
    start_jax()
    from cavity.cli.logs import logging_to
    from cavity.network.client import first_words, site_of
    from cavity.network.client_state import ClientStore, SentLog
    from cavity.network.flower_node import FlowerNode
    from cavity.network.run_directory import LEAVE, only_one, write_status
    from cavity.network.worker import Worker
    from cavity.study.reader import read_study
    from cavity.study.table import read_csv

    study, table = read_study(file, allow_models=allow_model or ()), read_csv(data)
    folder = Path("sites") / study.id / name if output is None else output
    if dry_run:
        for line in first_words(study, table, site_of(study, name, table, folder, typer.echo)):
            typer.echo(line)
        return
    side, seals = _side_and_seals(Path("keys/clients") / name if keys is None else keys, server, folder, insecure)
    with only_one(folder, f"a client {name!r}"):
        log = logging_to(folder / "client.log")

        def say(line: str) -> None:
            log(line)
            write_status(folder, state="running", line=line, study=study.id, client=name)

        _keep_compiled(folder)
        site = site_of(study, name, table, folder, say)
        leaving = folder / LEAVE
        worker = Worker(
            site, ClientStore(folder), SentLog(folder / "sent.jsonl"), leaving=leaving.exists, say=say, **seals
        )
        if rejoin:
            worker.guard.rejoin()
            leaving.unlink(missing_ok=True)
        if not leaving.exists():  # who leaves sends nothing of its rows
            worker.guard.check_rows()
        say(f"{study.name}: {name}, {len(table)} rows; connecting to {server}")
        for note in site.notes:
            say(note)
        stopped = _stop_on_signals()
        FlowerNode(side, worker.handle, say).serve(lambda: bool(worker.over or stopped))
        write_status(folder, state=worker.over or "stopped", line=worker.over, study=study.id, client=name)
    if worker.over not in ("", "done"):
        raise CavityError(worker.over)
    typer.echo(f"Results: {folder / 'results'}" if worker.over else "stopped; start it again to go on")


def _stop_on_signals() -> list[int]:
    """Non-empty once somebody has asked this process to end; a reply under way is finished first."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return seen


def _side_and_seals(keys: Path, server: str, folder: Path, insecure: bool) -> tuple[ClientSide, dict[str, Any]]:
    from cavity.network.flower_node import ClientSide

    own, (host, _, port) = (folder / "flower").absolute(), server.rpartition(":")
    if not host or not port.isdigit():
        raise CavityError(f"--server {server}: give host:port, for instance {server.strip(':') or '127.0.0.1'}:8000")
    if insecure:
        check_loopback(host)
        return ClientSide(server, own), {}
    from cavity.network import keys as made

    made.need(keys, made.CLIENT_KEY, made.AUTHORITY, made.CERTIFICATE)
    side = ClientSide(server, own, keys / made.CLIENT_KEY, keys / made.AUTHORITY)
    return side, {"sign": made.client_signer(keys), "verify": made.server_verifier(keys)}


def _keep_compiled(folder: Path) -> None:
    """Programs that were compiled once are read from the disk when the client is started again."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str((folder / "compiled").absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
