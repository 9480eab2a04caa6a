"""The result: every coefficient with its interval, as a ratio where people report ratios, and the forest plot."""

from __future__ import annotations

import math

from cavity.core.intervals import percent
from cavity.errors import CavityError, printable
from cavity.fit.summary import Estimate, Summary
from cavity.reporting.facts import Facts
from cavity.reporting.fit_plots import FitPlots
from cavity.reporting.page import Paragraph, Part, Section, picture
from cavity.reporting.tables import Table

MOST_SHOWN = 300  # parameters in the report's table; networks have many thousands


def estimates(facts: Facts) -> Section:
    """The section.

    Args:
        facts: what the report is made from.
    """
    fit, level = facts.fit, facts.level
    try:
        summary = fit.summary(level)
    except CavityError as error:
        return Section("Result", (Paragraph(str(error), important=True),))
    parts: list[Part] = []
    ratios = fit.algorithm.model.ratios
    if ratios is not None and ratios.names:
        parts.append(_ratio_table(summary, summary.exponentiated(ratios)))
    if len(summary) > MOST_SHOWN:
        parts.append(Paragraph(f"The model has {len(summary):,} parameters; the first {MOST_SHOWN} are shown."))
    parts.append(_table(summary))
    parts += [Paragraph(remark) for remark in summary.remarks]
    try:
        axes = FitPlots(fit).forest(level=level)
    except CavityError:  # nothing to draw
        return Section("Result", tuple(parts))
    except ModuleNotFoundError:
        parts.append(Paragraph("Figures need matplotlib: pip install 'cavity[plots]'."))
        return Section("Result", tuple(parts))
    parts.insert(0, picture(axes, f"Posterior means and {percent(level)} intervals"))
    return Section("Result", tuple(parts))


def _ratio_table(summary: Summary, exponentials: Summary) -> Table:
    rows = [
        (printable(e.name), f"{e.mean:.3g}", f"{e.lower:.3g} to {e.upper:.3g}", direction(summary[e.name], ">1", "<1"))
        for e in exponentials
    ]
    title, interval = str(exponentials.ratio), f"{percent(summary.level)} interval"
    notes = ("P is the posterior probability that the ratio is above 1, or below 1, whichever is larger.",)
    return Table(
        f"{title.capitalize()} per unit of a column, or against the reference level",
        ("parameter", title, interval, "P"),
        tuple(rows),
        notes,
        "ratios",
    )


def _table(summary: Summary) -> Table:
    rows = [
        (printable(e.name), f"{e.mean:.4g}", f"{e.sd:.3g}", f"{e.lower:.4g}", f"{e.upper:.4g}", direction(e))
        for e in summary.estimates[:MOST_SHOWN]
    ]
    notes = ("P is the posterior probability of a positive, or a negative, value, whichever is larger.",)
    ends = f"{percent(summary.level)} interval: lower", "upper"
    return Table("Parameters of the model", ("parameter", "mean", "sd", *ends, "P"), tuple(rows), notes, "estimates")


def direction(estimate: Estimate, above: str = ">0", below: str = "<0") -> str:
    """The probability of direction as text: that of a normal with this mean and sd; none for positive parameters.

    Args:
        estimate: of a coefficient.
        above: the name of positive values.
        below: the name of negative values.
    """
    if not estimate.sd > 0 or (estimate.lower > 0 and estimate.mean - 4 * estimate.sd < 0):
        return ""  # a parameter that cannot be negative, such as a standard deviation
    probability = 0.5 * math.erfc(-abs(estimate.mean) / estimate.sd / math.sqrt(2))
    shown = "> 0.999" if probability > 0.999 else f"{probability:.3f}"
    return f"{shown} ({above if estimate.mean > 0 else below})"
