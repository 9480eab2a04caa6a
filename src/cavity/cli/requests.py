"""`cavity status`, `stop`, `withdraw` and `leave`: a look at a run, and what can be asked of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cavity.errors import CavityError, printable

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.")]
Output = Annotated[Path | None, typer.Option(help="The run's folder; by default runs/ID of the study.")]


def status(file: StudyFile, output: Output = None) -> None:
    """Tell how far a study's server is; for a client's own folder give it with `--output`.

    Example: `cavity status study.toml`
    """
    from cavity.network.run_directory import is_running, read_status

    folder = _folder(file, output)
    seen = read_status(folder)
    state = seen["state"]
    if not is_running(folder) and state in ("waiting", "running"):
        state = "not running; start it again to go on"
    typer.echo(f"{seen['study']}: {state}")
    for key in ("line", "round", "gap", "connected", "missing", "time"):
        if seen.get(key) not in (None, []):
            value = seen[key]
            typer.echo(f"{key}: {printable(', '.join(value) if isinstance(value, list) else str(value), 2000)}")


def stop(file: StudyFile, output: Output = None) -> None:
    """Ask a study's server to stop; started again, it goes on.

    Example: `cavity stop study.toml`
    """
    from cavity.network.run_directory import STOP, Requests, is_running

    folder = _folder(file, output)
    if not is_running(folder):
        raise CavityError(f"{folder}: no server is running there")
    Requests(folder).put(STOP)
    typer.echo("the server stops as soon as it can")


def withdraw(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The client to forget.")],
    file: StudyFile,
    output: Output = None,
) -> None:
    """Ask a study's server to forget a client: its factor is dropped, and the others go on without it.

    Example: `cavity withdraw leeds study.toml`
    """
    from cavity.network.run_directory import WITHDRAW, Requests, is_running
    from cavity.study.reader import read_study

    folder = _folder(file, output)
    if name not in (names := read_study(file).clients):
        raise CavityError(f"the study has no client {name!r}; it has {', '.join(names)}")
    Requests(folder).put(WITHDRAW + name)
    when = "as soon as it can" if is_running(folder) else "when it is started again"
    typer.echo(f"the server withdraws {name} {when}")


def leave(
    file: StudyFile,
    name: Annotated[str, typer.Option(help="Your name in the study's list of clients.")],
    output: Annotated[Path | None, typer.Option(help="Your folder; by default sites/ID/NAME.")] = None,
) -> None:
    """Leave a study: your client asks the server to forget you, with its next answer.

    Example: `cavity leave study.toml --name leeds`
    """
    from cavity.io.private_files import private_file
    from cavity.network.run_directory import LEAVE, is_running
    from cavity.study.reader import read_study

    folder = Path("sites") / read_study(file).id / name if output is None else output
    if not folder.is_dir():
        raise CavityError(f"{folder}: no client has run here; give its folder with --output")
    open(folder / LEAVE, "a", opener=private_file).close()
    hint = "" if is_running(folder) else "; start `cavity client` for this, or ask the server to withdraw you"
    typer.echo(f"{name} asks to be withdrawn with its next answer{hint}")


def _folder(file: Path, output: Path | None) -> Path:
    from cavity.study.reader import read_study

    return Path("runs") / read_study(file).id if output is None else output
