"""Calibration of predicted risks: of those with a predicted risk of 30 %, do 30 % have the outcome?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from cavity.core.intervals import DEFAULT_LEVEL, half_width
from cavity.errors import CavityError
from cavity.evaluation import metrics
from cavity.reporting.plots.style import GUIDE, axes_or_new, colour, figure_of, marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def calibration(
    risks: Mapping[str, np.ndarray],
    outcomes: np.ndarray,
    *,
    num_bins: int = 5,
    rings: str | None = None,
    level: float = DEFAULT_LEVEL,
    x_label: str = "predicted risk",
    y_label: str = "observed share",
    axes: Axes | None = None,
) -> Figure:
    """Predicted risk against observed share, in groups of equal size, with intervals of the share.

    On the diagonal, predicted risks are right; above it they are too low, below it too high.

    Args:
        risks: label -> predicted probability of the outcome, shape [n].
        outcomes: 1 for those who have it, else 0; shape [n].
        num_bins: groups, from the lowest risks to the highest.
        rings: a label to be drawn as rings without intervals, for one that should coincide with another.
        level: the probability that each interval has.
        x_label: of the horizontal axis.
        y_label: of the vertical axis.
        axes: where to draw; None makes a figure.

    Returns:
        The figure.

    Example:
        >>> figure = calibration({"ours": np.array([0.1, 0.2, 0.7, 0.9])}, np.array([0, 0, 1, 1]), num_bins=2)
        >>> figure.axes[0].get_ylabel()
        'observed share'
    """
    if not risks:
        raise CavityError("a calibration plot needs at least one set of predicted risks")
    if rings is not None and rings not in risks:
        raise CavityError(f"no {rings!r} to draw as rings; choose one of: {', '.join(risks)}")
    axes = axes_or_new(axes, 4.4, 4.4)
    axes.plot([0, 1], [0, 1], color=GUIDE, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for i, (label, risk) in enumerate(risks.items()):
        predicted, observed, count = (
            np.asarray(column) for column in metrics.reliability(risk, outcomes, num_bins, True, of_class=1)
        )
        if label == rings:
            style = {"marker": "o", "markersize": 10, "fillstyle": "none", "markeredgewidth": 1.4}
            axes.plot(predicted, observed, linestyle="none", color=colour(i), label=label, zorder=4, **style)
            continue
        lower, upper = share_interval(observed, count, level)
        axes.vlines(predicted, lower, upper, color=colour(i), linewidth=1.8, alpha=0.5, zorder=2)
        axes.plot(
            predicted, observed, color=colour(i), marker=marker(i), markersize=5, linewidth=1.3, label=label, zorder=3
        )
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal", xlabel=x_label, ylabel=y_label)
    ticks = (0.0, 0.5, 1.0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [f"{tick:.0%}".replace("%", " %") for tick in ticks])
    axes.grid(color="#ececec", linewidth=0.8)
    return figure_of(axes)


def share_interval(share: np.ndarray, count: np.ndarray, level: float = DEFAULT_LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's (1927) interval of a binomial share, which stays within [0, 1] also for a share of 0 or 1.

    With z the (1 + level) / 2 quantile of the standard normal and n the count,

        (share + z^2 / 2n  +-  z sqrt(share (1 - share) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    Args:
        share: the observed shares.
        count: the number of examples behind each.
        level: the probability that each interval has.

    Returns:
        The lower and the upper ends.

    Example:
        >>> lower, upper = share_interval(np.array([0.0]), np.array([20]))
        >>> round(lower.item(), 3), round(upper.item(), 3)
        (0.0, 0.161)
    """
    z, n = half_width(level), np.asarray(count, float)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return np.clip(centre - reach, 0, 1), np.clip(centre + reach, 0, 1)
