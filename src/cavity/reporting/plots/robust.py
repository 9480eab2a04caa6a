"""Figures on robustness: the choice of a parameter, the influence of a row, decision boundaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from jax.typing import ArrayLike

from cavity.reporting.plots.style import GUIDE, axes_or_new, colour, figure_of, marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cavity.evaluation.selection import Choice


def choice(found: Choice, *, label: str = "value", axes: Axes | None = None) -> Figure:
    """The held-out loss of each value above the lowest, with the standard error of the difference.

    Args:
        found: the result of `cavity.choose`.
        label: of the horizontal axis.
        axes: where to draw; None makes a figure.

    Returns:
        The figure.
    """
    axes = axes_or_new(axes, 5.6, 3.8)
    above = found.scores - found.scores.min()
    places = np.arange(len(found.values))
    axes.errorbar(places, above, yerr=found.standard_errors, color=colour(0), marker="o", capsize=3)
    axes.set_xticks(places, [f"{value:g}" if isinstance(value, float) else str(value) for value in found.values])
    axes.axhline(0, color=GUIDE, linewidth=1, linestyle="--", zorder=0)
    where = found.values.index(found.chosen)
    axes.plot(where, above[where], marker="o", markersize=11, color=colour(1), fillstyle="none", linestyle="none")
    axes.set_xlabel(label)
    axes.set_ylabel("held-out loss per row, above the lowest")
    return figure_of(axes)


def curves(
    x: np.ndarray,
    by_name: Mapping[str, np.ndarray],
    *,
    x_label: str,
    y_label: str,
    x_log: bool = False,
    y_log: bool = False,
    markers: bool = True,
    axes: Axes | None = None,
) -> Figure:
    """Several functions of one number, such as the influence of a row by its position.

    Args:
        x: the positions, which may include zero also with `x_log`.
        by_name: label -> values at x.
        x_label: of the horizontal axis.
        y_label: of the vertical axis.
        x_log: logarithmic in x, linear around 0.
        y_log: logarithmic in y.
        markers: whether to mark the points.
        axes: where to draw; None makes a figure.

    Returns:
        The figure.
    """
    axes = axes_or_new(axes, 6.4, 4.2)
    if x_log:
        axes.set_xscale("symlog", linthresh=1.0)
    if y_log:
        axes.set_yscale("log")
    for i, (name, y) in enumerate(by_name.items()):
        axes.plot(x, y, color=colour(i), marker=marker(i) if markers else None, markersize=4, linewidth=1.6, label=name)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend(frameon=False)
    return figure_of(axes)


def boundaries(
    x: np.ndarray,
    y: np.ndarray,
    outliers: np.ndarray,
    predictions: Mapping[str, Callable[[np.ndarray], ArrayLike]],
    *,
    levels: tuple[float, ...] = (0.2, 0.5, 0.8),
) -> Figure:
    """Contours of the predicted probability of each fit, in adjacent panels, with two-dimensional rows of two classes.

    Args:
        x: rows [n, 2].
        y: classes 0 and 1.
        outliers: which rows are contaminated.
        predictions: label -> function of rows [m, 2] to probabilities of class 1.
        levels: of the contours.

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(predictions), 3.6), layout="constrained")
    panels = figure.subplots(1, len(predictions), sharex=True, sharey=True, squeeze=False)[0]
    low, high = x.min(0) - 1.0, x.max(0) + 1.0
    grid = np.stack(np.meshgrid(*[np.linspace(a, b, 80) for a, b in zip(low, high, strict=True)]), -1)
    for axes, (name, predict) in zip(panels, predictions.items(), strict=True):
        axes = axes_or_new(axes, 3.6, 3.6)
        probability = np.asarray(predict(grid.reshape(-1, 2))).reshape(grid.shape[:2])
        lines = axes.contour(grid[..., 0], grid[..., 1], probability, levels, colors="black", linewidths=1)
        axes.clabel(lines, fontsize=7)
        for label in (0, 1):
            inlier = (y == label) & ~outliers
            axes.scatter(*x[inlier].T, s=10, color=colour(label), label=f"class {label}")
        axes.scatter(*x[outliers].T, s=22, color=colour(3), marker="X", label="outlier")
        axes.set_title(name, fontsize="medium")
    panels[0].legend(frameon=False, fontsize="small")
    return figure
