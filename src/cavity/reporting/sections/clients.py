"""What each client contributes: how far the result moves without it, and whether it differs from the others."""

from __future__ import annotations

import numpy as np

from cavity.errors import CavityError, printable
from cavity.fit.heterogeneity import Heterogeneity
from cavity.reporting.facts import Facts
from cavity.reporting.fit_plots import FitPlots
from cavity.reporting.page import Paragraph, Part, Section, picture
from cavity.reporting.tables import Table

TITLE = "Contributions of the clients"


def clients(facts: Facts) -> Section | None:
    """The section.

    Args:
        facts: what the report is made from.
    """
    fit = facts.fit
    if len(fit.client_names) < 2:
        return None
    try:
        found = fit.heterogeneity()
    except CavityError as error:
        return Section(TITLE, (Paragraph(f"Not computed: {error}."),))
    sd = dict(zip(fit.algorithm.model.parameter_names, np.sqrt(np.diag(fit.reported.covariance)), strict=True))
    parts: list[Part] = [_table(found, sd)]
    if found.flagged:
        names = ", ".join(map(printable, found.flagged))
        parts.insert(0, Paragraph(f"Differs from the others by more than chance: {names}.", important=True))
    try:
        axes = FitPlots(fit).clients()
    except (CavityError, ModuleNotFoundError):
        return Section(TITLE, tuple(parts))
    parts.append(picture(axes, "Shift of each coefficient by a client, in posterior standard deviations"))
    return Section(TITLE, tuple(parts))


def _table(found: Heterogeneity, sd: dict[str, float]) -> Table:
    rows = []
    for client in found:
        moved = max(client.shift, key=lambda name: abs(client.shift[name]) / sd[name])
        rows.append(
            (
                printable(client.name),
                printable(moved),
                f"{client.shift[moved] / sd[moved]:+.2f}",
                printable(client.strongest),
                f"{client.z[client.strongest]:+.2f}",
                f"{client.p_value:.2g}",
                "differs" if client.flagged else "none",
            )
        )
    columns = ("client", "moves most", "by (posterior sd)", "differs most in", "z", "p", "flag")
    notes = (
        "The shift is the result with the client less that without it, where the other factors stay as they are.",
        f"z is the shift over what chance gives if all clients agree. p is the probability of a larger |z| of any "
        f"coefficient; below {found.alpha:g} a client is flagged.",
    )
    return Table("", columns, tuple(rows), notes, "contributions")
