"""Progress of a server or a client: lines on the terminal, and more detail in a log file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import typer

from cavity.errors import printable
from cavity.io.private_files import private_file, private_folder

LONGEST = 2000  # characters of a line
ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def terminal_and_log(log: Path) -> Callable[[str], None]:
    """Send everything that Cavity logs to a file, and return a function that shows a line on the terminal too.

    Args:
        log: the file; created if missing.
    """
    private_folder(log.parent)
    open(log, "a", opener=private_file).close()
    handler = logging.FileHandler(log, encoding="utf-8")
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("cavity")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False

    def notify(line: str) -> None:
        typer.echo(f"{time.strftime('%H:%M:%S')} {printable(line, LONGEST)}", err=True)
        logger.info("%s", line)

    return notify


class _OneLine(logging.Formatter):
    """A message is one line without control characters, even if it quotes others; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return printable(super().formatMessage(record), LONGEST)

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802
        lines = super().formatException(ei).split("\n")
        return "\n".join(printable(line, LONGEST) for line in lines)
