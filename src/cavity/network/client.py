"""A study over a network, at a client: its site as the worker needs it, and what it would send."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from cavity.core.client_data import prepare_client
from cavity.errors import ProtocolError
from cavity.io.checkpoints import write_atomically
from cavity.network.limits import bounds, fingerprint, max_messages, problem_with, problem_with_scaling
from cavity.network.protocol import RunConfig, check_like
from cavity.network.study_session import check_for_network, foreign_types, identity_of, largest_messages
from cavity.network.worker import ClientConfig, Site, first_reply
from cavity.study.building import client_data, design_sums, fits_study, scaling_of, study_algorithm, sums
from cavity.study.checks import name_findings
from cavity.study.findings import Severity, refuse
from cavity.study.scaling import Scaling, Sums
from cavity.study.schema import Study
from cavity.study.table import Table

RESULTS = "results"
_FILES = {"posterior.npz", "summary.csv", "history.jsonl", "study.toml", "versions.json"}


def site_of(study: Study, name: str, table: Table, folder: Path, say: Callable[[str], None]) -> Site:
    """A client's site; raises where its name or its data cannot be used."""
    check_for_network(study)
    refuse([finding for finding in name_findings(study, name) if finding.severity == Severity.ERROR])
    own_scaling = _own_scaling(study, table)
    half = _half(study, name, table, RunConfig(own_scaling))  # what is wrong with the data is told at once

    def finish(files: dict[str, bytes]) -> None:
        for file, content in files.items():
            if file in _FILES:  # the server does not choose where it writes
                write_atomically(folder / RESULTS / file, content)
        say(f"the results are in {folder / RESULTS}")

    return Site(
        name,
        identity_of(study),
        half=lambda setting: _half(study, name, table, setting),
        sums=lambda scaling: _sums(study, table, scaling),
        finish=finish,
        types=foreign_types(study),
        largest_message=largest_messages(study)[1],
        fingerprint=fingerprint(study, table),
        notes=(_how_much(study, half), *bounds(study, own_scaling).notes),
    )


def _how_much(study: Study, half: ClientConfig) -> str:
    """How many messages are answered, and whether the answers could be solved for the rows."""
    most = f"at most {half.max_messages} messages are answered, in all runs of this study"
    if study.model.family is None:
        return most
    prior, x = half.algorithm.prior, half.data.batch[0]
    d = prior.dimension
    numbers = d * (d + 3) // 2 if np.ndim(prior.precision) == 2 else 2 * d
    if half.max_messages * numbers <= x.size:
        return most
    return (
        f"{most}: {half.max_messages} times {numbers} numbers, and the predictors have {x.size} values here. A server "
        "that does not keep to the method could solve for rows; agree on no more rounds than the study needs"
    )


def _half(study: Study, name: str, table: Table, setting: RunConfig) -> ClientConfig:
    scaling = setting.scaling
    if not fits_study(study, scaling):
        raise ProtocolError("its scaling is of other columns than the study's")
    if not scaling.is_usable:
        raise ProtocolError("its scaling has a centre that is not finite, or a scale that is not positive")
    if problem := problem_with_scaling(study, table, scaling):
        raise ProtocolError(problem)
    algorithm = study_algorithm(study, scaling)
    most, limits = max_messages(study, algorithm), bounds(study, scaling)
    data = prepare_client(algorithm.model, name, client_data(study, table, scaling))
    stage = algorithm.initialisation
    if setting.initialising:
        if stage is None:
            raise ProtocolError("this study's method has no initialisation")
        return ClientConfig(stage.algorithm, stage.data(data), study.run.seed, max_messages=most)
    if setting.start is not None:
        if stage is None:
            raise ProtocolError("this study's method has no initialisation, so it takes no start")
        check_like("the start", setting.start, stage.algorithm.prior)
        algorithm = stage.start(setting.start)
    return ClientConfig(
        algorithm,
        data,
        study.run.seed,
        study.algorithm.held_by_clients,
        most,
        lambda message: problem_with(study, limits, algorithm, message),
    )


def _sums(study: Study, table: Table, scaling: Any) -> Sums:
    """Of the columns, or, given their scaling, of the formula's matrix."""
    if scaling is None:
        return sums(study, table)
    if not study.scales_design or not fits_study(study, scaling, with_design=False) or not scaling.is_usable:
        raise ProtocolError("it asks for sums that are not the study's")
    if problem := problem_with_scaling(study, table, scaling):
        raise ProtocolError(problem)
    return design_sums(study, table, scaling)


def _own_scaling(study: Study, table: Table) -> Scaling:
    """By this client's sums alone, where the study scales by those of all."""
    return scaling_of(study, [table], allow_constant=True)  # a column may vary between clients alone


def first_words(study: Study, table: Table, site: Site) -> list[str]:
    """What this client would send, in full: its sums, and its reply to the first message."""
    lines = []
    scaling = _own_scaling(study, table)
    if study.federated_columns:
        lines.append("once, for the scaling of columns:")
        lines += _told(sums(study, table), study.agreed_centres)
    if study.scales_design:
        lines.append(
            "once, for the columns of the formula's matrix (here and below scaled by this client's sums alone):"
        )
        lines += _told(design_sums(study, table, scaling), {})
    lines.append("in the first round:")
    reply = first_reply(site, RunConfig(scaling))
    for path, leaf in jax.tree_util.tree_flatten_with_path(reply.update.delta)[0]:
        lines.append(f"  change {jax.tree_util.keystr(path).lstrip('.')} {np.asarray(leaf).tolist()}")
    report = {key: np.asarray(value).item() for key, value in asdict(reply.update.report).items()}
    lines.append(f"  report {json.dumps(report)}")
    return lines


def _told(own: Sums, centres: dict[str, float]) -> list[str]:
    """Sums, one column a line."""
    lines = [f"  n = {int(own.num_rows)}"]
    for i, column in enumerate(own.columns):
        around = f" around {centres[column]:g}" if centres.get(column) else ""
        lines.append(f"  {column}{around}: sum {float(own.sum[i])!r}, sum of squares {float(own.sum_of_squares[i])!r}")
    return lines
