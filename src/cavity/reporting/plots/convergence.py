"""Convergence of a run to its fixed point, round by round, on a logarithmic scale."""

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


def convergence(
    history: Sequence[Record],
    metrics: Mapping[str, str] | None = None,
    *,
    against: str = "round",
    bar: float | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Several numbers of one run, all in nats.

    Args:
        history: `fit.history`.
        metrics: entry of a record -> its label; None shows the largest gap.
        against: the entry on the horizontal axis: "round", "communications", "bytes" or "seconds".
        bar: a target value, drawn as a line.
        axes: where to draw; None makes a figure.

    Returns:
        The figure. Numbers that are not positive (a KL of 0, or 0 up to rounding) cannot be shown on a logarithmic
        scale and are omitted.

    Example:
        >>> history = [{"round": 1, "gap": 0.5}, {"round": 2, "gap": 1e-4}]
        >>> convergence(history).axes[0].get_yscale()
        'log'
    """
    metrics = {"gap": "largest gap"} if metrics is None else metrics
    curves = {label: (_column(history, against), _column(history, entry)) for entry, label in metrics.items()}
    return _draw(curves, against, "nats", bar, axes)


def compare(
    histories: Mapping[str, Sequence[Record]],
    metric: str = "gap",
    *,
    label: str | None = None,
    against: str = "communications",
    bar: float | None = None,
    axes: Axes | None = None,
) -> Figure:
    """One number of several runs.

    Args:
        histories: label -> `fit.history`.
        metric: the entry of a record on the vertical axis.
        label: of the vertical axis; None uses the name of the entry.
        against: as in `convergence`.
        bar: as in `convergence`.
        axes: where to draw; None makes a figure.

    Returns:
        The figure; as in `convergence`.
    """
    curves = {name: (_column(history, against), _column(history, metric)) for name, history in histories.items()}
    return _draw(curves, against, metric if label is None else label, bar, axes)


def _column(history: Sequence[Record], entry: str) -> np.ndarray:
    if history and entry not in history[0]:
        raise CavityError(f"the history has no {entry!r}; it has {', '.join(history[0])}")
    return np.array([record[entry] for record in history], float)


def _draw(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]], against: str, label: str, bar: float | None, axes: Axes | None
) -> Figure:
    if not curves or not any(len(x) for x, _ in curves.values()):
        raise CavityError("there is nothing to draw: no run has a round; run rounds first")
    from matplotlib.ticker import MaxNLocator

    axes = axes_or_new(axes, 6.4, 4.2)
    axes.set_yscale("log")
    for i, (name, (x, y)) in enumerate(curves.items()):
        style = {"marker": marker(i), "markersize": 5} if len(x) <= MANY_POINTS else {}
        axes.plot(x, np.where(y > 0, y, np.nan), color=colour(i), linewidth=1.6, label=name, **style)
    if bar is not None:
        axes.axhline(bar, color=GUIDE, linewidth=1, linestyle="--", zorder=0)
        axes.annotate(
            f"{bar:g}", (1, bar), xycoords=("axes fraction", "data"), xytext=(0, 3), textcoords="offset points",
            ha="right", color="#555555", fontsize="small",
        )  # fmt: skip
    if against != "seconds":
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_xlabel({"communications": "communications (client visits)"}.get(against, against))
    axes.set_ylabel(label)
    axes.legend(frameon=False, loc="lower left")  # curves fall, so this corner is free
    return figure_of(axes)
