"""Pictures of fits, as matplotlib figures (the extra `cavity[plots]`); nothing is shown or saved on its own."""

from cavity.plots.bands import bands
from cavity.plots.calibration import calibration
from cavity.plots.convergence import compare, convergence
from cavity.plots.forest import forest
from cavity.plots.maps import maps, territories
from cavity.plots.reliability import reliability
from cavity.plots.robust import boundaries, choice, curves
from cavity.plots.spread import spread

__all__ = [
    "bands",
    "boundaries",
    "calibration",
    "choice",
    "compare",
    "convergence",
    "curves",
    "forest",
    "maps",
    "reliability",
    "spread",
    "territories",
]
