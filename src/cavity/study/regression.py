"""Regression by a formula over data frames in one process: what a study does, in one line of Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cavity.algorithms import PVI
from cavity.core import Schedule
from cavity.core.progress import Watcher
from cavity.distributions.gaussian import Gaussian
from cavity.errors import DataError, StudyError
from cavity.fit.run import Fit, run
from cavity.models.glm.regression import Regression
from cavity.study import registry
from cavity.study.building import design_scaling
from cavity.study.columns import Column, Integer, Missing, Number
from cavity.study.encoding import FormulaEncoding, is_reversible
from cavity.study.findings import refuse
from cavity.study.formula import Formula, parse_formula
from cavity.study.guessing import guess_outcome, guess_predictor
from cavity.study.models import regression_model
from cavity.study.priors import LOG_NOISE_SCALE, SLOPE_SCALE, WIDE_LOG_NOISE_SCALE
from cavity.study.priors import intercept_scale as default_intercept_scale
from cavity.study.rows import Rows, read_rows
from cavity.study.scaling import ScaledColumn, Scaling, scaling_from, sums_of
from cavity.study.schema import PriorChoice
from cavity.study.table import Table, as_table

Real = float | int


def regression(
    formula: str,
    frames: Mapping[str, Any],
    *,
    family: str = "logistic",
    levels: Mapping[str, Sequence[str]] | None = None,
    drop_missing: bool = False,
    scaling: Mapping[str, tuple[Real, Real]] | None = None,
    standardise: bool = True,
    noise_sd: Real | None = None,
    prior_scale: Real | None = None,
    intercept_scale: Real | None = None,
    prior_scales: Mapping[str, Real] | None = None,
    covariance: type[Gaussian] | None = None,
    method: Callable[[Regression], Any] = PVI,
    schedule: Schedule | None = None,
    rounds: int | None = None,
    tolerance: float = 1e-6,
    seed: int = 0,
    progress: bool | Watcher = False,
) -> Fit:
    """Fit a regression by an R-style formula over clients whose data frames are all here.

    Column types are those of the frames. The caller has all of them, so levels that are not given are the union over
    all frames, in the order of the alphabet; a study over a network takes them from its file, and never from a site.

    Args:
        formula: such as `"outcome ~ rx * age + log(dose)"`; names with spaces go between backticks.
        frames: client -> data frame, or dict of columns.
        family: "logistic", "linear", "softmax" or "poisson".
        levels: of categories, the reference first. A category whose levels are not given has those of all frames.
        drop_missing: leave out rows with a missing value and tell how many; else they are an error.
        scaling: column -> (centre, scale) of numeric predictors, and of the outcome of linear regression: the model
            computes with (value - centre) / scale, and the prior is on that; results are in the units of the data.
        standardise: the same for all other numeric predictors, the outcome of linear regression and the columns of the
            formula's matrix, by mean and standard deviation over all frames. False takes them as they are.
        noise_sd: of linear regression, if it is known.
        prior_scale: the prior of a slope is N(0, scale^2); None is 2.5. For linear regression it is in standard
            deviations of the outcome per standard deviation of the column; else per unit of the scaled predictor and
            per level of a category.
        intercept_scale: that of the intercept, which is the value at the means of all columns: of linear regression
            N(mean, (scale sd)^2) of the outcome, and None is 2.5; else N(0, scale^2), and None is 10.
        prior_scales: that of single coefficients, by name; per unit of the scaled predictor or per level.
        covariance: `FullGaussian` or `DiagonalGaussian`; None chooses by dimension.
        method: from the model to the method, such as `lambda model: FedGVI(model, Beta(0.3))`.
        schedule: as in `cavity.run`.
        rounds: as in `cavity.run`.
        tolerance: as in `cavity.run`.
        seed: as in `cavity.run`.
        progress: as in `cavity.run`.

    Returns:
        The fit. `fit.predict(frame)` takes new rows as a data frame.
    """
    if family not in registry.REGRESSIONS:
        raise StudyError(f"there is no {family!r} regression; there is: {', '.join(registry.REGRESSIONS)}")
    parsed = parse_formula(formula)
    tables = _tables(frames)
    columns = _columns(parsed, tables, family, dict(levels or {}), drop_missing=drop_missing)
    rows = _rows(columns, tables)
    _tell_left_out(columns, tables, rows)
    chosen = _scaling(parsed, columns, tables, rows, family, dict(scaling or {}), standardise=standardise)
    encoding = FormulaEncoding(formula, columns, chosen)
    prior = _prior(family, chosen, prior_scale, intercept_scale, dict(prior_scales or {}))
    model = regression_model(
        family, encoding, prior, family=covariance, noise_sd=None if noise_sd is None else float(noise_sd)
    )
    return run(
        method(model),
        tables,
        schedule=schedule,
        rounds=rounds,
        tolerance=tolerance,
        seed=seed,
        progress=progress,
    )


def _prior(
    family: str, scaling: Scaling, scale: Real | None, intercept: Real | None, scales: dict[str, Real]
) -> PriorChoice:
    unscaled = family == "linear" and scaling.outcome is None
    if unscaled and (scale is None or intercept is None):
        raise StudyError(
            "an outcome that is not scaled has no default prior: give prior_scale and intercept_scale in the units of "
            "the outcome, or leave standardise=True"
        )
    scale = SLOPE_SCALE if scale is None else scale
    intercept = default_intercept_scale(family) if intercept is None else intercept
    for name, value in {"prior_scale": scale, "intercept_scale": intercept, **scales}.items():
        if not value > 0:
            raise StudyError(f"the scale of a prior must be positive; {name} is {value}")
    noise = WIDE_LOG_NOISE_SCALE if unscaled else LOG_NOISE_SCALE
    return PriorChoice(float(scale), float(intercept), noise, tuple((n, float(v)) for n, v in scales.items()))


def _tables(frames: Mapping[str, Any]) -> dict[str, Table]:
    if not isinstance(frames, Mapping) or not frames:
        raise DataError("give a dict with at least one client -> data frame")
    tables = {}
    for client, frame in frames.items():
        try:
            tables[client] = as_table(frame)
        except DataError as error:
            raise DataError(f"client {client!r}: {error}") from None
    return tables


def _columns(
    formula: Formula,
    tables: Mapping[str, Table],
    family: str,
    levels: dict[str, Sequence[str]],
    *,
    drop_missing: bool,
) -> tuple[Column, ...]:
    """What is known of the columns, by all frames together; the outcome's first."""
    columns = []
    for name in (formula.outcome, *formula.predictors):
        for client, table in tables.items():
            if name not in table.columns:
                raise DataError(f"client {client!r}: there is no column '{name}'; it has {', '.join(table.columns)}")
        cells = [cell for table in tables.values() for cell in table.columns[name]]
        agreed = levels.pop(name, None)
        given = None if agreed is None else tuple(map(str, agreed))
        if name == formula.outcome:
            columns.append(guess_outcome(name, cells, family, given, drop_missing=drop_missing))
        else:
            columns.append(guess_predictor(name, cells, given, drop_missing=drop_missing))
    if levels:
        raise DataError(f"levels are given for '{next(iter(levels))}', which is no column of the formula")
    return tuple(columns)


