"""The forest plot: every coefficient with its interval, one mark per fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cavity.core.intervals import percent
from cavity.errors import CavityError
from cavity.fit.summary import Summary
from cavity.reporting.plots.style import GUIDE, axes_or_new, colour, figure_of, marker, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPREAD = 0.56  # of the distance between two parameters, over which the fits are spread
RATIOS = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0)
MANY_RATIOS = 10


def forest(
    summaries: Mapping[str, Summary],
    *,
    parameters: Sequence[str] | None = None,
    scale: str = "coefficient",
    ratio: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Posterior means and intervals of several fits of the same model, one below the other.

    Args:
        summaries: label -> summary of a fit, the most important first.
        parameters: which to show, from the top; None shows all.
        scale: the name of the scale, for the axis ("log odds ratio").
        ratio: if given, a second axis at the top with this name shows exp(coefficient), such as "odds ratio".
        axes: where to draw; None makes a figure.

    Returns:
        The figure, for `figure.savefig(path)`.

    Example:
        >>> from cavity.fit.summary import Estimate
        >>> summary = Summary((Estimate("age", 0.3, 0.1, 0.104, 0.496),), level=0.95)
        >>> forest({"federated": summary}).axes[0].get_xlabel()
        'coefficient, with 95 % interval'
    """
    if not summaries:
        raise CavityError("a forest plot needs at least one summary")
    levels = {summary.level for summary in summaries.values()}
    if len(levels) > 1:
        raise CavityError(f"the summaries have intervals of different levels: {', '.join(map(str, sorted(levels)))}")
    names = [estimate.name for estimate in next(iter(summaries.values()))] if parameters is None else list(parameters)
    axes = axes_or_new(axes, 7.0, 1.6 + 0.32 * len(names) * len(summaries))

    axes.axvline(0.0, color=GUIDE, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    rows = np.arange(len(names), dtype=float)
    offsets = np.linspace(-SPREAD / 2, SPREAD / 2, len(summaries)) if len(summaries) > 1 else np.zeros(1)
    for i, (label, summary) in enumerate(summaries.items()):
        estimates = [summary[name] for name in names]
        means = np.array([e.mean for e in estimates])
        reach = np.array([[e.mean - e.lower, e.upper - e.mean] for e in estimates]).T
        axes.errorbar(
            means,
            rows + offsets[i],
            xerr=reach,
            fmt=marker(i),
            color=colour(i),
            markersize=6,
            elinewidth=1.8,
            capsize=0,
            label=label,
        )
    axes.set_yticks(rows, [plain(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first parameter on top
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#ececec", linewidth=0.8)
    axes.set_xlabel(f"{scale}, with {percent(levels.pop())} interval")
    if ratio is not None:
        _ratio_axis(axes, ratio)
    if len(summaries) > 1:
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(summaries), frameon=False, handletextpad=0.3
        )
    return figure_of(axes)


def _ratio_axis(axes: Axes, name: str) -> None:
    """An axis of exp(coefficient) at the top, with round numbers."""
    low, high = np.exp(axes.get_xlim())
    shown = [ratio for ratio in RATIOS if low <= ratio <= high]
    if len(shown) > MANY_RATIOS:
        shown = [ratio for ratio in shown if np.log10(ratio).is_integer()]
    top = axes.secondary_xaxis("top")
    top.set_xticks(np.log(shown), [f"{ratio:g}" for ratio in shown])
    top.spines["top"].set_visible(False)
    top.tick_params(axis="x", length=0, colors="#555555")
    top.set_xlabel(name, color="#555555")
