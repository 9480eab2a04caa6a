"""What the subcommands share: the settings of JAX, and common options."""

from __future__ import annotations

import contextlib
import os
from typing import Annotated

import typer

AllowModel = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-model",
        metavar="MODULE",
        help="A module that the study's `model.function` may be imported from; repeat for several.",
    ),
]

Level = Annotated[
    float | None,
    typer.Option("--level", metavar="PROBABILITY", help="Probability of the credible intervals; 0.95 if not given."),
]


def level_or_default(level: float | None) -> float:
    """The level that was given to `--level`, or the default.

    Raises:
        CavityError: unless it is between 0 and 1.
    """
    from cavity.core.intervals import DEFAULT_LEVEL, check_level

    return DEFAULT_LEVEL if level is None else check_level(level)


def start_jax() -> None:
    """Set double precision and one host device per core, before JAX computes anything.

    Work is distributed over the cores by devices. Linear algebra starts no threads of its own: for matrices of a
    hundred rows they cost far more than they save, twenty-five times as much on a busy machine.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import jax

    jax.config.update("jax_enable_x64", True)
    # a program that already uses JAX, and calls the command as a function, keeps its devices
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
