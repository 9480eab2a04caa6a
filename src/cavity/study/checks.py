"""Everything that is wrong with a site's table, and what it should weigh before it joins."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import numpy as np

from cavity.core.client_data import as_data
from cavity.errors import DataError
from cavity.study.columns import Category, Integer, Number
from cavity.study.encoding import FormulaEncoding
from cavity.study.findings import Finding, Severity
from cavity.study.models import study_model
from cavity.study.rows import Rows, read_rows
from cavity.study.scaling import Scaling
from cavity.study.schema import Study
from cavity.study.table import Table, as_table

FEW_PER_COEFFICIENT = 5  # rows per coefficient under which the factor nearly determines them
SMALL_GROUP = 5  # rows of a level under which they are a group that the factor shows


def check(study: Study, table: Any, name: str | None = None) -> list[Finding]:
    """All findings about a site's table: errors first, then warnings, then notes.

    Args:
        study: what was agreed.
        table: a `Table`, a data frame or a dict of columns.
        name: of the client, if it is to be checked against the list.
    """
    table = as_table(table)
    findings = [] if name is None else list(name_findings(study, name))
    rows = read_rows(study.used_columns, table)
    findings += rows.findings
    unused = [column for column in table.columns if column not in {used.name for used in study.used_columns}]
    if unused:
        findings.append(Finding(Severity.NOTE, f"columns that the model does not use stay unread: {', '.join(unused)}"))
    if len(rows) < study.min_rows:
        findings.append(
            Finding(
                Severity.ERROR,
                f"{len(rows)} rows can be used, and the study asks for {study.min_rows}: what is sent for so few rows "
                "would nearly give them away",
            )
        )
    if not any(finding.severity == Severity.ERROR for finding in rows.findings) and len(rows) > 0:
        findings += _row_findings(study, rows, table)
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def name_findings(study: Study, name: str) -> Iterator[Finding]:
    """Whether a client is one of the study's."""
    if name not in study.clients:
        near = difflib.get_close_matches(name, study.clients, 1)
        hint = f" (is {near[0]!r} meant?)" if near else ""
        yield Finding(Severity.ERROR, f"the study has no client {name!r}{hint}; it has {', '.join(study.clients)}")


def _row_findings(study: Study, rows: Rows, table: Table) -> Iterator[Finding]:
    """About rows that could be read."""
    model = study_model(study, Scaling())
    if study.model.formula is None:
        yield from _model_findings(model, rows.values)
        return
    encoding = FormulaEncoding(study.model.formula, study.used_columns)
    x, not_finite = encoding.matrix(rows, table.counted_as)
    yield from not_finite
    if not not_finite:
        yield from _model_findings(model, (x, rows.values[study.used_columns[0].name]))
    yield from _column_notes(study, rows)
    if study.model.function is None:
        yield from few_rows(len(rows), len(model.parameter_names))
    for name, column in zip(encoding.design.names, x.T, strict=True):
        count = min(int((column == 1).sum()), int((column == 0).sum()))
        if np.isin(column, (0, 1)).all() and 0 < count < SMALL_GROUP:
            message = f"{name}: a group of {count} rows, which the factor shows nearly as it is"
            yield Finding(Severity.WARNING, message)


def _model_findings(model: Any, batch: Any) -> Iterator[Finding]:
    """The model's own word on the rows."""
    try:
        as_data(model, batch)
    except DataError as error:
        yield Finding(Severity.ERROR, f"the model does not take these rows: {error}")


def few_rows(num_rows: int, num_coefficients: int) -> Iterator[Finding]:
    """A warning where a factor nearly gives the rows away."""
    if num_rows > FEW_PER_COEFFICIENT * num_coefficients:
        return
    which = "determines them up to a rotation" if num_rows <= num_coefficients else "tells much about single ones"
    message = (
        f"{num_rows} rows are few against {num_coefficients} coefficients: what is sent {which}. More than "
        f"{FEW_PER_COEFFICIENT * num_coefficients} rows, or fewer coefficients, would be better"
    )
    yield Finding(Severity.WARNING, message)


def _column_notes(study: Study, rows: Rows) -> Iterator[Finding]:
    for column in study.used_columns:
        values = rows.values[column.name]
        if isinstance(column, Category):
            absent = [level for i, level in enumerate(column.ordered) if not (values == i).any()]
            if absent:
                message = f"no row here has {', '.join(map(repr, absent))}; that is no fault, others may"
                yield Finding(Severity.NOTE, message, column.name)
        elif (values == values[0]).all():
            outcome = study.formula is not None and column.name == study.formula.outcome
            what = "the outcome" if outcome else "it"
            severity = Severity.WARNING if isinstance(column, (Number, Integer)) and not outcome else Severity.NOTE
            yield Finding(severity, f"{what} has the same value in every row", column.name)
