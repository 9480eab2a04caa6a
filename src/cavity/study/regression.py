"""Regression by a formula over data frames in one process: what a study does, in one line of Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cavity.algorithms import PVI
from cavity.core import Algorithm, Schedule
from cavity.core.progress import Watcher
from cavity.core.user_warnings import warn_user
from cavity.distributions.forms import Form, gaussian_class
from cavity.errors import DataError, StudyError
from cavity.fit.run import Fit, run
from cavity.study import registry
from cavity.study.building import design_scaling
from cavity.study.client_effects import with_client_effects
from cavity.study.client_weights import (
    Weights,
    refuse_absent_levels,
    rows_with_weight,
    weight_column,
    weighted_rows,
    without_offset,
)
from cavity.study.columns import Column, Missing, ScalingRule, Text
from cavity.study.data_quality import refuse_same_rows
from cavity.study.encoding import FormulaEncoding, is_reversible
from cavity.study.families import Family, make_family
from cavity.study.findings import refuse
from cavity.study.formula import Formula, parse_formula
from cavity.study.guessing import RawColumn, guess_predictor
from cavity.study.models import formula_model
from cavity.study.nesting import nesting_problem, several_groups_problem
from cavity.study.priors import NORMAL, SlopePrior
from cavity.study.regression_priors import chosen_group_prior, chosen_prior
from cavity.study.rows import Rows, read_rows
from cavity.study.scaling import ScaledColumn, Scaling, over_its_mean, scaling_from, sums_of
from cavity.study.spelling import did_you_mean
from cavity.study.table import Table, as_table
from cavity.study.validation import left_side_problem

Real = float | int
IF_MISSING = 'impute them, or drop these rows with missing="drop"'
MISSING = (Missing.REFUSE.value, Missing.DROP.value)


def regression(
    formula: str,
    frames: Mapping[str, object],
    *,
    family: str | Family = "bernoulli",
    client_effects: str = "none",
    weights: str | None = None,
    levels: Mapping[str, Sequence[str]] | None = None,
    missing: str = "refuse",
    scaling: str = "federated",
    column_scaling: Mapping[str, tuple[Real, Real] | str] | None = None,
    noise_sd: Real | None = None,
    link: str | None = None,
    df: Real | str | None = None,
    ties: str | None = None,
    cuts: Sequence[Real] | None = None,
    baseline: str | None = None,
    prior_scale: Real | None = None,
    intercept_scale: Real | None = None,
    prior_scales: Mapping[str, Real] | None = None,
    prior_family: str = NORMAL,
    prior_df: Real | None = None,
    priors: Mapping[str, Mapping[str, Real | str]] | None = None,
    sd_scale: Real | None = None,
    sd_df: Real | None = None,
    sd_scales: Mapping[str, Real] | None = None,
    correlation_eta: Real | None = None,
    covariance: Form = None,
    method: Callable[..., Algorithm] = PVI,
    schedule: Schedule | None = None,
    rounds: int | None = None,
    tolerance: float = 1e-6,
    seed: int = 0,
    progress: bool | Watcher = False,
) -> Fit:
    """Fit a regression by an R-style formula over clients whose data frames are all in this process.

    Column types are those of the frames. Levels that are not given are the union over all frames, in alphabetical
    order; a study over a network takes them from its file, and never from a site.

    Args:
        formula: such as `"outcome ~ rx * age + log(dose)"`; names with spaces go between backticks. `(1 | ward)` and
            `(age | ward)` are effects that vary between groups, each of which is at one client; `(1 | client)` between
            clients. `offset(log(time))` is a term whose coefficient is 1.
        frames: client -> data frame, or dict of columns.
        family: of the outcome: "gaussian" (or "linear"), "student-t", "bernoulli" ("logistic"), "binomial",
            "categorical" ("softmax"), "ordinal", "poisson", "negative-binomial" or "gamma"; or a `cavity.study.Family`
            with its settings. The left side of a binomial formula is `deaths | trials(patients)`.
        client_effects: "intercepts" gives each client an intercept of its own, which is no shared parameter (as
            `stratified(1)` in the formula); "random" lets them vary around a common one, `(1 | client)`.
        weights: the column with the weight of each row: a row of weight 2 counts as two, one of weight 0 not at all.
        levels: of categories, the reference first. A category whose levels are not given has those of all frames.
        missing: what to do about missing values. "refuse": they are an error. "drop": their rows are dropped, with a
            warning that says how many.
        scaling: "federated" scales numeric predictors, a gaussian outcome and the columns of the formula's matrix by
            mean and standard deviation over all frames. "none" uses them as they are. Results are in the units of the
            data.
        column_scaling: the scaling of single columns (numeric predictors, a gaussian outcome): (centre, scale) computes
            with (value - centre) / scale, and the prior is on that scale; "none" uses the column as it is.
        noise_sd: the standard deviation of the noise of a gaussian outcome, if it is known.
        link: of a bernoulli, binomial or ordinal outcome: "logit" (the default), "probit", or for the first two
            "cloglog".
        df: the degrees of freedom of a student-t outcome, or "learned" to estimate them; None is 4.
        ties: of a Cox model, the approximation for several events at one time: "efron" (the default) or "breslow".
        cuts: of a piecewise exponential model, the times between which the hazard is constant.
        baseline: of the same, whether its hazards are "shared" (the default) or each "client" has its own.
        prior_scale: the prior of a slope is N(0, scale^2); None is 2.5. For a gaussian outcome it is in standard
            deviations of the outcome per standard deviation of the column; otherwise per unit of the scaled predictor
            and per level of a category.
        intercept_scale: that of the intercept, which is the value at the means of all columns. For a gaussian outcome
            the prior is N(mean, (scale sd)^2) with the mean and sd of the outcome, and None is 2.5; otherwise it is
            N(0, scale^2), and None is 10.
        prior_scales: that of single coefficients, by name; per unit of the scaled predictor or per level. Also that of
            further parameters, by the key of a study file: `log_noise_scale`, `log_scale_scale`, `log_baseline_scale`.
        prior_family: of the priors of slopes: "normal", "student-t", "laplace" or "horseshoe". Those of the intercept
            and of parameters beside the coefficients are normal.
        prior_df: degrees of freedom of student-t priors; None is 3.
        priors: of single slopes, by name: `{"age": {"family": "laplace", "scale": 0.5}}`, with the keys `family`,
            `scale` and `df`. The scale is per unit of the scaled predictor or per level.
        sd_scale: the standard deviations of effects that vary between groups have half-normal priors of this scale;
            None is 2.5. It is in the units of `prior_scale`, per standard deviation of a number and per level.
        sd_df: makes these priors half-t with so many degrees of freedom.
        sd_scales: the scale of single standard deviations, by effect (`"1|ward"`), in the units of the data.
        correlation_eta: the prior of correlations is LKJ(eta); None is 2, and 1 is uniform.
        covariance: the form of the Gaussian posterior, "full" or "diagonal"; None chooses by the number of
            coefficients.
        method: from the model to the method, such as `lambda model: FedGVI(model, Beta(0.3))`.
        schedule: as in `cavity.run`.
        rounds: as in `cavity.run`.
        tolerance: as in `cavity.run`.
        seed: as in `cavity.run`.
        progress: as in `cavity.run`.

    Returns:
        The fit. `fit.predict(frame)` takes new rows as a data frame.
    """
    settings = {"noise_sd": noise_sd, "link": link, "df": df, "ties": ties, "baseline": baseline}
    chosen_family = make_family(
        family,
        {name: float(value) if isinstance(value, (int, float)) else value for name, value in settings.items()}
        | {"cuts": None if cuts is None else tuple(map(float, cuts))},
    )
    if isinstance(covariance, str) and covariance not in registry.COVARIANCES:
        raise StudyError(f"unknown covariance {covariance!r}; choose one of: {', '.join(registry.COVARIANCES)}")
    if missing not in MISSING:
        raise StudyError(f"unknown missing {missing!r}; choose one of: {', '.join(MISSING)}")
    if not callable(method):
        raise StudyError(f"method is a function from the model to a method, such as cavity.PVI, not {method!r}")
    if scaling not in list(ScalingRule):
        raise StudyError(
            f"unknown scaling {scaling!r}; choose one of: {', '.join(ScalingRule)}. The scaling of single columns is "
            "`column_scaling`"
        )
    formula = with_client_effects(formula, client_effects)
    parsed = parse_formula(formula)
    if problem := left_side_problem(chosen_family, parsed):
        raise StudyError(problem)
    tables = _tables(frames)
    refuse_same_rows(tables)
    columns = _columns(parsed, tables, chosen_family, dict(levels or {}), Missing(missing))
    rows = _rows((*columns, *weight_column(weights, parsed, tables, Missing(missing))), tables)
    _warn_of_dropped_rows(columns, tables, rows)
    rows, each = rows_with_weight(weights, rows)
    if chosen_family.needs_all_levels:
        refuse_absent_levels(columns[: len(parsed.outcomes)], rows)
    federated = scaling == ScalingRule.FEDERATED
    scaled = _scaling(
        parsed, columns, tables, rows, each, chosen_family, dict(column_scaling or {}), federated=federated
    )
    encoding = FormulaEncoding(formula, columns, scaled)
    kind = SlopePrior(prior_family, *(None if n is None else float(n) for n in (prior_scale, prior_df)))
    prior = chosen_prior(chosen_family, scaled, kind, intercept_scale, dict(prior_scales or {}), dict(priors or {}))
    group = chosen_group_prior(parsed, chosen_family, scaled, sd_scale, sd_df, dict(sd_scales or {}), correlation_eta)
    prior = replace(prior, group=group)
    _refuse_crossed(encoding, rows)
    form = None if covariance is None else gaussian_class(covariance, len(encoding.design.names))
    model = formula_model(chosen_family, encoding, prior, form)
    return run(
        method(model),
        tables if weights is None else weighted_rows(encoding, tables, rows, each),
        schedule=schedule,
        rounds=rounds,
        tolerance=tolerance,
        seed=seed,
        progress=progress,
    )


def _refuse_crossed(encoding: FormulaEncoding, rows: Mapping[str, Rows]) -> None:
    """Raise DataError if the columns of two groups are crossed at a client, or a group is at two clients."""
    if (wrong := several_groups_problem(encoding.parsed)) is not None:
        raise StudyError(wrong[1])
    groups, at = encoding.group_design.groups, {}
    for client, own in rows.items() if groups else ():
        labels = encoding.group_design.labels(own.values)
        if (problem := nesting_problem([labels.get(group) for group in groups], groups)) is not None:
            raise DataError(f"client {client!r}: {problem}")
        smaller = () if len(groups) < 2 or encoding.parsed.groups[-1].is_within_client else labels[groups[-1]]
        for label in dict.fromkeys(smaller):
            if (other := at.setdefault(label, client)) != client:
                raise DataError(
                    f"the group {label!r} has rows at {other!r} and at {client!r}, but a group belongs to one client"
                )


def _tables(frames: Mapping[str, object]) -> dict[str, Table]:
    if not isinstance(frames, Mapping) or not frames:
        given = "an empty dict" if isinstance(frames, Mapping) else f"a {type(frames).__name__}"
        raise DataError(f'frames must be a dict of client -> data frame, such as {{"leeds": frame}}, not {given}')
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
    family: Family,
    levels: dict[str, Sequence[str]],
    missing: Missing,
) -> tuple[Column, ...]:
    """The types of the columns, from all frames together; those of the outcome first."""
    columns = []
    for position, name in enumerate(formula.columns):
        for client, table in tables.items():
            if name not in table.columns:
                hint = did_you_mean(name, table.columns)
                raise DataError(
                    f"client {client!r}: column '{name}' not found{hint}; it has {', '.join(table.columns)}"
                )
        if name in formula.group_columns and name not in (*formula.predictors, *formula.group_predictors):
            columns.append(Text(name=name, missing=missing))  # levels of groups are not agreed
            continue
        cells = [cell for table in tables.values() for cell in table.columns[name]]
        agreed = levels.pop(name, None)
        if isinstance(agreed, str):
            raise DataError(f"the levels of '{name}' are a list of texts; give [{agreed!r}, ...]")
        raw = RawColumn(name, cells, None if agreed is None else tuple(map(str, agreed)), missing)
        is_outcome = position < len(formula.outcomes)
        columns.append(_outcome_column(family, raw, position) if is_outcome else guess_predictor(raw))
    if levels:
        raise DataError(f"levels are given for '{next(iter(levels))}', which is not a column of the formula")
    return tuple(columns)


def _outcome_column(family: Family, raw: RawColumn, position: int) -> Column:
    column = family.outcome_column(raw, position)
    if column.is_numeric and raw.present and not raw.has_numbers:
        raise DataError(
            f"column '{raw.name}' holds texts, but the outcome of the family {family.name!r} is a number; for levels "
            "use the family bernoulli or categorical"
        )
    return column


def _rows(columns: tuple[Column, ...], tables: Mapping[str, Table]) -> dict[str, Rows]:
    """The rows of every client. Raises DataError."""
    found = {}
    for client, table in tables.items():
        found[client] = read_rows(columns, table, if_missing=IF_MISSING)
        try:
            refuse(found[client].findings)
        except DataError as error:
            raise DataError(f"client {client!r}: {error}") from None
    return found


def _warn_of_dropped_rows(columns: tuple[Column, ...], tables: Mapping[str, Table], rows: Mapping[str, Rows]) -> None:
    dropped = {client: len(table) - len(rows[client]) for client, table in tables.items()}
    listed = ", ".join(f"{client} {count} of {len(tables[client])}" for client, count in dropped.items() if count)
    if listed and columns[0].missing == Missing.DROP:
        warn_user(f"rows with missing values are dropped: {listed}")


def _scaling(
    formula: Formula,
    columns: tuple[Column, ...],
    tables: Mapping[str, Table],
    rows: Mapping[str, Rows],
    weights: Weights,
    family: Family,
    given: dict[str, tuple[Real, Real] | str],
    *,
    federated: bool,
) -> Scaling:
    """What is given, and the rest by sums over all clients, as in a study."""
    predictors = [column for column in columns if column.name in formula.places]
    numeric = [c.name for c in predictors if c.is_numeric and c.name not in formula.transformed]
    divides = family.divides_outcome and formula.intercept
    outcome = formula.outcomes[0] if family.scales_outcome or divides else None
    scaled = _given(given, (*numeric, *([] if outcome is None or divides else [outcome])))
    intercept = formula.intercept
    if outcome in scaled and scaled[outcome].centre != 0.0 and not intercept:
        raise DataError(f"without an intercept the outcome '{outcome}' cannot be centred; give the centre 0")
    if federated:
        rest = [name for name in numeric if name not in given]
        rest = rest if is_reversible(formula.text, columns, [*rest, *(n for n in numeric if n in scaled)]) else []
        scaled |= _by_sums(rest, rows, weights, around_zero=False)
        own = [outcome] if outcome is not None and outcome not in given else []
        without = rows if divides else without_offset(formula, tables, rows)
        scaled |= _by_sums(own, without, weights, around_zero=not intercept)
    scaled_predictors = tuple(scaled[name] for name in numeric if name in scaled)
    found = Scaling(scaled_predictors, None if outcome is None else scaled.get(outcome))
    if divides and found.outcome is not None:
        found = replace(found, outcome=over_its_mean(found.outcome), log_outcome=True)
    if not federated:
        return found
    return replace(found, design=_design(FormulaEncoding(formula.text, columns, found), tables, rows, weights))


def _given(given: Mapping[str, tuple[Real, Real] | str], allowed: Sequence[str]) -> dict[str, ScaledColumn]:
    """The columns with a given centre and scale. Raises DataError."""
    found = {}
    for name, rule in given.items():
        if name not in allowed:
            raise DataError(f"column_scaling is given for '{name}', which is not a numeric predictor of the formula")
        match rule:
            case "none":
                continue
            case (centre, scale) if scale > 0:
                found[name] = ScaledColumn(name, float(centre), float(scale))
            case (_, scale):
                raise DataError(f"the scale of '{name}' must be positive, not {scale}")
            case _:
                raise DataError(f"the scaling of '{name}' is (centre, scale) or \"none\", not {rule!r}")
    return found


def _by_sums(
    names: Sequence[str], rows: Mapping[str, Rows], weights: Weights, *, around_zero: bool
) -> dict[str, ScaledColumn]:
    """Sums around the mean of one client, which is near that of all, so that sums of squares keep their digits."""
    if not names:
        return {}
    first = next((own for own in rows.values() if len(own)), None)
    centres = {} if first is None else {name: float(np.mean(first.values[name])) for name in names}
    totals = [sums_of(names, own.values, len(own), centres, weights[name]) for name, own in rows.items() if len(own)]
    return {column.name: column for column in scaling_from(totals, centres, around_zero=around_zero)}


def _design(
    encoding: FormulaEncoding, tables: Mapping[str, Table], rows: Mapping[str, Rows], weights: Weights
) -> tuple[ScaledColumn, ...]:
    """The scaling of the columns of the formula's matrix."""
    totals = []
    for client, own in rows.items():
        try:
            totals.append(encoding.matrix_sums(own, tables[client].counted_as, weights[client]))
        except DataError as error:
            raise DataError(f"client {client!r}: {error}") from None
    return design_scaling(encoding, [own for own in totals if float(own.num_rows)])
