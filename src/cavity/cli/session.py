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
