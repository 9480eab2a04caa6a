"""`cavity status`, `stop`, `withdraw` and `leave`: the progress of a run, and requests to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cavity.errors import CavityError, printable

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.")]
Output = Annotated[Path | None, typer.Option(help="The run's folder; by default runs/ID, with the study's id.")]


def status(file: StudyFile, output: Output = None) -> None:
    """Show the progress of a study's server, or of a client if its folder is given with `--output`.

    Example: `cavity status study.toml`
    """
    from cavity.network.run_directory import is_running, read_status

    folder = _folder(file, output)
    found = read_status(folder)
    state = found["state"]
    if not is_running(folder) and state in ("waiting", "running"):
        state = "not running; restart it to resume"
    typer.echo(f"{found['study']}: {state}")
    for key in ("line", "round", "gap", "connected", "missing", "time"):
        match found.get(key):
            case None | "" | []:
                continue
            case [*names]:
                text = ", ".join(names)
            case value:
                text = str(value)
        typer.echo(f"{key}: {printable(text, 2000)}")


def stop(file: StudyFile, output: Output = None) -> None:
    """Ask a study's server to stop; when it is restarted, it resumes the run.

    Example: `cavity stop study.toml`
    """
    from cavity.network.run_directory import STOP, Requests, is_running

    folder = _folder(file, output)
    if not is_running(folder):
        raise CavityError(f"{folder}: no server is running")
    Requests(folder).put(STOP)
    typer.echo("the server will stop as soon as possible")


def withdraw(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The client to withdraw.")],
    file: StudyFile,
    output: Output = None,
) -> None:
    """Withdraw a client from a study: the server removes its factor, and the others continue without it.

    Example: `cavity withdraw leeds study.toml`
    """
    from cavity.network.run_directory import WITHDRAW, Requests, is_running
    from cavity.study.reader import read_study

    folder = _folder(file, output)
    if name not in (names := read_study(file).clients):
        raise CavityError(f"unknown client {name!r}; choose one of: {', '.join(names)}")
    Requests(folder).put(WITHDRAW + name)
    when = "as soon as possible" if is_running(folder) else "when it is restarted"
    typer.echo(f"the server will withdraw {name} {when}")


def leave(
    file: StudyFile,
    name: Annotated[str, typer.Option(help="Your name in the study's list of clients.")],
    output: Annotated[
        Path | None, typer.Option(help="Your folder; by default sites/ID/NAME, with the study's id.")
    ] = None,
) -> None:
    """Leave a study: your client asks the server to withdraw it, with its next response.

    Example: `cavity leave study.toml --name leeds`
    """
    from cavity.io.private_files import private_file
    from cavity.network.run_directory import LEAVE, is_running
    from cavity.study.reader import read_study

    folder = Path("sites") / read_study(file).id / name if output is None else output
    if not folder.is_dir():
        raise CavityError(f"{folder}: no client has run in this folder; give its folder with --output")
    open(folder / LEAVE, "a", opener=private_file).close()
    hint = (
        ""
        if is_running(folder)
        else "; start `cavity client` to send the request, or ask the server's operator to withdraw you"
    )
    typer.echo(f"{name} will ask to be withdrawn with its next response{hint}")


def _folder(file: Path, output: Path | None) -> Path:
    from cavity.study.reader import read_study

    return Path("runs") / read_study(file).id if output is None else output
