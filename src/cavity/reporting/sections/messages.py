"""What was sent: how many messages, how many bytes, and what is in them."""

from __future__ import annotations

from cavity.reporting.facts import Facts, Sent
from cavity.reporting.page import Paragraph, Part, Section
from cavity.reporting.tables import Table


def messages(facts: Facts) -> Section:
    """The section.

    Args:
        facts: what the report is made from.
    """
    last = facts.fit.history[-1]
    sent = facts.sent or (Sent("updates of factors, all clients", last["communications"], last["bytes"]),)
    rows = [(each.what, f"{each.count:,}", f"{each.num_bytes:,}") for each in sent]
    parts: list[Part] = [Table("", ("messages", "number", "bytes"), tuple(rows), name="messages")]
    parts += [Paragraph(f"A client sends {text}") for text in facts.contents]
    parts.append(
        Paragraph(
            "Rows do not leave a client. A factor is a summary of rows, and of few rows it can reveal much: see "
            "'What a factor reveals' in the documentation."
        )
    )
    return Section("What was sent", tuple(parts))
