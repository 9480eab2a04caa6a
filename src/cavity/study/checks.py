"""Everything that is wrong with a site's table, and what the site should consider before it joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from cavity.core import LatentModel, Model
from cavity.core.client_data import Weighted, as_data
from cavity.errors import DataError
from cavity.models.mixed.group_rows import GroupedRows
from cavity.study.building import ClientRows
from cavity.study.data_quality import collinear, copies, number_findings, separated
from cavity.study.encoding import FormulaEncoding
from cavity.study.findings import Finding, Severity
from cavity.study.models import study_model
from cavity.study.rows import Rows, read_rows, row_weights, with_weight
from cavity.study.scaling import Scaling
from cavity.study.schema import Study
from cavity.study.spelling import did_you_mean
from cavity.study.table import Table, as_table

FEW_PER_COEFFICIENT = 5  # rows per coefficient; with fewer, the factor nearly determines the rows
SMALL_GROUP = 5  # rows; the members of a smaller group could be identified


def check(study: Study, table: object, name: str | None = None) -> list[Finding]:
    """All findings about a site's table: errors first, then warnings, then notes.

    Args:
        study: what was agreed.
        table: a `Table`, a data frame or a dict of columns.
        name: of the client, to be checked against the study's list; None skips this.
    """
    table = as_table(table)
    findings = [] if name is None else list(name_findings(study, name))
    rows = read_rows(study.used_columns, table)
    findings += rows.findings
    unused = [column for column in table.columns if column not in {used.name for used in study.used_columns}]
    if unused:
        findings.append(Finding(Severity.NOTE, f"columns that the model does not use are ignored: {', '.join(unused)}"))
    is_read = not any(finding.severity == Severity.ERROR for finding in rows.findings)
    try:
        rows = with_weight(rows, study.model.weights) if is_read else rows
    except DataError as error:
        findings, is_read = [*findings, Finding(Severity.ERROR, str(error))], False
    if len(rows) < study.min_rows:
        findings.append(
            Finding(
                Severity.ERROR,
                f"{len(rows)} rows can be used, and the study needs at least {study.min_rows}: what is sent for so few "
                "rows would nearly reveal them",
            )
        )
    if is_read and len(rows) > 0:
        findings += _row_findings(study, rows, table)
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def name_findings(study: Study, name: str) -> Iterator[Finding]:
    """Whether a client is one of the study's."""
    if name not in study.clients:
        hint = did_you_mean(name, study.clients)
        yield Finding(Severity.ERROR, f"unknown client {name!r}{hint}; choose one of: {', '.join(study.clients)}")


def _row_findings(study: Study, rows: Rows, table: Table) -> Iterator[Finding]:
    """About rows that could be read."""
    model = study_model(study, Scaling())
    if study.model.formula is None:
        yield from _model_findings(model, lambda: rows.values)
        return
    encoding = FormulaEncoding(study.model.formula, study.formula_columns)
    x, not_finite = encoding.matrix(rows, table.counted_as)
    yield from not_finite
    if encoding.parsed.groups:
        _, in_z = encoding.group_matrix(rows, table.counted_as)
        not_finite = (*not_finite, *in_z)
        yield from in_z
    if not not_finite:
        read = encoding.grouped if encoding.parsed.groups else encoding.encoded
        yield from _model_findings(model, lambda: _weighted(read(rows, table.counted_as), study, rows))
    yield from _column_notes(study, rows)
    yield from _quality(study, encoding, x, rows, table)
    if study.model.function is None:
        yield from few_rows(len(rows), len(model.parameter_names))
    if not not_finite and len(rows) > FEW_PER_COEFFICIENT * len(model.parameter_names):  # chance explains fewer
        yield from _separation(study, encoding, x, rows)
    for name, column in zip(encoding.design.names, x.T, strict=True):
        count = min(int((column == 1).sum()), int((column == 0).sum()))
        if np.isin(column, (0, 1)).all() and 0 < count < SMALL_GROUP:
            message = f"{name}: only {count} {'row' if count == 1 else 'rows'}: they could be identified"
            yield Finding(Severity.WARNING, message)


def _quality(study: Study, encoding: FormulaEncoding, x: np.ndarray, rows: Rows, table: Table) -> Iterator[Finding]:
    """What is probably wrong with the rows, whatever the family."""
    yield from copies(table)
    groups = encoding.parsed.group_columns
    numbers = [column for column in study.used_columns if column.name not in groups]
    yield from number_findings(numbers, rows, table.counted_as)
    if np.isfinite(x).all():
        yield from collinear(x, encoding.design.names, intercept=encoding.design.intercept)


def _separation(study: Study, encoding: FormulaEncoding, x: np.ndarray, rows: Rows) -> Iterator[Finding]:
    if study.model.family is not None and study.model.family.is_binary:
        y = np.asarray(rows.values[study.outcome_columns[0].name], float)
        yield from separated(x, y, encoding.design.names, intercept=encoding.design.intercept)


def _weighted(batch: tuple[np.ndarray, np.ndarray] | GroupedRows, study: Study, rows: Rows) -> ClientRows:
    weight = row_weights(rows, study.model.weights)
    return batch if weight is None else Weighted(batch, weight)


def _model_findings(model: Model | LatentModel, batch: Callable[[], ClientRows]) -> Iterator[Finding]:
    """The model's own check of the rows."""
    try:
        as_data(model, batch())
    except DataError as error:
        yield Finding(Severity.ERROR, f"the model cannot use these rows: {error}")


def few_rows(num_rows: int, num_coefficients: int) -> Iterator[Finding]:
    """A warning if a factor nearly reveals the rows.

    Args:
        num_rows: of the client.
        num_coefficients: of the model.
    """
    if num_rows > FEW_PER_COEFFICIENT * num_coefficients:
        return
    which = "determines the rows up to a rotation" if num_rows <= num_coefficients else "reveals much about single rows"
    message = (
        f"{num_rows} rows are few for {num_coefficients} coefficients: what is sent {which}. Use more than "
        f"{FEW_PER_COEFFICIENT * num_coefficients} rows, or fewer coefficients"
    )
    yield Finding(Severity.WARNING, message)


def _column_notes(study: Study, rows: Rows) -> Iterator[Finding]:
    outcomes = {column.name for column in study.outcome_columns}
    groups = () if study.formula is None else study.formula.group_columns
    for column in study.used_columns:
        values = rows.values[column.name]
        if column.name in groups:
            count = len(set(values.tolist()))
            yield Finding(Severity.NOTE, f"{count} group{'' if count == 1 else 's'}; names are not sent", column.name)
            continue
        if levels := column.level_names:
            if absent := [level for i, level in enumerate(levels) if not (values == i).any()]:
                message = f"no row with {', '.join(map(repr, absent))}; other sites may have some"
                yield Finding(Severity.NOTE, message, column.name)
        elif (values == values[0]).all():
            is_outcome = column.name in outcomes
            severity = Severity.WARNING if column.is_numeric and not is_outcome else Severity.NOTE
            what = "the outcome has" if is_outcome else "it has"
            yield Finding(severity, f"{what} the same value in every row", column.name)
