"""`cavity client`: runs a client of a study with its data, and the Flower program that it needs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from cavity.cli.server import check_loopback
from cavity.cli.session import AllowModel, start_jax
from cavity.errors import CavityError

if TYPE_CHECKING:
    from cavity.network.flower_node import ClientSide


def client(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.")],
    name: Annotated[str, typer.Option(help="Your name in the study's list of clients.")],
    data: Annotated[Path, typer.Option(help="Your CSV file; it is read on this machine, and its rows are never sent.")],
    keys: Annotated[Path | None, typer.Option(help="Your folder of keys; by default keys/clients/NAME.")] = None,
    server: Annotated[str, typer.Option(help="The server's address, host:port.")] = "127.0.0.1:8000",
    output: Annotated[
        Path | None, typer.Option(help="Your folder; created if missing; by default sites/ID/NAME.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent first, and send nothing.")
    ] = False,
    rejoin: Annotated[
        bool, typer.Option("--rejoin", help="Rejoin after `cavity leave`; your rows may have changed.")
    ] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no keys; loopback addresses only.")] = False,
    allow_model: AllowModel = None,
) -> None:
    """Take part in a study until its end; when restarted with the same folder, the client resumes.

    Your folder gets `sent.jsonl` (time, size and digest of everything that was sent), `client.log`, and at the end the
    results.

    Example: `cavity client study.toml --name leeds --data leeds.csv --server server.example.org:8000`
    """
    os.umask(0o077)  # files are readable by their owner only, those of JAX too
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA logs much about programs from its cache
    start_jax()
    from cavity.cli.logs import terminal_and_log
    from cavity.network.client import preview, site_of
    from cavity.network.client_state import ClientStore, SentLog
    from cavity.network.flower_node import FlowerNode
    from cavity.network.keys import client_signer, server_verifier
    from cavity.network.protocol import unsigned, unverified
    from cavity.network.run_directory import LEAVE, only_one, write_status
    from cavity.network.worker import Worker
    from cavity.study.reader import read_study
    from cavity.study.table import read_csv

    study, table = read_study(file, allow_models=allow_model or ()), read_csv(data)
    folder = Path("sites") / study.id / name if output is None else output
    if dry_run:
        for line in preview(study, table, site_of(study, name, table, folder, typer.echo)):
            typer.echo(line)
        return
    keys = Path("keys/clients") / name if keys is None else keys
    side = _side(keys, server, folder, insecure)
    sign, verify = (unsigned, unverified) if insecure else (client_signer(keys), server_verifier(keys))
    with only_one(folder, f"a client {name!r}"):
        log = terminal_and_log(folder / "client.log")

        def notify(line: str) -> None:
            log(line)
            write_status(folder, state="running", line=line, study=study.id, client=name)

        _keep_compiled(folder)
        site = site_of(study, name, table, folder, notify)
        leaving = folder / LEAVE
        worker = Worker(
            site,
            ClientStore(folder),
            SentLog(folder / "sent.jsonl"),
            sign=sign,
            verify=verify,
            leaving=leaving.exists,
            notify=notify,
        )
        if rejoin:
            worker.guard.rejoin()
            leaving.unlink(missing_ok=True)
        if not leaving.exists():  # a client that leaves sends nothing about its rows
            worker.guard.check_rows()
        notify(f"{study.name}: {name}, {len(table)} rows; connecting to {server}")
        for note in site.notes:
            notify(note)
        stopped = _stop_on_signals()
        FlowerNode(side, worker.handle, notify).serve(lambda: bool(worker.over or stopped))
        write_status(folder, state=worker.over or "stopped", line=worker.over, study=study.id, client=name)
    if worker.over not in ("", "done"):
        raise CavityError(worker.over)
    typer.echo(f"Results: {folder / 'results'}" if worker.over else "stopped; restart it to resume")


def _stop_on_signals() -> list[int]:
    """A list that is not empty after a signal to end this process; a reply under way is finished first."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return seen


def _side(keys: Path, server: str, folder: Path, insecure: bool) -> ClientSide:
    from cavity.network.flower_node import ClientSide

    own, (host, _, port) = (folder / "flower").absolute(), server.rpartition(":")
    if not host or not port.isdigit() or "/" in server:
        name = server.rpartition("//")[2].split("/")[0].partition(":")[0] or "127.0.0.1"
        raise CavityError(f"--server {server}: expected host:port, for example {name}:8000")
    if insecure:
        check_loopback(host)
        return ClientSide(server, own)
    from cavity.network import keys as key_files

    key_files.need(keys, key_files.CLIENT_KEY, key_files.AUTHORITY, key_files.CERTIFICATE)
    return ClientSide(server, own, keys / key_files.CLIENT_KEY, keys / key_files.AUTHORITY)


def _keep_compiled(folder: Path) -> None:
    """Keep compiled programs on the disk, so that a restarted client does not compile them again."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str((folder / "compiled").absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
