"""What a server or a client tells while it runs: on the terminal, and with more detail in a log file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import typer


def life_signs(log: Path) -> Callable[[str], None]:
    """Lines go to the terminal with the time of day, and everything that Cavity logs to the file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(log, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("cavity")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False

    def say(line: str) -> None:
        typer.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)
        logger.info("%s", line)

    return say
