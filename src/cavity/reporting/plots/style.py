"""Colours that colour-blind readers can distinguish, markers, and plain axes: the style of all figures.

Only matplotlib's objects are used, never `pyplot`: there is no global state, and no display is needed.
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
    """The colour of the curve or fit with this index."""
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """The marker for `colour(index)`, so that a figure can be read in grey too."""
    return MARKERS[index % len(MARKERS)]


def plain(name: str) -> str:
    """A name as text: matplotlib would read what is between two dollars as a formula."""
    return name.replace("$", r"\$")


def axes_or_new(axes: Axes | None, width: float, height: float) -> Axes:
    """The given axes, or those of a new figure of this size in inches; without the top and right of the frame."""
    if axes is None:
        from matplotlib.figure import Figure

        axes = Figure(figsize=(width, height), layout="constrained").add_subplot()
    make_plain(axes)
    return axes


def make_plain(axes: Axes) -> None:
    """Remove the top and right of the frame, and put the grid behind everything."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)


def figure_of(axes: Axes) -> Figure:
    """The figure of these axes."""
    return cast("Figure", axes.figure)
