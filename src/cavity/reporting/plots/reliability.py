"""Reliability of a classifier: of predictions with a confidence of 80 %, are 80 % right?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from cavity.errors import CavityError
from cavity.evaluation import metrics
from cavity.reporting.plots.style import GUIDE, axes_or_new, colour, figure_of, marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def reliability(
    predictions: Mapping[str, np.ndarray],
    labels: np.ndarray,
    *,
    num_bins: int = 15,
    equal_count: bool = False,
    fewest: int = 10,
    axes: Axes | None = None,
) -> Figure:
    """Confidence against accuracy, in bins; the legend has the expected calibration error of each classifier.

    Below the diagonal a classifier is overconfident, above it underconfident.

    Args:
        predictions: label -> probabilities of the classes, shape [n, k].
        labels: true classes, shape [n].
        num_bins: of the confidence.
        equal_count: bins with equal numbers of examples, rather than of equal width.
        fewest: bins with fewer examples are not shown; the error includes them.
        axes: where to draw; None makes a figure.

    Returns:
        The figure.

    Example:
        >>> figure = reliability({"ours": np.array([[0.9, 0.1], [0.2, 0.8]])}, np.array([0, 1]), fewest=1)
        >>> figure.axes[0].get_legend().get_texts()[0].get_text()
        'ours, ECE 15.0 %'
    """
    if not predictions:
        raise CavityError("a reliability diagram needs at least one set of predictions")
    axes = axes_or_new(axes, 5.0, 5.0)
    axes.plot([0, 1], [0, 1], color=GUIDE, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for i, (label, p) in enumerate(predictions.items()):
        confidence, accuracy, count = (
            np.asarray(column) for column in metrics.reliability(p, labels, num_bins, equal_count)
        )
        error = float(metrics.expected_calibration_error(p, labels, num_bins, equal_count))
        shown = count >= fewest
        axes.plot(
            confidence[shown],
            accuracy[shown],
            color=colour(i),
            marker=marker(i),
            markersize=5,
            linewidth=1.3,
            label=f"{label}, ECE {100 * error:.1f} %",
            zorder=3,
        )
    axes.set(xlim=(0, 1.03), ylim=(0, 1.03), aspect="equal", xlabel="confidence", ylabel="accuracy")
    ticks = (0.0, 0.5, 1.0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [f"{tick:.0%}".replace("%", " %") for tick in ticks])
    axes.grid(color="#ececec", linewidth=0.8)
    axes.legend(frameon=False, loc="upper left", fontsize="small")
    return figure_of(axes)
