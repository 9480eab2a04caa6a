"""What the report of a study says about the study."""

from __future__ import annotations

from collections.abc import Mapping

from cavity.core.intervals import DEFAULT_LEVEL
from cavity.fit.fit import Fit
from cavity.reporting.facts import ClientRows, Facts
from cavity.study.building import usable_rows
from cavity.study.disclosure import disclosures
from cavity.study.models import describe
from cavity.study.schema import Study
from cavity.study.table import Table


def study_facts(
    study: Study,
    fit: Fit,
    level: float = DEFAULT_LEVEL,
    tables: Mapping[str, Table] | None = None,
    rows: Mapping[str, int] | None = None,
) -> Facts:
    """The facts of a study's report.

    Args:
        study: what was agreed.
        fit: its result.
        level: the probability that each interval has.
        tables: of all clients, where they are in this process; None for a study over a network.
        rows: the numbers of rows that clients on a network have sent.
    """
    return Facts(
        fit,
        level,
        title=study.name,
        model=describe(study.model),
        study_hash=study.hash,
        rows=rows_of(study, tables or {}) | {name: ClientRows(number) for name, number in (rows or {}).items()},
        over_network=tables is None,
        contents=tuple(f"{each}." for each in disclosures(study)),
    )


def rows_of(study: Study, tables: Mapping[str, Table]) -> dict[str, ClientRows]:
    """The rows that are used and dropped, by client.

    Args:
        study: what was agreed.
        tables: by client.
    """
    used = {name: len(usable_rows(study, table)) for name, table in tables.items()}
    return {name: ClientRows(used[name], len(table) - used[name]) for name, table in tables.items()}
