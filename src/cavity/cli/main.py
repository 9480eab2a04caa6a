"""The command: its subcommands, and how it fails, in one line that says what to do."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Annotated, NoReturn

import typer

from cavity.cli.client import client
from cavity.cli.demo import demo
from cavity.cli.requests import leave, status, stop, withdraw
from cavity.cli.run import run
from cavity.cli.server import server
from cavity.cli.study import study
from cavity.errors import CavityError, printable

# Typer carries its own copy of click, or imports it, by its version; this is the usage error of either.
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
MISTAKE, FAULT, INTERRUPTED = 2, 70, 130

app = typer.Typer(
    name="cavity",
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
for _command in sorted(entry_points(group="cavity.commands"), key=lambda point: point.name):
    _loaded = _command.load()
    if isinstance(_loaded, typer.Typer):
        app.add_typer(_loaded, name=_command.name)
    else:
        app.command(_command.name)(_loaded)


def _show_version(wanted: bool) -> bool:
    if wanted:
        from cavity import __version__

        typer.echo(f"cavity {__version__}")
        raise typer.Exit
    return wanted


@app.callback(epilog="Example: `cavity demo` fits a clinical trial of four hospitals, in seconds.")
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="On an error, show where it happened.")] = False,
) -> None:
    """Bayesian inference over data that may not be pooled."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit.

    The code is 0 for success, 1 where a check fails, 2 for a mistake that the user can mend, 70 for a fault in Cavity,
    130 for an interruption.

    Args:
        arguments: the words after `cavity`; None takes them from the command line.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]  # it may stand anywhere, also behind the subcommand
    words = words or ["--help"]
    try:
        with warnings.catch_warnings():
            # scikit-learn's word on each attempt; the error that follows says it all
            warnings.filterwarnings("ignore", "A network error occurred while downloading")
            code = typer.main.get_command(app).main(words, prog_name="cavity", standalone_mode=False)
    except Exception as error:
        message = mistake(error)
        if debug or message is None:
            traceback.print_exc()
        if message is not None:
            print(f"cavity: {message}", file=sys.stderr)
        sys.exit(FAULT if message is None else MISTAKE)
    if code == INTERRUPTED:
        print("cavity: interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def mistake(error: Exception) -> str | None:
    """One line about an error that the user can mend; None for any other, which is Cavity's own."""
    if isinstance(error, UsageError):
        return _usage(error)
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").split(".")[0]
        if package in EXTRAS:
            return f"{package} is not installed; install it with: pip install 'cavity[{EXTRAS[package]}]'"
        return None
    if isinstance(error, CavityError):
        return printable(" ".join(str(error).split()), 4000)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; check the path and who may write there"
    return None


def _usage(error: Exception) -> str:
    """What is wrong with the words given, and where help is."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "cavity"
    message = " ".join(error.format_message().split())  # pyright: ignore[reportAttributeAccessIssue]
    return f"{message.rstrip('.')}; see `{command} --help`"
