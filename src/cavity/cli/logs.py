"""What a server or a client tells while it runs: on the terminal, and with more detail in a log file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from cavity.errors import printable
from cavity.io.private_files import private_file, private_folder

LONGEST = 2000  # characters of a line


def logging_to(log: Path) -> Callable[[str], None]:
    """Lines go to the terminal with the time of day, and everything that Cavity logs to the file."""
    private_folder(log.parent)
    open(log, "a", opener=private_file).close()
    handler = logging.FileHandler(log, encoding="utf-8")
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("cavity")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False

    def say(line: str) -> None:
        typer.echo(f"{time.strftime('%H:%M:%S')} {printable(line, LONGEST)}", err=True)
        logger.info("%s", line)

    return say


class _OneLine(logging.Formatter):
    """A message is one line without control characters, whoever's words are in it; a traceback stays as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return printable(super().formatMessage(record), LONGEST)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        lines = super().formatException(ei).split("\n")
        return "\n".join(printable(line, LONGEST) for line in lines)