def _rows(columns: tuple[Column, ...], tables: Mapping[str, Table]) -> dict[str, Rows]:
    """The rows of every client; a DataError where they cannot be used."""
    found = {}
    for client, table in tables.items():
        found[client] = read_rows(columns, table)
        try:
            refuse(found[client].findings)
        except DataError as error:
            raise DataError(f"client {client!r}: {error}") from None
    return found


def _tell_left_out(columns: tuple[Column, ...], tables: Mapping[str, Table], rows: Mapping[str, Rows]) -> None:
    left_out = {client: len(table) - len(rows[client]) for client, table in tables.items()}
    told = ", ".join(f"{client} {count} of {len(tables[client])}" for client, count in left_out.items() if count)
    if told and columns[0].missing == Missing.DROP:
        warnings.warn(f"rows with missing values are left out: {told}", stacklevel=3)


def _scaling(
    formula: Formula,
    columns: tuple[Column, ...],
    tables: Mapping[str, Table],
    rows: Mapping[str, Rows],
    family: str,
    given: dict[str, tuple[Real, Real]],
    *,
    standardise: bool,
) -> Scaling:
    """What is given, and the rest by sums over all clients, as a study does it."""
    numeric = [c.name for c in columns[1:] if isinstance(c, (Number, Integer)) and c.name not in formula.transformed]
    outcome = formula.outcome if family == "linear" else None
    for name, (_, scale) in given.items():
        if name not in (*numeric, outcome):
            raise DataError(f"scaling is given for '{name}', which is no numeric predictor of the formula")
        if not scale > 0:
            raise DataError(f"the scale of '{name}' must be positive, not {scale}")
    scaled = {name: ScaledColumn(name, float(centre), float(scale)) for name, (centre, scale) in given.items()}
    intercept = FormulaEncoding(formula.text, columns).design.intercept
    if outcome in scaled and scaled[outcome].centre != 0.0 and not intercept:
        raise DataError(f"without an intercept the outcome '{outcome}' cannot be centred; give the centre 0")
    if standardise:
        rest = [name for name in numeric if name not in scaled]
        rest = rest if is_reversible(formula.text, columns, numeric) else []
        scaled |= _by_sums(rest, rows, around_zero=False)
        own = [outcome] if outcome is not None and outcome not in scaled else []
        scaled |= _by_sums(own, rows, around_zero=not intercept)
    predictors = tuple(scaled[name] for name in numeric if name in scaled)
    found = Scaling(predictors, None if outcome is None else scaled.get(outcome))
    if not standardise:
        return found
    return replace(found, design=_design(FormulaEncoding(formula.text, columns, found), tables, rows))


def _by_sums(names: Sequence[str], rows: Mapping[str, Rows], *, around_zero: bool) -> dict[str, ScaledColumn]:
    """Around the mean of one client, which is near enough to that of all for sums of squares to keep their digits."""
    if not names:
        return {}
    first = next((own for own in rows.values() if len(own)), None)
    centres = {} if first is None else {name: float(np.mean(first.values[name])) for name in names}
    totals = [sums_of(names, own.values, len(own), centres) for own in rows.values() if len(own)]
    return {column.name: column for column in scaling_from(totals, centres, around_zero=around_zero)}


def _design(
    encoding: FormulaEncoding, tables: Mapping[str, Table], rows: Mapping[str, Rows]
) -> tuple[ScaledColumn, ...]:
    """Of the columns of the formula's matrix."""
    names, totals = encoding.design.names, []
    for client, own in rows.items():
        x, findings = encoding.matrix(own, tables[client].counted_as)
        try:
            refuse(findings)
        except DataError as error:
            raise DataError(f"client {client!r}: {error}") from None
        if len(own):
            totals.append(sums_of(names, dict(zip(names, x.T, strict=True)), len(own)))
    return design_scaling(encoding, totals)
