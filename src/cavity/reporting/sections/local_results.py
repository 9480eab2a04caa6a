"""A client's own results, in its own copy of the report only: the effects of its groups."""

from __future__ import annotations

from cavity.errors import CavityError, printable
from cavity.fit.summary import Summary
from cavity.reporting.facts import Facts
from cavity.reporting.page import Section
from cavity.reporting.tables import Table

MOST_SHOWN = 500


def local_results(facts: Facts) -> Section | None:
    """The section; None in the report for all.

    Args:
        facts: what the report is made from.
    """
    if not facts.client:
        return None
    try:
        return effects(facts.client, facts.fit.local(facts.client).summary(facts.level))
    except CavityError:
        return None  # the model has no local parameters, or the data are elsewhere


def effects(client: str, summary: Summary) -> Section:
    """The effects of a client's groups.

    Args:
        client: whose they are.
        summary: of the effects.
    """
    rows = [
        (printable(e.name), f"{e.mean:.4g}", f"{e.sd:.3g}", f"{e.lower:.4g}", f"{e.upper:.4g}")
        for e in summary.estimates[:MOST_SHOWN]
    ]
    more = [f"The first {MOST_SHOWN} of {len(summary):,} effects are shown."] if len(summary) > MOST_SHOWN else []
    notes = ("These values are in your copy of the report only; they were not sent.", *more)
    table = Table("", ("effect", "mean", "sd", "lower", "upper"), tuple(rows), notes, "local")
    return Section(f"Effects at {client}", (table,))
