"""From a study to the objects that run it. All are pure functions, so that every site builds the same.

totals    = [sums(study, table) ...]                # each client, once, where columns are scaled so
scaling   = study_scaling(study, totals)            # the server
algorithm = study_algorithm(study, scaling)         # both sides
data      = client_data(study, table, scaling)      # each client; `cavity.run` takes it as it is
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cavity.algorithms import PVI, SFVI, FedGVI, SFVIAvg
from cavity.errors import DataError, StudyError
from cavity.interfaces import Algorithm, LatentModel, Schedule
from cavity.study import words
from cavity.study.columns import FixedScaling
from cavity.study.encoding import FormulaEncoding
from cavity.study.findings import refuse
from cavity.study.models import study_model
from cavity.study.rows import Rows, read_rows
from cavity.study.scaling import ScaledColumn, Scaling, Sums, scaling_from, sums_of
from cavity.study.schema import Study
from cavity.study.table import as_table


def sums(study: Study, table: Any) -> Sums:
    """What a client sends once, before the first round, where columns are scaled by sums. Raises DataError."""
    rows = _usable_rows(study, table)
    return sums_of(study.federated_columns, rows.values, len(rows))


def study_scaling(study: Study, totals: Sequence[Sums] = ()) -> Scaling:
    """Centre and scale of every scaled column.

    Args:
        study: what was agreed.
        totals: one per client, in any order; none where the study asks for none.
    """
    scaled = {
        name: ScaledColumn(name, rule.centre, rule.scale)
        for name, rule in study.scaling_rules.items()
        if isinstance(rule, FixedScaling)
    }
    if study.federated_columns:
        scaled |= {column.name: column for column in scaling_from(totals)}
    if unlike := set(scaled) ^ set(study.scaling_rules):
        raise StudyError(f"the sums are of other columns than the study's: {', '.join(sorted(unlike))}")
    return Scaling(tuple(scaled[name] for name in study.scaling_rules))


def study_algorithm(study: Study, scaling: Scaling) -> Algorithm:
    """The method with its model, ready to run."""
    model, choice = study_model(study, scaling), study.algorithm
    if isinstance(model, LatentModel) != (choice.method in ("sfvi", "sfvi-avg")):
        kind = "local latents" if isinstance(model, LatentModel) else "no local latents"
        raise StudyError(f"algorithm.method: {choice.method!r} does not go with a model that has {kind}")
    damping = None if choice.damping is None else words.make(words.DAMPINGS, choice.damping)
    if choice.method == "pvi":
        return PVI(model, damping=damping)
    if choice.method == "fedgvi":
        assert choice.loss is not None
        assert choice.divergence is not None
        assert choice.server_divergence is not None
        return FedGVI(
            model,
            words.make(words.LOSSES, choice.loss),
            words.make(words.DIVERGENCES, choice.divergence),
            server_divergence=words.make(words.DIVERGENCES, choice.server_divergence),
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
    return words.make(words.SCHEDULES, study.run.schedule)


def client_data(study: Study, table: Any, scaling: Scaling) -> Any:
    """A client's rows in the form that the model takes: the formula's x and y, or a dict of columns.

    Raises:
        DataError: with all that is wrong; it quotes values, so it is for the client's own eyes.
    """
    if study.model.formula is not None:
        _usable_rows(study, table)
        return FormulaEncoding(study.model.formula, study.used_columns, scaling).rows(table)
    return _usable_rows(study, table).values


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
