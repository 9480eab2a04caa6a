"""From a study to the objects that run it. All are pure functions, so every site builds the same objects.

totals    = [sums(study, table) ...]                # each client, where columns are scaled by sums
columns   = study_scaling(study, totals)            # the server
design    = [design_sums(study, table, columns) ..] # each client, where the formula's matrix is scaled
scaling   = study_scaling(study, totals, design)    # the server; fixed from here on
algorithm = study_algorithm(study, scaling)         # both sides
data      = client_data(study, table, scaling)      # each client; the input of `cavity.run`

`table` is a `Table`, whose cells are parsed once however many of these are called, or a data frame or dict of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cavity.algorithms import PVI, SFVI, FedGVI, SFVIAvg
from cavity.core import Algorithm, LatentModel, Schedule
from cavity.core.client_data import Weighted
from cavity.errors import DataError, StudyError
from cavity.models.mixed.group_rows import GroupedRows
from cavity.study import registry
from cavity.study.encoding import FormulaEncoding, offset_values
from cavity.study.findings import refuse
from cavity.study.models import study_model
from cavity.study.rows import Rows, read_rows, row_weights, with_weight
from cavity.study.scaling import ScaledColumn, Scaling, Sums, over_its_mean, scaling_from, selected, sums_of
from cavity.study.schema import Study
from cavity.study.table import Table, as_table

ClientRows = tuple[np.ndarray, np.ndarray] | GroupedRows | dict[str, np.ndarray] | Weighted


def sums(study: Study, table: object) -> Sums:
    """The sums of columns that a client sends first.

    Args:
        study: what was agreed.
        table: the client's data.

    Raises:
        DataError: the data cannot be used.
    """
    table = as_table(table)
    rows = usable_rows(study, table)
    values = rows.values | _present_levels(study, rows)
    family = study.model.family
    if (outcome := study.scaled_outcome) is not None and study.formula is not None and family is not None:
        offset = offset_values(study.formula, rows, table.counted_as)
        if offset is not None and family.scales_outcome:
            values = values | {outcome: values[outcome] - offset}
    weight = row_weights(rows, study.model.weights)
    found = sums_of(study.federated_columns, values, len(rows), study.agreed_centres, weight)
    levels = sums_of(study.needed_levels, values, len(rows))  # whether it has each, whatever the weights
    return Sums(
        study.summed_columns,
        found.num_rows,
        np.concatenate([found.sum, levels.sum]),
        np.concatenate([found.sum_of_squares, levels.sum_of_squares]),
    )


def _present_levels(study: Study, rows: Rows) -> dict[str, np.ndarray]:
    """For each level that some client must have, numbers whose sum is 1 if this client has it, and 0 otherwise."""
    found = {}
    for column in study.outcome_columns if study.needed_levels else ():
        for i, level in enumerate(column.level_names):
            found[f"{column.name}[{level}]"] = np.array([float((rows.values[column.name] == i).any())])
    return found


def check_levels(study: Study, totals: Sequence[Sums]) -> None:
    """Raise StudyError if a level of an ordinal outcome occurs at no client.

    Args:
        study: what was agreed.
        totals: the sums of all clients.
    """
    for name in study.needed_levels:
        if not any(float(selected(own, [name]).sum[0]) > 0 for own in totals):
            raise StudyError(absent_level(name))


def absent_level(name: str) -> str:
    """Why a level of an ordinal outcome must occur, and the remedy."""
    return (
        f"no client has a row with the level {name}, so its threshold cannot be estimated; remove the level, or join "
        "it with a neighbouring one"
    )


def design_sums(study: Study, table: object, scaling: Scaling) -> Sums:
    """The sums of the columns of the formula's matrix that a client sends next.

    Args:
        study: what was agreed.
        table: the client's data.
        scaling: of the predictors.

    Raises:
        DataError: the data cannot be used.
    """
    table = as_table(table)
    encoding = _encoding(study, replace(scaling, design=()))
    rows = usable_rows(study, table)
    return encoding.matrix_sums(rows, table.counted_as, row_weights(rows, study.model.weights))


def study_scaling(
    study: Study, totals: Sequence[Sums] = (), design: Sequence[Sums] = (), *, allow_constant: bool = False
) -> Scaling:
    """Centre and scale of everything that is scaled.

    Args:
        study: what was agreed.
        totals: the sums of columns, one per client, in any order; none if the study does not use sums.
        design: the sums of the columns of the formula's matrix, one per client; none leaves these as they are.
        allow_constant: give the scale 1 to a column without variance; otherwise it is refused.
    """
    rules = dict(study.scaling_rules)
    if (outcome := study.scaled_outcome) is not None:
        rules[outcome] = study.outcome_rule
    scaled = {
        name: ScaledColumn(name, fixed.centre, fixed.scale)
        for name, rule in rules.items()
        if (fixed := rule.fixed) is not None
    }
    if totals and not allow_constant:
        check_levels(study, totals)
    if study.needed_levels:
        totals = [selected(own, study.federated_columns) for own in totals]
    if study.federated_columns:
        found = scaling_from(totals, study.agreed_centres, allow_constant=allow_constant)
        if outcome in study.federated_columns and not study.design.intercept:
            own = scaling_from(totals, study.agreed_centres, around_zero=True, allow_constant=allow_constant)
            found = (*found[:-1], own[-1])
        scaled |= {column.name: column for column in found}
    if unlike := set(scaled) ^ set(rules):
        raise StudyError(f"the sums are not those of the study's columns: {', '.join(sorted(unlike))}")
    columns = tuple(scaled[name] for name in study.scaling_rules)
    own = None if outcome is None else scaled.get(outcome)
    divides = study.model.family is not None and study.model.family.divides_outcome and own is not None
    scaling = Scaling(columns, over_its_mean(own) if divides and own is not None else own, log_outcome=divides)
    return replace(scaling, design=design_scaling(_encoding(study, scaling), design)) if design else scaling


def design_scaling(encoding: FormulaEncoding, totals: Sequence[Sums]) -> tuple[ScaledColumn, ...]:
    """Centre and scale of the columns of a formula's matrix; without an intercept they are not centred.

    Args:
        encoding: with the formula.
        totals: the sums of these columns, one per client.
    """
    found = scaling_from(totals, around_zero=not encoding.design.intercept, allow_constant=True)
    if (names := tuple(column.name for column in found)) != encoding.matrix_names:
        raise StudyError(f"the sums are of the columns {', '.join(names)}, not those of the formula's matrix")
    return found


def scaling_of(study: Study, tables: Sequence[object], *, allow_constant: bool = False) -> Scaling:
    """The scaling from the tables of all clients, for data that are in one place.

    Args:
        study: what was agreed.
        tables: one per client.
        allow_constant: as in `study_scaling`.
    """
    read = [as_table(table) for table in tables]
    totals = [sums(study, table) for table in read] if study.summed_columns else []
    scaling = study_scaling(study, totals, allow_constant=allow_constant)
    if not study.scales_design:
        return scaling
    design = [design_sums(study, table, scaling) for table in read]
    return study_scaling(study, totals, design, allow_constant=allow_constant)


def fits_study(study: Study, scaling: object, *, with_design: bool = True) -> bool:
    """Whether a scaling that came over a network has the study's columns.

    Args:
        study: what was agreed.
        scaling: what was received.
        with_design: whether it must have the columns of the formula's matrix too, if the study scales them.
    """
    if not isinstance(scaling, Scaling) or scaling.names != tuple(study.scaling_rules):
        return False
    names = study.design_names if study.scales_design and with_design else ()
    scaled = None if scaling.outcome is None else scaling.outcome.name
    divides = study.model.family is not None and study.model.family.divides_outcome
    if scaling.log_outcome != (divides and scaled is not None):
        return False
    return tuple(column.name for column in scaling.design) == names and scaled == study.scaled_outcome


def study_algorithm(study: Study, scaling: Scaling) -> Algorithm:
    """The method with its model, ready to run.

    Args:
        study: what was agreed.
        scaling: of its columns, as `study_scaling` gives it.
    """
    model, choice = study_model(study, scaling), study.algorithm
    if isinstance(model, LatentModel) and choice.method != "pvi":
        return _latent_algorithm(study, model)
    damping = None if choice.damping is None else registry.make(registry.DAMPINGS, choice.damping)
    if choice.method == "pvi":
        return PVI(model, damping=damping)
    if choice.method == "fedgvi":
        assert not isinstance(model, LatentModel)
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
    raise StudyError(f"algorithm.method: {choice.method!r} needs a model with local latents, and this one has none")


def _latent_algorithm(study: Study, model: LatentModel) -> Algorithm:
    """For models with local latents, which stay at their clients."""
    choice, rounds = study.algorithm, study.run.rounds
    if choice.step_size is None:
        raise StudyError(f"algorithm.method: {choice.method!r} cannot fit a model with local latents; use sfvi-avg")
    if choice.method == "sfvi":
        return SFVI(model, step_size=choice.step_size, num_steps=rounds)
    assert choice.local_steps is not None
    assert choice.total is not None
    return SFVIAvg(
        model,
        total=choice.total,
        local_steps=choice.local_steps,
        step_size=choice.step_size,
        num_rounds=rounds,
    )


def study_schedule(study: Study) -> Schedule:
    """Which clients take part in each round."""
    return registry.make(registry.SCHEDULES, study.run.schedule)


def client_data(study: Study, table: object, scaling: Scaling) -> ClientRows:
    """A client's rows in the form that the model takes: the formula's x and y, with groups if it has group terms, or a
    dict of columns.

    Args:
        study: what was agreed.
        table: the client's data.
        scaling: of the study's columns.

    Raises:
        DataError: with everything that is wrong; it quotes values, so it stays at the client.
    """
    table = as_table(table)
    rows = usable_rows(study, table)
    if study.formula is None:
        return rows.values
    encoding = _encoding(study, scaling)
    found = (encoding.grouped if study.formula.groups else encoding.encoded)(rows, table.counted_as)
    weight = row_weights(rows, study.model.weights)
    return found if weight is None else Weighted(found, weight)


def usable_rows(study: Study, table: Table) -> Rows:
    """The rows that the model uses, of a client that has enough of them. Raises DataError."""
    rows = read_rows(study.used_columns, table)
    refuse(rows.findings)
    rows = with_weight(rows, study.model.weights)
    if len(rows) < study.min_rows:
        raise DataError(
            f"{len(rows)} rows can be used, and the study needs at least {study.min_rows}: a factor of so few rows "
            "would nearly reveal them (see docs/what-a-factor-reveals.md)"
        )
    return rows


def _encoding(study: Study, scaling: Scaling) -> FormulaEncoding:
    assert study.model.formula is not None
    return FormulaEncoding(study.model.formula, study.formula_columns, scaling)
