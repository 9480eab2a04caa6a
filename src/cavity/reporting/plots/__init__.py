"""Figures of fits, made with matplotlib (the extra `cavity[plots]`); nothing is shown or saved automatically."""

from cavity.reporting.plots.bands import bands
from cavity.reporting.plots.bundle import spread
from cavity.reporting.plots.calibration import calibration
from cavity.reporting.plots.clients import clients
from cavity.reporting.plots.convergence import compare, convergence
from cavity.reporting.plots.densities import densities
from cavity.reporting.plots.forest import forest
from cavity.reporting.plots.maps import maps, territories
from cavity.reporting.plots.reliability import reliability
from cavity.reporting.plots.robust import boundaries, choice, curves

__all__ = [
    "bands",
    "boundaries",
    "calibration",
    "choice",
    "clients",
    "compare",
    "convergence",
    "curves",
    "densities",
    "forest",
    "maps",
    "reliability",
    "spread",
    "territories",
]
