"""What all pictures share: colours that colour-blind readers can tell apart, and plain axes.

Only matplotlib's objects are used, never `pyplot`: no global state, no display, no window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008), in an order in which neighbours also differ in lightness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
GUIDE = "#8c8c8c"


def colour(index: int) -> str:
    """The colour of the curve or the fit with this number."""
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """The marker that goes with `colour(index)`, so that a picture also reads in grey."""
    return MARKERS[index % len(MARKERS)]


def axes_or_new(axes: Axes | None, width: float, height: float) -> Axes:
    """The axes given, or those of a new figure of this size in inches; without the frame's top and right."""
    if axes is None:
        from matplotlib.figure import Figure

        axes = Figure(figsize=(width, height), layout="constrained").add_subplot()
    make_plain(axes)
    return axes


def make_plain(axes: Axes) -> None:
    """Take away the frame's top and right, and put the grid behind everything."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)


def figure_of(axes: Axes) -> Figure:
    """The figure on which these axes stand."""
    return cast("Figure", axes.figure)
