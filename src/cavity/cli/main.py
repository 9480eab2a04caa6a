"""The command `cavity`: its subcommands, and its errors, each in one line that says what to do."""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated, NoReturn, TextIO

import typer

from cavity.cli.client import client
from cavity.cli.demo import demo
from cavity.cli.plugins import Commands
from cavity.cli.requests import leave, status, stop, withdraw
from cavity.cli.run import run
from cavity.cli.server import server
from cavity.cli.study import study
from cavity.errors import CavityError, printable

# Depending on its version, Typer imports click or has its own copy; this is the usage error of either.
UsageError = typer.BadParameter.__bases__[0]
EXTRAS = {
    "cryptography": "flower",
    "flwr": "flower",
    "h11": "flower",
    "httpx": "flower",
    "matplotlib": "plots",
    "pandas": "data",
    "sklearn": "data",
    "arviz": "arviz",
}
USER_ERROR, BUG, INTERRUPTED = 2, 70, 130

app = typer.Typer(
    name="cavity",
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(run)
app.command()(server)
app.command()(client)
app.command()(status)
app.command()(stop)
app.command()(withdraw)
app.command()(leave)
app.add_typer(study, name="study")


def _show_version(wanted: bool) -> bool:
    if wanted:
        from cavity import __version__

        typer.echo(f"cavity {__version__}")
        raise typer.Exit
    return wanted


@app.callback(epilog="Example: `cavity demo` fits a clinical trial of four hospitals, in seconds.")
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Bayesian inference over data that may not be pooled."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit.

    The exit code is 0 for success, 1 if a check fails, 2 for an error that the user can fix, 70 for a bug in Cavity,
    130 for an interruption.

    Args:
        arguments: those after `cavity`; None takes them from the command line.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]  # allowed anywhere, also after the subcommand
    try:
        with warnings.catch_warnings():
            # scikit-learn warns at each attempt; the error that follows is enough
            warnings.filterwarnings("ignore", "A network error occurred while downloading")
            warnings.showwarning = _show_warning
            code = typer.main.get_command(app).main(given or ["--help"], prog_name="cavity", standalone_mode=False)
    except Exception as error:
        message = user_error(error)
        if debug or message is None:
            traceback.print_exc()
        if message is not None:
            print(f"cavity: {message}", file=sys.stderr)
        sys.exit(BUG if message is None else USER_ERROR)
    if code == INTERRUPTED:
        print("cavity: interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def user_error(error: Exception) -> str | None:
    """One line about an error that the user can fix; None for any other, which is a bug in Cavity."""
    if isinstance(error, UsageError):
        return _usage(error)
    match error:
        case ModuleNotFoundError():
            package = (error.name or "").split(".")[0]
            if package not in EXTRAS:
                return None
            return f"{package} is not installed; install it with: pip install 'cavity[{EXTRAS[package]}]'"
        case CavityError():
            return printable(" ".join(str(error).split()), 4000)
        case FileNotFoundError() if error.filename is not None:
            return f"{error.filename}: file not found; check the path"
        case IsADirectoryError() if error.filename is not None:
            return f"{error.filename}: this is a folder; give a file"
        case FileExistsError() | NotADirectoryError() if error.filename is not None:
            return f"{error.filename}: this is a file; give a folder"
        case OSError() if error.filename is not None:
            return f"{error.filename}: {error.strerror}; check the path and its permissions"
        case _:
            return None


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """One line, without the source of Cavity."""
    print(f"cavity: warning: {printable(' '.join(str(message).split()), 4000)}", file=file or sys.stderr)


def _usage(error: Exception) -> str:
    """What is wrong with the arguments, and where help is."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "cavity"
    message = " ".join(error.format_message().split())  # pyright: ignore[reportAttributeAccessIssue]
    message = re.sub(r"( Did you mean [^?]*\?)\1+", r"\1", message)  # some versions of Typer give the hint twice
    return f"{message.rstrip('.')}; see `{command} --help`"
