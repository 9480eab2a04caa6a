"""From a study to the objects that run it. All are pure functions, so that every site builds the same.

totals    = [sums(study, table) ...]                # each client, where columns are scaled so
columns   = study_scaling(study, totals)            # the server
design    = [design_sums(study, table, columns) ..] # each client, where the formula's matrix is scaled so
scaling   = study_scaling(study, totals, design)    # the server; fixed from here on
algorithm = study_algorithm(study, scaling)         # both sides
data      = client_data(study, table, scaling)      # each client; `cavity.run` takes it as it is
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cavity.algorithms import PVI, SFVI, FedGVI, SFVIAvg
from cavity.core import Algorithm, LatentModel, Schedule
from cavity.errors import DataError, StudyError
from cavity.study import registry
from cavity.study.columns import FixedScaling, ScalingRule
from cavity.study.encoding import FormulaEncoding
from cavity.study.findings import refuse
from cavity.study.models import study_model
from cavity.study.rows import Rows, read_rows
from cavity.study.scaling import ScaledColumn, Scaling, Sums, scaling_from, sums_of
from cavity.study.schema import Study
from cavity.study.table import as_table


def sums(study: Study, table: Any) -> Sums:
    """What a client sends first, where columns are scaled by sums. Raises DataError."""
    rows = _usable_rows(study, table)
    return sums_of(study.federated_columns, rows.values, len(rows), study.agreed_centres)


def design_sums(study: Study, table: Any, scaling: Scaling) -> Sums:
    """What it sends next: sums of the columns of the formula's matrix, from scaled predictors. Raises DataError."""
    _usable_rows(study, table)
    encoding = _encoding(study, replace(scaling, design=()))
    x, y = encoding.rows(table)
    return sums_of(encoding.design.names, dict(zip(encoding.design.names, x.T, strict=True)), len(y))


def study_scaling(
    study: Study, totals: Sequence[Sums] = (), design: Sequence[Sums] = (), *, allow_constant: bool = False
) -> Scaling:
    """Centre and scale of all that is scaled.

    Args:
        study: what was agreed.
        totals: one per client, in any order; none where the study asks for none.
        design: of the columns of the formula's matrix, one per client; none leaves these as they are.
        allow_constant: give the scale 1 to a column without variance; else it is refused.
    """
    rules = dict(study.scaling_rules)
    outcome = study.used_columns[0].name if study.model.kind == "linear" else None
    if outcome is not None and study.outcome_rule != ScalingRule.NONE:
        rules[outcome] = study.outcome_rule
    scaled = {
        name: ScaledColumn(name, rule.centre, rule.scale)
        for name, rule in rules.items()
        if isinstance(rule, FixedScaling)
    }
    if study.federated_columns:
        constant = {"allow_constant": allow_constant}
        found = scaling_from(totals, study.agreed_centres, **constant)
        if outcome in study.federated_columns and not _encoding(study, Scaling()).design.intercept:
            own = scaling_from(totals, study.agreed_centres, around_zero=True, **constant)
            found = (*found[:-1], own[-1])
        scaled |= {column.name: column for column in found}
    if unlike := set(scaled) ^ set(rules):
        raise StudyError(f"the sums are of other columns than the study's: {', '.join(sorted(unlike))}")
    columns = tuple(scaled[name] for name in study.scaling_rules)
    scaling = Scaling(columns, None if outcome is None else scaled.get(outcome))
    return replace(scaling, design=design_scaling(_encoding(study, scaling), design)) if design else scaling


def design_scaling(encoding: FormulaEncoding, totals: Sequence[Sums]) -> tuple[ScaledColumn, ...]:
    """Centre and scale of the columns of a formula's matrix; without an intercept they cannot be centred."""
    found = scaling_from(totals, around_zero=not encoding.design.intercept, allow_constant=True)
    if (names := tuple(column.name for column in found)) != encoding.design.names:
        raise StudyError(f"the sums are of the columns {', '.join(names)}, not those of the formula's matrix")
    return found


