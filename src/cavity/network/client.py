"""A study over a network, at a client: builds its `Site` for the worker, and shows what it would send."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from jaxtyping import PyTree

from cavity.core.client_data import prepare_client
from cavity.errors import ProtocolError
from cavity.fit.summary import Summary
from cavity.network.client_results import local_summary, write_results
from cavity.network.limits import bounds, fingerprint, max_messages, problem_with, problem_with_scaling
from cavity.network.preview import labelled
from cavity.network.protocol import RunConfig, check_like
from cavity.network.study_session import check_for_network, foreign_types, identity_of, largest_messages
from cavity.network.worker import ClientConfig, Site, first_reply
from cavity.reporting.report import REPORT
from cavity.study.building import client_data, design_sums, fits_study, scaling_of, study_algorithm, sums
from cavity.study.checks import name_findings
from cavity.study.findings import Severity, refuse
from cavity.study.report_facts import rows_of
from cavity.study.scaling import Scaling, Sums
from cavity.study.schema import Study
from cavity.study.table import Table

RESULTS = "results"


def site_of(study: Study, name: str, table: Table, folder: Path, notify: Callable[[str], None]) -> Site:
    """The site of a client.

    Args:
        study: the agreed study.
        name: of the client.
        table: its rows.
        folder: for the results.
        notify: called with lines about the progress.

    Raises:
        CavityError: the name or the data cannot be used.
    """
    check_for_network(study)
    refuse([finding for finding in name_findings(study, name) if finding.severity == Severity.ERROR])
    own_scaling = _own_scaling(study, table)
    config = _client_config(study, name, table, RunConfig(own_scaling))  # shows errors in the data at once

    def finish(files: dict[str, bytes], posterior: PyTree, run_config: RunConfig | None) -> None:
        def local() -> Summary | None:
            if posterior is None or run_config is None:
                return None
            config = _client_config(study, name, table, run_config)
            raw = client_data(study, table, run_config.scaling)
            return local_summary(config.algorithm, name, config.data, raw, posterior)

        write_results(folder / RESULTS, name, files, rows_of(study, {name: table})[name], local, notify)
        notify(f"results: {folder / RESULTS}; report: {folder / RESULTS / REPORT}")

    return Site(
        name,
        identity_of(study),
        client_config=lambda run_config: _client_config(study, name, table, run_config),
        sums=lambda scaling: _sums(study, table, scaling),
        finish=finish,
        types=foreign_types(study),
        largest_message=largest_messages(study)[1],
        fingerprint=fingerprint(study, table),
        notes=(_limit_note(study, config), *bounds(study, own_scaling).notes),
    )


def _limit_note(study: Study, config: ClientConfig) -> str:
    """How many messages the client replies to, and whether the replies could be solved for the rows."""
    limit = f"this client sends at most {config.max_messages} updates, in all runs of this study"
    if study.model.family is None:
        return limit
    prior, batch = config.algorithm.prior, config.data.batch
    x = batch["x"] if isinstance(batch, dict) else batch[0]
    d = prior.dimension
    numbers = d * (d + 3) // 2 if np.ndim(prior.precision) == 2 else 2 * d
    if config.max_messages * numbers <= x.size:
        return limit
    return (
        f"{limit}. Together they have {config.max_messages} x {numbers} numbers, and the predictors have {x.size} "
        "values here: a dishonest server could solve for rows. Agree on no more rounds than the study needs"
    )


def _client_config(study: Study, name: str, table: Table, run_config: RunConfig) -> ClientConfig:
    scaling = run_config.scaling
    if not fits_study(study, scaling):
        raise ProtocolError("its scaling has other columns than the study")
    if not scaling.is_usable:
        raise ProtocolError("its scaling has a centre that is not finite, or a scale that is not positive")
    if problem := problem_with_scaling(study, table, scaling):
        raise ProtocolError(problem)
    algorithm = study_algorithm(study, scaling)
    limit, limits = max_messages(study, algorithm), bounds(study, scaling)
    data = prepare_client(algorithm.model, name, client_data(study, table, scaling))
    stage = algorithm.initialisation
    if run_config.initialising:
        if stage is None:
            raise ProtocolError("this study's method has no initialisation")
        return ClientConfig(stage.algorithm, stage.data(data), study.run.seed, max_messages=limit)
    if run_config.start is not None:
        if stage is None:
            raise ProtocolError("this study's method has no initialisation, so it takes no start")
        check_like("the start", run_config.start, stage.algorithm.prior)
        algorithm = stage.start(run_config.start)
    return ClientConfig(
        algorithm,
        data,
        study.run.seed,
        study.algorithm.held_by_clients,
        limit,
        lambda message: problem_with(study, limits, algorithm, message),
    )


def _sums(study: Study, table: Table, scaling: PyTree) -> Sums:
    """The sums of the columns or, given their scaling, of the formula's matrix."""
    if scaling is None:
        return sums(study, table)
    if not study.scales_design or not fits_study(study, scaling, with_design=False) or not scaling.is_usable:
        raise ProtocolError("it asks for sums that the study does not need")
    if problem := problem_with_scaling(study, table, scaling):
        raise ProtocolError(problem)
    return design_sums(study, table, scaling)


def _own_scaling(study: Study, table: Table) -> Scaling:
    """The scaling by the sums of this client alone; a study uses those of all clients."""
    return scaling_of(study, [table], allow_constant=True)  # a column may be constant within each client


def preview(study: Study, table: Table, site: Site) -> list[str]:
    """What this client would send first, as lines of text: its sums, and its update in round 1.

    Args:
        study: the agreed study.
        table: the client's rows.
        site: of the client.
    """
    lines = []
    scaling = _own_scaling(study, table)
    if study.summed_columns:
        lines.append("once, for the scaling of columns:")
        lines += _described(sums(study, table), study.agreed_centres)
    if study.scales_design:
        lines.append("once, for the columns of the formula's matrix (here scaled by the sums of this client alone):")
        lines += _described(design_sums(study, table, scaling), {})
    lines.append("in round 1, the change of this client's factor (scaled by the sums of this client alone):")
    run_config = RunConfig(scaling)
    reply = first_reply(site, run_config)
    lines += labelled("delta", reply.update.delta, site.client_config(run_config).algorithm.model.parameter_names)
    report = {key: np.asarray(value).item() for key, value in asdict(reply.update.report).items()}
    lines.append(f"  report {json.dumps(report)}")
    return lines


def _described(own: Sums, centres: dict[str, float]) -> list[str]:
    """Sums as text, one line per column."""
    lines = [f"  n = {float(own.num_rows):.17g}"]
    for i, column in enumerate(own.columns):
        around = f" around {centres[column]:g}" if centres.get(column) else ""
        lines.append(f"  {column}{around}: sum {float(own.sum[i])!r}, sum of squares {float(own.sum_of_squares[i])!r}")
    return lines
