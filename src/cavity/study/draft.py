"""The first draft of a study file, from the columns of one site's CSV file: types, and no values of the data.

Levels are values, so they are left to be filled in, unless the owner of the file allows them to be written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from cavity.errors import DataError
from cavity.study.columns import DATE_REMEDY, Category, Column, Integer, Text
from cavity.study.families import Family, families, family_class
from cavity.study.guessing import guess_from_text, holds_dates, left_out, seen_levels, unknown_codes
from cavity.study.line_numbers import spelled
from cavity.study.spelling import did_you_mean
from cavity.study.table import Table

MOST_LEVELS = 20  # different texts; a column with more is an identifier or free text

HEAD = """\
# A study: everything that the sites agree on. All sites need the same file. `cavity study check` lists what is missing.
# Keys that are left out have their defaults. docs/study-file.md describes all keys.

name = {name}
id = {id}  # for programs: a site stores its state under this name
clients = {clients}  # {fill_in}the names of all sites
min_rows = 10  # a client with fewer rows is refused: what it sends would nearly reveal them
scaling = "federated"  # before the first round clients send n, sum and sum of squares of columns; or "none"

[model]
family = {family}  # {families}
formula = {formula}  # R-style; `a * b` for interactions, `0 +` for no intercept, `offset(log(time))`
# weights = "copies"  # the column with the weight of each row
# client_effects = "random"  # each client has a level of its own; or "intercepts". Without it all have the same
"""
TAIL = """
[prior]  # normal, on the coefficients of scaled columns{outcome}; fixed when the study starts
scale = {scale}  # the standard deviation for every slope{units}
intercept_scale = {intercept}  # of the value at the means of all columns
# family = "student-t"  # of the priors of slopes; or "laplace", "horseshoe". A table [priors.age] is for one of them

[algorithm]
method = "pvi"  # or fedgvi, with a robust loss
covariance = "full"  # of the posterior; or diagonal, for very many coefficients

