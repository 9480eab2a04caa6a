"""What the subcommands share: JAX's settings, and options that several of them have."""

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
        help="A module that the study's `model.function` may be imported from here; once for each.",
    ),
]


def start_jax() -> None:
    """Double precision, and one host device per core; before JAX computes anything.

    Devices are what shares out the cores. The linear algebra of each starts no threads of its own: for matrices of a
    hundred rows they cost far more than they save, twenty-five times as much on a busy machine.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import jax

    jax.config.update("jax_enable_x64", True)
    # a program that uses JAX already, and calls the command as a function, keeps the devices it has
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
