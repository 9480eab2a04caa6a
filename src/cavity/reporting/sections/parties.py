"""The question and the parties: the model, the study, clients with their rows, and versions."""

from __future__ import annotations

from cavity.reporting.facts import ClientRows, Facts, shown_count, shown_total
from cavity.reporting.page import Paragraph, Part, Section
from cavity.reporting.tables import Table


def parties(facts: Facts) -> Section:
    """The section.

    Args:
        facts: what the report is made from.
    """
    parts: list[Part] = []
    if facts.model and facts.model != facts.title:
        parts.append(Paragraph(f"Model: {facts.model}."))
    if facts.study_hash:
        confirmed = "; all clients confirmed the same one" if facts.over_network else ""
        parts.append(Paragraph(f"Study file: SHA-256 {facts.study_hash}{confirmed}."))
    parts.append(_clients(facts))
    software = ", ".join(f"{name} {version}" for name, version in facts.versions.items() if name != "machine")
    parts.append(Paragraph(f"Computed with {software}."))
    return Section("Question and parties", tuple(parts))


def _clients(facts: Facts) -> Table:
    names = facts.fit.client_names
    rows = [facts.rows.get(name, ClientRows()) for name in names]
    shown = [(name, shown_count(own.used), shown_count(own.dropped)) for name, own in zip(names, rows, strict=True)]
    if len(names) > 1:
        totals = shown_total([own.used for own in rows]), shown_total([own.dropped for own in rows])
        shown.append(("all clients", *totals))
    header = ("client", "rows used", "rows dropped (missing values)")
    if all(own.dropped is None for own in rows):
        header, shown = header[:2], [row[:2] for row in shown]
    notes = ()
    if any("fewer" in cell or cell == "not shown" for row in shown for cell in row[1:]):
        notes = ("Small counts, and totals that would reveal them, are not shown.",)
    return Table("", header, tuple(shown), notes, "clients")