[run]
schedule = "synchronous"  # sequential, asynchronous, {{ sampled-count = 2 }}, ...
rounds = 30  # at most; most studies need 3 to 10, and every round is one more message of each client
tolerance = 1e-6  # convergence tolerance, in nats
seed = 0  # random seed
"""
OUTCOME = " and of a scaled outcome"
UNITS = ": 2.5 sd(outcome) / sd(column)"


def draft_study(
    table: Table,
    *,
    name: str,
    study_id: str,
    outcome: str,
    family: str | None = None,
    clients: Sequence[str] = (),
    with_levels: bool = False,
) -> str:
    """The text of a `study.toml`.

    Args:
        table: one site's rows; only its header and the types of its cells are used.
        name: of the study, for people.
        study_id: for programs.
        outcome: the column to be explained. All others explain it, except identifiers, dates and constants.
        family: of the outcome; None chooses by its type where that is safe.
        clients: if they are known.
        with_levels: write the levels that this table has; they are values of its data.

    Returns:
        The text, with comments.

    Raises:
        DataError: the outcome is not a column, holds dates, or does not show its family.
    """
    if outcome not in table.columns:
        hint = did_you_mean(outcome, table.columns)
        raise DataError(f"column {outcome!r} not found{hint}; the header has {', '.join(table.columns)}")
    columns = guess_columns(table)
    if holds_dates(table.columns[outcome]):
        raise DataError(f"the outcome {outcome!r} holds dates: {DATE_REMEDY}")
    codes = unknown_codes(table.columns[outcome])
    num_levels = len(_levels(table, outcome, codes))
    chosen = _family(columns[outcome], num_levels) if family is None else family_class(family)
    columns[outcome] = replace(chosen.draft_column(columns[outcome]), missing_codes=codes)
    skipped = columns_left_out(table, outcome)
    predictors = [name for name in columns if name != outcome and name not in skipped]
    formula = f"{chosen.draft_left(_quoted(outcome))} ~ {' + '.join(map(_quoted, predictors)) or '1'}"
    blocks = [
        HEAD.format(
            name=_text(name),
            id=_text(study_id),
            clients=_texts(clients),
            fill_in="" if clients else "FILL IN: ",
            family=_text(chosen.name),
            families=", ".join(other.name for other in families()),
            formula=_text(formula),
        )
        + chosen.draft_model
    ]
    for column_name, column in columns.items():
        levels = _levels(table, column_name, column.missing_codes) if with_levels else ()
        outcome_range = chosen.draft_range if column_name == outcome else None
        blocks.append(_block(column, levels, outcome_range, skipped.get(column_name)))
    scaled = chosen.scales_outcome
    return "\n".join(blocks) + TAIL.format(
        scale=chosen.slope_scale,
        intercept=chosen.intercept_scale,
        outcome=OUTCOME if scaled else "",
        units=UNITS if scaled else "",
    )


def guess_columns(table: Table) -> dict[str, Column]:
    """The type of every column, from its cells."""
    return {name: guess_from_text(name, cells, most_levels=MOST_LEVELS) for name, cells in table.columns.items()}


def columns_left_out(table: Table, outcome: str) -> dict[str, str]:
    """The columns that are not in the formula of a draft, each with the reason.

    Args:
        table: one site's rows.
        outcome: which is in the formula.
    """
    found = {}
    for name, column in guess_columns(table).items():
        reason = None if name == outcome else left_out(name, column, table.columns[name])
        if reason is not None:
            found[name] = reason
    return found


def _levels(table: Table, name: str, codes: Sequence[str]) -> tuple[str, ...]:
    """The levels of a column, without codes for missing values."""
    return tuple(level for level in seen_levels(table.columns[name]) if level.strip() not in codes)


def _family(outcome: Column, num_levels: int) -> type[Family]:
    for family in families():
        if family.recognises(outcome, num_levels):
            return family
    what, remedy = "does not show its family", "choose one with --family"
    match outcome:
        case Text():
            what, remedy = "has many different texts, like an identifier", "choose another outcome"
        case Category():
            what, remedy = "has one value only", "choose another outcome"
        case Integer():
            what = "holds whole numbers, which may be counts, ordered levels, codes or measurements"
            remedy = (
                "choose with --family: poisson or negative-binomial for counts, ordinal for few ordered levels, "
                "bernoulli or categorical for codes, gaussian for measurements"
            )
    raise DataError(f"column {outcome.name!r} {what}; {remedy}")


def _block(column: Column, levels: Sequence[str], outcome_range: str | None, skipped: str | None) -> str:
    kind = "text" if skipped is not None and column.level_names else column.type_name  # its levels need not be listed
    lines = [f"[columns.{spelled([column.name])}]", f"type = {_text(kind)}"]
    if skipped is not None:
        what = f"dates: to use them, {DATE_REMEDY}" if skipped == "dates" else skipped
        lines[1] += f"  # {what}; not in the formula, and ignored"
        return "\n".join(lines) + "\n"
    choices = '"drop" drops the row'
    match column:
        case Category():
            fill_in = "" if levels else "FILL IN: "
            lines.append(f"levels = {_texts(levels)}  # {fill_in}all that any client may have, the reference first")
            choices += ', "level" makes it a level'
        case Integer() if outcome_range is None:
            lines[1] += "  # or category with its levels, if the numbers are codes"
    if column.is_numeric:
        lines.append('# unit = "years"')
        lines.append(outcome_range or "# range = [0, 120]  # values outside are errors")
        lines.append('# scaling = { centre = 50.0, scale = 10.0 }  # or "none", "federated"')
    if column.missing_codes:
        lines.append(f"missing_codes = {_texts(column.missing_codes)}  # cells that mean a missing value")
    lines.append(f'missing = "refuse"  # {choices}')
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name}`"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _texts(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]"
