"""Whether the run has converged, and how good the approximation is, in words."""

from __future__ import annotations

import contextlib
import math

from cavity.errors import CavityError
from cavity.evaluation.verdict import EXACT, GOOD, ROUGH, UNUSABLE
from cavity.reporting.facts import Facts
from cavity.reporting.fit_plots import FitPlots
from cavity.reporting.page import Paragraph, Part, Section, picture

MEANING = {
    EXACT: "The posterior is exact for practical purposes.",
    GOOD: "The approximation of the posterior is good: errors of means and standard deviations are below 5 %.",
    ROUGH: "The approximation of the posterior is rough: some errors are above 5 %. Use the corrected values.",
    UNUSABLE: "The approximation of the posterior is not reliable: do not use it.",
}


def convergence(facts: Facts) -> Section:
    """The section.

    Args:
        facts: what the report is made from.
    """
    fit = facts.fit
    rounds = f"{len(fit.history)} round{'' if len(fit.history) == 1 else 's'}"
    last = fit.history[-1]["gap"]
    gap = f" The largest change that a client would still make is {last:.1e} nats." if math.isfinite(last) else ""
    parts: list[Part] = []
    if fit.converged:
        parts.append(Paragraph(f"The run converged in {rounds}.{gap}"))
    else:
        parts.append(Paragraph(f"The run has not converged after {rounds}.{gap} Run more rounds.", important=True))
        parts += [Paragraph(doubt, important=True) for doubt in fit.doubts]
    verdict = fit.verdict
    words = MEANING.get(verdict.verdict, "How good the approximation is was not assessed.")
    reasons = "; ".join(verdict.reasons)
    bad = verdict.verdict in (ROUGH, UNUSABLE)
    parts.append(Paragraph(f"{words} Details: {reasons}." if reasons else words, important=bad))
    with contextlib.suppress(CavityError, ModuleNotFoundError):  # nothing to draw, or nothing to draw with
        parts.append(picture(FitPlots(fit).convergence(), "The largest change by round, in nats"))
    return Section("Convergence and approximation", tuple(parts))