def scaling_of(study: Study, tables: Sequence[Any], *, allow_constant: bool = False) -> Scaling:
    """The scaling by the tables of all clients, where they are in one place."""
    options: dict[str, Any] = {"allow_constant": allow_constant}
    totals = [sums(study, table) for table in tables] if study.federated_columns else []
    scaling = study_scaling(study, totals, **options)
    if not study.scales_design:
        return scaling
    return study_scaling(study, totals, [design_sums(study, table, scaling) for table in tables], **options)


def fits_study(study: Study, scaling: Any, *, with_design: bool = True) -> bool:
    """Whether a scaling that came over a network is of the study's columns.

    Args:
        study: what was agreed.
        scaling: what came.
        with_design: whether it has the columns of the formula's matrix too, where the study scales these.
    """
    if not isinstance(scaling, Scaling) or scaling.names != tuple(study.scaling_rules):
        return False
    names = study.design_names if study.scales_design and with_design else ()
    outcome = None if study.outcome_rule == ScalingRule.NONE else study.used_columns[0].name
    scaled = None if scaling.outcome is None else scaling.outcome.name
    return tuple(column.name for column in scaling.design) == names and scaled == outcome


def study_algorithm(study: Study, scaling: Scaling) -> Algorithm:
    """The method with its model, ready to run."""
    model, choice = study_model(study, scaling), study.algorithm
    if isinstance(model, LatentModel) != (choice.method in ("sfvi", "sfvi-avg")):
        kind = "local latents" if isinstance(model, LatentModel) else "no local latents"
        raise StudyError(f"algorithm.method: {choice.method!r} does not go with a model that has {kind}")
    damping = None if choice.damping is None else registry.make(registry.DAMPINGS, choice.damping)
    if choice.method == "pvi":
        return PVI(model, damping=damping)
    if choice.method == "fedgvi":
        assert choice.loss is not None
        assert choice.divergence is not None
        assert choice.server_divergence is not None
        return FedGVI(
            model,
            registry.make(registry.LOSSES, choice.loss),
            registry.make(registry.DIVERGENCES, choice.divergence),
            server_divergence=registry.make(registry.DIVERGENCES, choice.server_divergence),
            damping=damping,
        )
    assert choice.step_size is not None
    if choice.method == "sfvi":
        steps: dict[str, Any] = {} if study.run.rounds is None else {"num_steps": study.run.rounds}
        return SFVI(model, step_size=choice.step_size, **steps)
    assert choice.local_steps is not None
    assert choice.total is not None
    rounds: dict[str, Any] = {} if study.run.rounds is None else {"num_rounds": study.run.rounds}
    return SFVIAvg(model, total=choice.total, local_steps=choice.local_steps, step_size=choice.step_size, **rounds)


def study_schedule(study: Study) -> Schedule:
    """Who works when."""
    return registry.make(registry.SCHEDULES, study.run.schedule)


def client_data(study: Study, table: Any, scaling: Scaling) -> Any:
    """A client's rows in the form that the model takes: the formula's x and y, or a dict of columns.

    Raises:
        DataError: with all that is wrong; it quotes values, so it is for the client's own eyes.
    """
    if study.model.formula is not None:
        _usable_rows(study, table)
        return _encoding(study, scaling).rows(table)
    return _usable_rows(study, table).values


def _encoding(study: Study, scaling: Scaling) -> FormulaEncoding:
    assert study.model.formula is not None
    return FormulaEncoding(study.model.formula, study.used_columns, scaling)


def _usable_rows(study: Study, table: Any) -> Rows:
    """The rows that count, of a client that has enough of them."""
    rows = read_rows(study.used_columns, as_table(table))
    refuse(rows.findings)
    if len(rows) < study.min_rows:
        raise DataError(
            f"it has {len(rows)} rows, and the study asks for {study.min_rows}: the factor of so few would nearly give "
            "them away (see docs/what-a-factor-reveals.md)"
        )
    return rows
