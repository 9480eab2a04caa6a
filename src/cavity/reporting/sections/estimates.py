"""The result: every coefficient with its interval, as a ratio where people report ratios, and the forest plot."""

from __future__ import annotations

import numpy as np

from cavity.core.intervals import percent
from cavity.errors import CavityError, printable
from cavity.fit.draw_files import columns_of
from cavity.fit.fit import Fit
from cavity.fit.presentation import presentation_of
from cavity.fit.summary import Estimate, Summary
from cavity.reporting.facts import Facts, readable
from cavity.reporting.fit_plots import FitPlots
from cavity.reporting.page import Paragraph, Part, Section, picture
from cavity.reporting.tables import Table

DRAWS = 20_000
MOST_SHOWN = 300  # parameters in the report's table; networks have many thousands


DIRECTION = "probability of direction"
NOTE = (
    "The probability of direction is that of the more probable side, given the data: 0.5 if both are equally probable."
)
Sides = dict[str, tuple[float, bool]]


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
    sides = directions(fit) if len(summary) <= MOST_SHOWN else {}
    ratios = fit.algorithm.model.ratios
    if ratios is not None and ratios.names and sides:
        parts.append(_ratio_table(fit, summary.exponentiated(ratios), sides))
    if len(summary) > MOST_SHOWN:
        parts.append(Paragraph(f"The model has {len(summary):,} parameters; the first {MOST_SHOWN} are shown."))
    parts.append(_table(fit, summary, sides))
    parts += [Paragraph(f"Note: {remark}.") for remark in summary.remarks if "fit." not in remark]  # for Python
    try:
        axes = FitPlots(fit).forest(level=level)
    except CavityError:  # nothing to draw
        return Section("Result", tuple(parts))
    except ModuleNotFoundError:
        parts.append(Paragraph("Figures need matplotlib: pip install 'cavity[plots]'."))
        return Section("Result", tuple(parts))
    parts.insert(0, picture(axes, f"Posterior means and {percent(level)} intervals"))
    return Section("Result", tuple(parts))


def _ratio_table(fit: Fit, exponentials: Summary, sides: Sides) -> Table:
    rows = [
        (_name(fit, e), *ratio_cells(e.mean, e.lower, e.upper), _shown(sides[e.name], "above 1", "below 1"))
        for e in exponentials
    ]
    title = str(exponentials.ratio)
    ends = f"{percent(exponentials.level)} interval: lower", "upper"
    return Table(
        f"{title.capitalize()} per unit of a column, or against the reference level",
        ("parameter", title, *ends, DIRECTION),
        tuple(rows),
        ("The ratio is the posterior median.", NOTE),
        "ratios",
    )


def _name(fit: Fit, estimate: Estimate) -> str:
    return printable(readable(fit, estimate.name))


def ratio_cells(*values: float) -> tuple[str, ...]:
    """Ratios with as many decimals as are needed so that none is rounded to 1.

    Args:
        values: a ratio and the ends of its interval.
    """

    def written(decimals: int) -> tuple[str, ...]:
        return tuple(f"{value:.{decimals}f}" if value < 1000 else f"{value:.4g}" for value in values)

    def is_clear(cells: tuple[str, ...]) -> bool:
        return 0.0 not in map(float, cells) and 1.0 not in map(float, cells[1:])

    return written(next((decimals for decimals in range(2, 6) if is_clear(written(decimals))), 6))


def _table(fit: Fit, summary: Summary, sides: Sides) -> Table:
    rows = [
        (
            _name(fit, e),
            f"{e.mean:.4g}",
            f"{e.sd:.3g}",
            f"{e.lower:.4g}",
            f"{e.upper:.4g}",
            _shown(sides[e.name], "positive", "negative") if sides else "",
        )
        for e in summary.estimates[:MOST_SHOWN]
    ]
    ends = f"{percent(summary.level)} interval: lower", "upper"
    return Table(
        "Parameters of the model", ("parameter", "mean", "sd", *ends, DIRECTION), tuple(rows), (NOTE,), "estimates"
    )


def directions(fit: Fit) -> dict[str, tuple[float, bool]]:
    """The probability of direction of each parameter, from draws, and whether it is that of positive values.

    Args:
        fit: the fit.
    """
    found = {}
    for name, values in columns_of(presentation_of(fit).draws(DRAWS, 0)).items():
        above = float(np.mean(values > 0))
        found[name] = (max(above, 1 - above), above >= 0.5)
    return found


def _shown(direction: tuple[float, bool], above: str, below: str) -> str:
    probability, is_above = direction
    shown = "> 0.999" if probability > 0.999 else f"{probability:.3f}"
    return f"{shown} ({above if is_above else below})"
