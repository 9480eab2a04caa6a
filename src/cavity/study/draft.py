"""The first draft of a study file, from the columns of one site's CSV: types, and no value of the data.

Levels are values, so they are left to be filled in, unless the owner of the file says that they may be written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from cavity.errors import DataError
from cavity.study.columns import DATE_REMEDY, Boolean, Category, Column, Integer, Number, Text
from cavity.study.guessing import guess_from_text, holds_dates, seen_levels
from cavity.study.line_numbers import spelled
from cavity.study.priors import SLOPE_SCALE, intercept_scale
from cavity.study.table import Table

MOST_LEVELS = 20  # different texts; a column with more is an identifier or free text

HEAD = """\
# A study: all that the parties agree on. Everybody needs the same file; `cavity study check` tells what is still open.
# What is not given has its default. All keys are described in docs/study-file.md.

name = {name}
id = {id}  # programs keep what belongs to this study under it
clients = {clients}  # {fill_in}the names of all parties
min_rows = 10  # a client with fewer rows is refused: what it sends would nearly give them away
scaling = "federated"  # before the first round clients send n, sum and sum of squares of columns; or "none"

[model]
kind = {kind}  # logistic, linear, softmax or poisson
formula = {formula}  # R-style; `a * b` for interactions, `0 +` for no intercept
"""
NOISE = "# noise_sd = 1.0  # if it is known; without it the noise is estimated\n"
TAIL = """
[prior]  # normal; of the coefficients of scaled columns{outcome}, and fixed when the study starts
scale = {scale}  # the standard deviation for every slope{units}
intercept_scale = {intercept}  # of the value at the means of all columns

[algorithm]
method = "pvi"  # or fedgvi, with a robust loss
family = "full"  # or diagonal, for very many coefficients

[run]
schedule = "synchronous"  # sequential, asynchronous, {{ sampled-count = 2 }}, ...
rounds = 100  # at the latest
tolerance = 1e-6  # nats by which a client's data may still pull
seed = 0
"""
OUTCOME = " and a scaled outcome"
UNITS = ": 2.5 sd(outcome) / sd(column)"


def draft_study(
    table: Table, *, name: str, study_id: str, outcome: str, clients: Sequence[str] = (), with_levels: bool = False
) -> str:
    """The text of a `study.toml`.

    Args:
        table: one site's rows; its header and the types of its cells are looked at.
        name: of the study, for people.
        study_id: for programs.
        outcome: the column to be explained; all others, but for identifiers, explain it.
        clients: if they are known.
        with_levels: write the levels that this table has; they are values of its data.
    """
    if outcome not in table.columns:
        raise DataError(f"there is no column {outcome!r}; the header has {', '.join(table.columns)}")
    columns = {
        column: guess_from_text(column, cells, most_levels=MOST_LEVELS) for column, cells in table.columns.items()
    }
    if holds_dates(table.columns[outcome]):
        raise DataError(f"the outcome {outcome!r} holds dates: {DATE_REMEDY}")
    binary = len(seen_levels(table.columns[outcome])) <= 2
    kind = _kind(columns[outcome], binary=binary)
    predictors = [name for name, column in columns.items() if name != outcome and not isinstance(column, Text)]
    formula = f"{_quoted(outcome)} ~ {' + '.join(map(_quoted, predictors)) or '1'}"
    blocks = [
        HEAD.format(
            name=_text(name),
            id=_text(study_id),
            clients=_texts(clients),
            fill_in="" if clients else "FILL IN: ",
            kind=_text(kind),
            formula=_text(formula),
        )
        + (NOISE if kind == "linear" else "")
    ]
    for column_name, column in columns.items():
        levels = seen_levels(table.columns[column_name]) if with_levels else ()
        dates = holds_dates(table.columns[column_name])
        blocks.append(_block(column, levels, is_count=kind == "poisson" and column_name == outcome, dates=dates))
    linear = kind == "linear"
    tail = {"scale": SLOPE_SCALE, "intercept": intercept_scale(kind)}
    return "\n".join(blocks) + TAIL.format(**tail, outcome=OUTCOME if linear else "", units=UNITS if linear else "")


def _kind(outcome: Column, *, binary: bool) -> str:
    if isinstance(outcome, Boolean) or (isinstance(outcome, (Category, Text)) and binary):
        return "logistic"
    if isinstance(outcome, (Category, Text)):
        return "softmax"
    return "poisson" if isinstance(outcome, Integer) else "linear"


def _block(column: Column, levels: Sequence[str], *, is_count: bool, dates: bool) -> str:
    lines = [f"[columns.{spelled([column.name])}]"]
    if isinstance(column, Text):
        what = f"dates: to use them, {DATE_REMEDY}" if dates else "an identifier or free text"
        lines += [f'type = "text"  # {what}; it is not in the formula, and not read']
        return "\n".join(lines) + "\n"
    lines.append(f"type = {_text(type(column).__name__.lower())}")
    if isinstance(column, Category):
        fill_in = "" if levels else "FILL IN: "
        lines.append(f"levels = {_texts(levels)}  # {fill_in}all that any client may have, the reference first")
    if isinstance(column, (Number, Integer)):
        lines.append('# unit = "years"')
        lines.append("range = [0, inf]  # counts" if is_count else "# range = [0, 120]  # what is outside is an error")
        lines.append('# scaling = { centre = 50.0, scale = 10.0 }  # or "none", "federated"')
    if isinstance(column, Integer) and not is_count:
        lines[1] += "  # or category with its levels, if the numbers are codes"
    choices = '"drop" leaves the row out' + (', "level" makes it one' if isinstance(column, Category) else "")
    lines.append(f'missing = "refuse"  # {choices}')
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name}`"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _texts(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]"
