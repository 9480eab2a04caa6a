"""A study in one process, with the posterior that a network gives."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from cavity.core.client_data import prepare_client
from cavity.core.intervals import DEFAULT_LEVEL, check_level
from cavity.distributions.gaussian import gaussian_or_none
from cavity.errors import DataError, StudyError
from cavity.fit import run as fitting
from cavity.fit.draw_files import csv_text
from cavity.fit.fit import Fit
from cavity.io import serialization
from cavity.io.checkpoints import RunDirectory, write_atomically
from cavity.io.versions import versions
from cavity.reporting.facts import Facts, facts_of
from cavity.reporting.report import Report
from cavity.study.building import client_data, scaling_of, study_algorithm, study_schedule, usable_rows
from cavity.study.data_quality import refuse_same_rows
from cavity.study.identity import differences
from cavity.study.reader import read_study
from cavity.study.schema import Study
from cavity.study.table import Table
from cavity.training import Observer

STUDY, SUMMARY, POSTERIOR, VERSIONS = "study.toml", "summary.csv", "posterior.npz", "versions.json"
COVARIANCE, DRAWS, REPORT_PARTS = "covariance.csv", "draws.csv", "report.json"
MOST_DRAWN = 200  # parameters: with more, draws and covariance are in `posterior.npz` only

T = TypeVar("T")


def run_study(
    study: Study,
    tables: Mapping[str, Table],
    *,
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    checkpoint_seconds: float = 5.0,
) -> Fit:
    """Run a study whose clients' tables are all in this process.

    Args:
        study: what was agreed.
        tables: one per client of the study.
        directory: for checkpoints; None writes none.
        resume: resume from the checkpoint in `directory`.
        observers: as in `cavity.run`.
        checkpoint_seconds: as in `cavity.run`.

    Returns:
        The fit.

    Raises:
        DataError: with everything that is wrong with the data of all clients.
    """
    if unlike := set(study.clients) ^ set(tables):
        raise DataError(f"give a table for each client of the study, and no others; see {', '.join(sorted(unlike))}")
    refuse_same_rows(tables)
    _for_each(study, tables, lambda table: usable_rows(study, table))  # report the problems of all clients at once
    scaling = scaling_of(study, [tables[name] for name in study.clients])
    algorithm = study_algorithm(study, scaling)
    clients = _for_each(study, tables, lambda table: client_data(study, table, scaling))
    for name, data in clients.items():
        prepare_client(algorithm.model, name, data)
    if resume:
        assert directory is not None
        return fitting.resume(
            directory,
            clients,
            algorithm=algorithm,
            schedule=study_schedule(study),
            rounds=study.run.rounds,
            tolerance=study.run.tolerance,
            observers=observers,
            checkpoint_seconds=checkpoint_seconds,
        )
    return fitting.run(
        algorithm,
        clients,
        schedule=study_schedule(study),
        rounds=study.run.rounds,
        tolerance=study.run.tolerance,
        seed=study.run.seed,
        directory=directory,
        factors=study.algorithm.factors or "server",
        observers=observers,
        checkpoint_seconds=checkpoint_seconds,
    )


def _for_each(study: Study, tables: Mapping[str, Table], function: Callable[[Table], T]) -> dict[str, T]:
    """The results by client, in the study's order; the problems of all clients are raised together."""
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
    """Create a run's directory, or check that the run to be resumed is of the same study.

    Args:
        directory: of the run.
        study: to be run.
        text: of its file; the directory keeps a copy.
        resume: whether the directory must have a run; otherwise it must have none.
    """
    directory = Path(directory)
    begun = RunDirectory(directory).has_checkpoint
    if resume and not begun:
        raise StudyError(f"{directory}: no checkpoint to resume from; leave out --resume")
    if begun and not resume:
        raise StudyError(f"{directory}: it has a run already; resume it with --resume, or give another --output")
    if resume and (changed := differences(read_study(directory / STUDY), study)):
        raise StudyError(
            f"{directory}: its run is of another version of the study; different keys: {', '.join(changed)}"
        )
    write_atomically(directory / STUDY, text.encode())
    found = versions() | {"study": study.hash}
    write_atomically(directory / VERSIONS, (json.dumps(found, indent=2) + "\n").encode())


def write_results(
    fit: Fit,
    directory: str | os.PathLike[str],
    level: float = DEFAULT_LEVEL,
    facts: Facts | None = None,
    *,
    report: bool = True,
) -> None:
    """Write the results next to the checkpoint and the history.

    `posterior.npz` of a regression has `names`, `mean` and `covariance`, in the units of the data; that of another
    model has the arrays of its posterior. `numpy.load` reads it, without pickle. `summary.csv`, `covariance.csv` and
    `draws.csv` are for other programs, `report.html` and `tables` for people.

    Args:
        fit: the result.
        directory: of the run.
        level: the probability that each interval has.
        facts: of the report; None takes those that the fit knows.
        report: whether to write it, with its tables.
    """
    level = check_level(level)
    directory = Path(directory)
    write_atomically(directory / POSTERIOR, posterior_file(fit))
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(["parameter", "mean", "sd", "lower", "upper", "level"])
    summary = fit.summary(level)
    for estimate in summary:
        writer.writerow([estimate.name, estimate.mean, estimate.sd, estimate.lower, estimate.upper, level])
    write_atomically(directory / SUMMARY, page.getvalue().encode())
    if len(summary) <= MOST_DRAWN:
        fit.save_draws(directory / DRAWS)
        if gaussian_or_none(fit.posterior) is not None:
            joint = fit.coefficients
            columns = dict(zip(joint.names, joint.covariance, strict=True))
            write_atomically(directory / COVARIANCE, csv_text(columns).encode())
    if report:
        found = Report(facts_of(fit, level) if facts is None else facts)
        for name, content in found.files().items():
            write_atomically(directory / name, content)
        write_atomically(directory / REPORT_PARTS, found.to_json())


def posterior_file(fit: Fit) -> bytes:
    """The bytes of `posterior.npz`."""
    if gaussian_or_none(fit.posterior) is None:
        return serialization.to_bytes(fit.reported)
    found, buffer = fit.coefficients, io.BytesIO()
    np.savez(buffer, names=np.array(found.names), mean=found.mean, covariance=found.covariance)
    return buffer.getvalue()
