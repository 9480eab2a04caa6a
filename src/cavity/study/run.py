"""A study in one process: the rehearsal, with the posterior that a network gives."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cavity.core.client_data import prepare_client
from cavity.core.intervals import DEFAULT_LEVEL
from cavity.distributions.gaussian import Gaussian
from cavity.errors import DataError, StudyError
from cavity.fit import run
from cavity.fit.run import Fit
from cavity.io import serialization
from cavity.io.checkpoints import RunDirectory, write_atomically
from cavity.io.versions import versions
from cavity.study.building import client_data, scaling_of, study_algorithm, study_schedule, sums
from cavity.study.identity import differences
from cavity.study.reader import read_study
from cavity.study.schema import Study
from cavity.study.table import Table
from cavity.training import Observer

STUDY, SUMMARY, POSTERIOR, VERSIONS = "study.toml", "summary.csv", "posterior.npz", "versions.json"


def run_study(
    study: Study,
    tables: Mapping[str, Table],
    *,
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    checkpoint_seconds: float = 5.0,
) -> Fit:
    """Run a study whose clients' tables are all here.

    Args:
        study: what was agreed.
        tables: one per client of the study.
        directory: where to keep checkpoints.
        resume: go on from the checkpoint in `directory`.
        observers: as in `cavity.run`.
        checkpoint_seconds: as in `cavity.run`.
    """
    if unlike := set(study.clients) ^ set(tables):
        raise DataError(f"there must be a table for every client of the study and for nobody else; see {_list(unlike)}")
    _of_each(study, tables, lambda table: sums(study, table))  # what is wrong with the data is told of all clients
    scaling = scaling_of(study, [tables[name] for name in study.clients])
    algorithm = study_algorithm(study, scaling)
    clients = _of_each(study, tables, lambda table: client_data(study, table, scaling))
    for name, data in clients.items():
        prepare_client(algorithm.model, name, data)
    options: dict[str, Any] = {
        "schedule": study_schedule(study),
        "rounds": study.run.rounds,
        "tolerance": study.run.tolerance,
        "observers": observers,
        "checkpoint_seconds": checkpoint_seconds,
    }
    if resume:
        assert directory is not None
        return run.resume(directory, clients, algorithm=algorithm, **options)
    held = study.algorithm.held_by_clients
    return run.run(algorithm, clients, seed=study.run.seed, directory=directory, held_by_clients=held, **options)


def _of_each(study: Study, tables: Mapping[str, Table], function: Any) -> dict[str, Any]:
    """In the study's order; what is wrong at any client is told of all."""
    found, wrong = {}, []
    for name in study.clients:
        try:
            found[name] = function(tables[name])
        except DataError as error:
            wrong.append(f"client {name!r}: {error}")
    if wrong:
        raise DataError("; ".join(wrong))
    return found


def open_run(directory: str | os.PathLike[str], study: Study, text: str, *, resume: bool) -> None:
    """Make a run's directory, or see that the one to be resumed is of the same study.

    Args:
        directory: of the run.
        study: what is to be run.
        text: its file, of which the directory keeps a copy.
        resume: whether there must be a run, or must not.
    """
    directory = Path(directory)
    begun = RunDirectory(directory).has_checkpoint
    if resume and not begun:
        raise StudyError(f"{directory}: there is no checkpoint to go on from; leave --resume out")
    if begun and not resume:
        raise StudyError(f"{directory}: there is a run already; go on with --resume, or give another --output")
    if resume and (changed := differences(read_study(directory / STUDY), study)):
        raise StudyError(f"{directory}: its run is of another version of the study; see the keys {', '.join(changed)}")
    write_atomically(directory / STUDY, text.encode())
    found = versions() | {"study": study.hash}
    write_atomically(directory / VERSIONS, (json.dumps(found, indent=2) + "\n").encode())


def write_results(fit: Fit, directory: str | os.PathLike[str], level: float = DEFAULT_LEVEL) -> None:
    """The posterior as arrays and the summary as a table, beside the checkpoint and the history.

    `posterior.npz` of a regression has `names`, `mean` and `covariance`, in the units of the data; that of another
    model has the arrays of its posterior. `numpy.load` reads it, without pickle.
    """
    directory = Path(directory)
    write_atomically(directory / POSTERIOR, posterior_file(fit))
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(["parameter", "mean", "sd", "lower", "upper", "level"])
    for estimate in fit.summary(level):
        writer.writerow([estimate.name, estimate.mean, estimate.sd, estimate.lower, estimate.upper, level])
    write_atomically(directory / SUMMARY, page.getvalue().encode())


def posterior_file(fit: Fit) -> bytes:
    """The bytes of `posterior.npz`."""
    if not isinstance(fit.posterior, Gaussian):
        return serialization.to_bytes(fit.reported)
    found, buffer = fit.coefficients, io.BytesIO()
    np.savez(buffer, names=np.array(found.names), mean=found.mean, covariance=found.covariance)
    return buffer.getvalue()


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))
