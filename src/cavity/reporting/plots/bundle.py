"""A metric of several methods against its cost, with its spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cavity.errors import CavityError
from cavity.reporting.plots.style import GUIDE, axes_or_new, colour, figure_of, marker
from cavity.training import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY_POINTS = 40  # with more, a marker on each would hide the line


def spread(
    runs: Mapping[str, Sequence[Sequence[Record]]],
    metric: str,
    *,
    against: str = "communications",
    label: str | None = None,
    reference: float | None = None,
    axes: Axes | None = None,
) -> Figure:
    """The mean over seeds as a line, one standard deviation to either side as a band.

    Args:
        runs: method -> one history for each seed.
        metric: the entry of a record on the vertical axis.
        against: the entry on the horizontal axis, on a logarithmic scale; its mean over seeds where they differ.
        label: of the vertical axis; None uses the name of the entry.
        reference: a target value, drawn as a line.
        axes: where to draw; None makes a figure.

    Returns:
        The figure. Histories of a method are cut to the shortest.

    Example:
        >>> history = [{"communications": 10, "error": 0.2}, {"communications": 20, "error": 0.1}]
        >>> [line.get_label() for line in spread({"PVI": [history]}, "error").axes[0].lines]
        ['PVI']
    """
    axes = axes_or_new(axes, 5.2, 3.8)
    axes.set_xscale("log")
    if not runs:
        raise CavityError("there is nothing to draw: no method has a run; give at least one")
    for i, (name, histories) in enumerate(runs.items()):
        length = min((len(history) for history in histories), default=0)
        if length == 0:
            raise CavityError(f"there is nothing to draw of {name!r}: it has no round; run it first")
        x, y = (np.array([[record[entry] for record in history[:length]] for history in histories], float)
                for entry in (against, metric))  # fmt: skip
        across, middle, sd = x.mean(axis=0), y.mean(axis=0), y.std(axis=0)
        style = {"marker": marker(i), "markersize": 5} if length <= MANY_POINTS else {}
        axes.plot(across, middle, color=colour(i), linewidth=1.5, label=name, **style)
        if len(histories) > 1:
            axes.fill_between(across, middle - sd, middle + sd, color=colour(i), alpha=0.15, linewidth=0)
    if reference is not None:
        axes.axhline(reference, color=GUIDE, linewidth=1, linestyle="--", zorder=0)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_xlabel({"communications": "communications (client visits)"}.get(against, against.replace("_", " ")))
    axes.set_ylabel(metric.replace("_", " ") if label is None else label)
    return figure_of(axes)
