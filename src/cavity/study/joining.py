"""A study over a network, at a client: its site as the worker needs it, and what it would send."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from cavity.data.clients import prepare_client
from cavity.engines.letters import Setting
from cavity.engines.worker import Half, Site, first_reply
from cavity.errors import ProtocolError
from cavity.store.directory import write_atomically
from cavity.study.building import client_data, study_algorithm, study_scaling, sums
from cavity.study.checking import name_findings
from cavity.study.findings import Severity, refuse
from cavity.study.networked import check_for_network, foreign_types, identity_of
from cavity.study.scaling import Scaling
from cavity.study.schema import Study
from cavity.study.table import Table

RESULTS = "results"
_FILES = {"posterior.npz", "summary.csv", "history.jsonl", "study.toml", "versions.json"}


def site_of(study: Study, name: str, table: Table, folder: Path, say: Callable[[str], None]) -> Site:
    """A client's site; raises where its name or its data cannot be used."""
    check_for_network(study)
    refuse([finding for finding in name_findings(study, name) if finding.severity == Severity.ERROR])
    _half(study, name, table, Setting(_own_scaling(study, table)))  # what is wrong with the data is told at once

    def finish(files: dict[str, bytes]) -> None:
        for file, content in files.items():
            if file in _FILES:  # the server does not choose where it writes
                write_atomically(folder / RESULTS / file, content)
        say(f"the results are in {folder / RESULTS}")

    return Site(
        name,
        identity_of(study),
        half=lambda setting: _half(study, name, table, setting),
        sums=lambda: sums(study, table),
        finish=finish,
        types=foreign_types(study),
    )


def _half(study: Study, name: str, table: Table, setting: Setting) -> Half:
    scaling = setting.scaling
    if not isinstance(scaling, Scaling) or set(scaling.names) != set(study.scaling_rules):
        raise ProtocolError("its scaling is of other columns than the study's")
    algorithm = study_algorithm(study, scaling)
    data = prepare_client(algorithm.model, name, client_data(study, table, scaling))
    if setting.scouting:
        scout: Any = algorithm.scout
        if scout is None:
            raise ProtocolError("this study's method does not search for a start")
        return Half(scout, scout.model.of(data), study.run.seed)
    if setting.start is not None:
        algorithm = algorithm.starting_at(setting.start)
    return Half(algorithm, data, study.run.seed, study.algorithm.held_by_clients)


def _own_scaling(study: Study, table: Table) -> Scaling:
    """By this client's sums alone, where the study scales by those of all."""
    return study_scaling(study, [sums(study, table)] if study.federated_columns else [])


def first_words(study: Study, table: Table, site: Site) -> list[str]:
    """What this client would send, in full: its sums, and its reply to the first message."""
    lines = []
    if study.federated_columns:
        own = sums(study, table)
        lines.append("once, for the scaling:")
        lines.append(f"  n = {int(own.num_rows)}")
        for i, column in enumerate(own.columns):
            lines.append(f"  {column}: sum {float(own.sum[i])!r}, sum of squares {float(own.sum_of_squares[i])!r}")
        lines.append("in the first round (scaled by the sums of this client alone; then by those of all):")
    else:
        lines.append("in the first round:")
    reply = first_reply(site, Setting(_own_scaling(study, table)))
    for path, leaf in jax.tree_util.tree_flatten_with_path(reply.answer.delta)[0]:
        lines.append(f"  change {jax.tree_util.keystr(path).lstrip('.')} {np.asarray(leaf).tolist()}")
    report = {key: np.asarray(value).item() for key, value in asdict(reply.answer.report).items()}
    lines.append(f"  report {json.dumps(report)}")
    return lines
