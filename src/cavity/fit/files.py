"""What a file holds of a fit, and how it is checked when it is read."""

from __future__ import annotations

import os
from pathlib import Path

from jaxtyping import PyTree

from cavity.core import Algorithm, Encoding, Schedule
from cavity.core.messages import ClientState, ServerState
from cavity.errors import CavityError, CheckpointError
from cavity.fit.arguments import is_a
from cavity.fit.fit import Fit
from cavity.io import serialization
from cavity.io.checkpoints import CHECKPOINT, RunDirectory
from cavity.training import Record

RESULTS = "posterior.npz"  # written beside the checkpoint at the end of a study
COEFFICIENTS = {"names.npy", "mean.npy", "covariance.npy"}  # what it holds for a regression


def saved(fit: Fit) -> dict[str, PyTree]:
    """The content of a file.

    Args:
        fit: the fit.

    Returns:
        The parts by name. Parts that cannot be written (functions, classes from outside Cavity) are None: the reader
        gives them again.
    """
    return {
        "server": fit.server,
        "clients": dict(fit.client_states or {}),
        "stopped": fit.stopped,
        "closing": fit.closing,
        "algorithm": _if_writable(fit.algorithm),
        "schedule": _if_writable(fit.schedule),
    }


def write(fit: Fit, path: str | os.PathLike[str]) -> None:
    """Write a fit with its evidence to one file.

    Args:
        fit: the fit.
        path: the file; it is replaced if it exists.
    """
    from cavity.evaluation.evidence import with_evidence

    path = Path(path)
    RunDirectory(path.parent).write_fit(path.name, saved(with_evidence(fit)), fit.history)


def read(path: Path, algorithm: Algorithm | None, schedule: Schedule | None) -> tuple[dict[str, PyTree], list[Record]]:
    """Read and check what `saved` made.

    Args:
        path: a file, or the directory of a run.
        algorithm: the algorithm where the file lacks it; None takes that of the file.
        schedule: the schedule where the file lacks it; None takes that of the file.

    Returns:
        The parts by name, complete, and the history.

    Raises:
        CheckpointError: where the file cannot be read, or holds something else.
    """
    directory, name = (path, CHECKPOINT) if path.is_dir() else (path.parent, path.name)
    types = serialization.types_beside((algorithm, schedule))
    if algorithm is not None:
        part = algorithm.server.entries
        entry = None if part is None else part.initial()
        types |= serialization.types_in((entry, algorithm.server.initial_state(1), algorithm.declaration.delta))
    if schedule is not None:
        types |= serialization.types_in(schedule.init(()))
    parts, history = RunDirectory(directory).read(types, name)
    if not _is_saved_fit(parts):
        raise CheckpointError(f"{path}: this file holds no fit; check the path, or delete the file and restart the run")
    parts["algorithm"] = parts["algorithm"] if algorithm is None else algorithm
    parts["schedule"] = parts["schedule"] if schedule is None else schedule
    if parts["algorithm"] is None or parts["schedule"] is None:
        raise CheckpointError(f"{path}: the file lacks parts from outside Cavity; give `algorithm=` and `schedule=`")
    _check_encoding(path, parts["algorithm"])
    return parts, history


def _if_writable(part: PyTree) -> PyTree:
    try:
        serialization.pack(part)
    except TypeError:  # a function
        return None
    return part if serialization.is_self_contained(part) else None


def _is_saved_fit(parts: PyTree) -> bool:
    """Whether this is what `saved` makes; `cavity.io.serialization` has checked the fields of each part."""
    kinds = {
        "server": ServerState,
        "clients": dict,
        "stopped": str,
        "algorithm": (Algorithm, type(None)),
        "schedule": (Schedule, type(None)),
        "closing": (tuple, type(None)),
    }
    if not is_a(parts, dict) or {"closing": None, **parts}.keys() != kinds.keys():
        return False
    return (
        all(is_a(parts.get(key), kind) for key, kind in kinds.items())
        and all(is_a(state, ClientState) for state in parts["clients"].values())
        and _is_closing(parts.get("closing"))
        and parts["server"].clients.records.keys() <= set(parts["server"].names)
    )


def _is_closing(closing: tuple[PyTree, ...] | None) -> bool:
    """Whether this is a version with the evidence at it, or None."""
    return closing is None or tuple(map(type, closing)) == (int, float)


def _check_encoding(path: Path, algorithm: Algorithm) -> None:
    """Check a formula from a file as strictly as one from a study."""
    encoding = getattr(getattr(algorithm, "model", None), "encoding", None)
    if encoding is None:
        return
    if not is_a(encoding, Encoding):
        raise CheckpointError(f"{path}: the encoding of the columns is a {type(encoding).__name__}")
    try:
        encoding.check()
    except CavityError as error:
        raise CheckpointError(f"{path}: {error}") from None
