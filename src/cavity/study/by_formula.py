"""Regression by a formula over data frames in one process: what a study does, in one line of Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cavity.algorithms import PVI
from cavity.distributions.gaussian import Gaussian
from cavity.errors import DataError, StudyError
from cavity.interfaces import Schedule
from cavity.models.regression import Regression
from cavity.progress import Watcher
from cavity.results import Fit, run
from cavity.study import words
from cavity.study.columns import Column, Integer, Missing, Number
from cavity.study.encoding import FormulaEncoding
from cavity.study.findings import refuse
from cavity.study.formula import Formula, parse_formula
from cavity.study.guessing import guess_outcome, guess_predictor
from cavity.study.models import regression_model
from cavity.study.priors import INTERCEPT_SCALE, LOG_NOISE_SCALE, slope_scale
from cavity.study.rows import read_rows
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
    standardise: bool = False,
    noise_sd: Real | None = None,
    prior_scale: Real | None = None,
    intercept_scale: Real = INTERCEPT_SCALE,
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
        scaling: column -> (centre, scale) of predictors: the model computes with (value - centre) / scale, and the
            prior is on that; the summary is in the units of the data.
        standardise: the same for all other numeric predictors, by the mean and standard deviation over all frames.
        noise_sd: of linear regression, if it is known.
        prior_scale: the prior of a slope is N(0, scale^2); None is 2.5, and 10 for linear regression, in units of the
            outcome per unit of the (scaled) predictor.
        intercept_scale: that of the intercept.
        prior_scales: that of single coefficients, by name.
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
    if family not in words.REGRESSIONS:
        raise StudyError(f"there is no {family!r} regression; there is: {', '.join(words.REGRESSIONS)}")
    parsed = parse_formula(formula)
    tables = _tables(frames)
    columns = _columns(parsed, tables, family, dict(levels or {}), drop_missing=drop_missing)
    _tell_left_out(columns, tables)
    chosen = _scaling(parsed, columns, tables, dict(scaling or {}), standardise=standardise)
    prior = _prior(
        slope_scale(family) if prior_scale is None else prior_scale, intercept_scale, dict(prior_scales or {})
    )
    encoding = FormulaEncoding(formula, columns, chosen)
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


def _prior(scale: Real, intercept_scale: Real, scales: dict[str, Real]) -> PriorChoice:
    for name, value in {"prior_scale": scale, "intercept_scale": intercept_scale, **scales}.items():
        if not value > 0:
            raise StudyError(f"the scale of a prior must be positive; {name} is {value}")
    single = tuple((name, float(value)) for name, value in scales.items())
    return PriorChoice(float(scale), float(intercept_scale), LOG_NOISE_SCALE, single)


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


def _tell_left_out(columns: tuple[Column, ...], tables: Mapping[str, Table]) -> None:
    left_out = {client: len(table) - len(read_rows(columns, table)) for client, table in tables.items()}
    told = ", ".join(f"{client} {count} of {len(tables[client])}" for client, count in left_out.items() if count)
    if told and columns[0].missing == Missing.DROP:
        warnings.warn(f"rows with missing values are left out: {told}", stacklevel=3)


def _scaling(
    formula: Formula,
    columns: tuple[Column, ...],
    tables: Mapping[str, Table],
    given: dict[str, tuple[Real, Real]],
    *,
    standardise: bool,
) -> Scaling:
    numeric = [c.name for c in columns[1:] if isinstance(c, (Number, Integer)) and c.name not in formula.transformed]
    for name, (_, scale) in given.items():
        if name not in numeric:
            raise DataError(f"scaling is given for '{name}', which is no numeric predictor of the formula")
        if not scale > 0:
            raise DataError(f"the scale of '{name}' must be positive, not {scale}")
    scaled = {name: ScaledColumn(name, float(centre), float(scale)) for name, (centre, scale) in given.items()}
    rest = [name for name in numeric if name not in scaled] if standardise else []
    if rest:
        totals = []
        for client, table in tables.items():
            rows = read_rows(columns, table)
            try:
                refuse(rows.findings)
            except DataError as error:
                raise DataError(f"client {client!r}: {error}") from None
            totals.append(sums_of(rest, rows.values, len(rows)))
        scaled |= {column.name: column for column in scaling_from(totals)}
    return Scaling(tuple(scaled[name] for name in numeric if name in scaled))
