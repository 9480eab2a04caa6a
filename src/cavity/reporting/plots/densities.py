"""Posterior densities, one below the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from cavity.errors import CavityError
from cavity.reporting.plots.style import GUIDE, axes_or_new, colour, figure_of, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID = 200
HEIGHT = 0.85  # of the distance between two parameters


def densities(draws: Mapping[str, np.ndarray], *, level: float, axes: Axes | None = None) -> Figure:
    """Smoothed draws of each parameter, with the central interval as a line below.

    Args:
        draws: parameter -> draws.
        level: the probability of the interval.
        axes: where to draw; None makes a figure.

    Returns:
        The figure. All densities have the same height.

    Example:
        >>> figure = densities({"age": np.random.default_rng(0).normal(size=500)}, level=0.95)
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['age']
    """
    if not draws:
        raise CavityError("there is nothing to draw: give at least one parameter")
    axes = axes_or_new(axes, 7.0, 1.2 + 0.42 * len(draws))
    axes.axvline(0.0, color=GUIDE, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    for row, values in enumerate(draws.values()):
        x, height = smoothed(np.asarray(values, float))
        base = np.full(len(x), float(row))
        axes.fill_between(x, base, base - HEIGHT * height, color=colour(0), alpha=0.35, linewidth=0, zorder=2)
        ends = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
        axes.plot(ends, [row, row], color=colour(0), linewidth=2.2, solid_capstyle="butt", zorder=3)
        axes.plot([np.median(values)], [row], "o", color=colour(0), markersize=4, zorder=4)
    axes.set_yticks(range(len(draws)), [plain(name) for name in draws])
    axes.set_ylim(len(draws) - 0.4, -1.05)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#ececec", linewidth=0.8)
    axes.set_xlabel("value")
    return figure_of(axes)


def smoothed(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A density by a normal kernel of Silverman's (1986) width on a grid, scaled to a largest value of 1.

    Args:
        values: draws.

    Returns:
        The grid and the heights.
    """
    low, high = np.quantile(values, [0.001, 0.999])
    spread = min(values.std(), (np.quantile(values, 0.75) - np.quantile(values, 0.25)) / 1.349) or values.std() or 1.0
    width = 0.9 * spread * len(values) ** -0.2
    edges = np.linspace(low - 3 * width, high + 3 * width, GRID + 1)
    x, counts = (edges[1:] + edges[:-1]) / 2, np.histogram(values, edges)[0].astype(float)
    kernel = np.exp(-0.5 * ((x[:, None] - x) / width) ** 2)
    height = kernel @ counts
    return x, height / height.max()
