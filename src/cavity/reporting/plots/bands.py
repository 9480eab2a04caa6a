"""A function of one number: its predictive mean and bands, the rows of each client, and the inducing inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cavity.errors import CavityError
from cavity.reporting.plots.style import GUIDE, colour, make_plain, marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHADES = ("#cfd8e3", "#a9bace", "#8299b4")  # bands, from the widest
MEAN = "#1b2a41"
MANY_CLIENTS = 8  # with more, the legend does not name them
GAP = 0.02  # of the width, between neighbours in one lane

Pair = tuple[np.ndarray, np.ndarray]


def bands(
    x: np.ndarray,
    predictions: Mapping[str, Pair],
    clients: Mapping[str, Pair],
    *,
    probabilities: Sequence[float] = (0.025, 0.25, 0.75, 0.975),
    inducing: Mapping[str, Pair] | None = None,
    truth: np.ndarray | None = None,
    x_label: str = "x",
    y_label: str = "y",
) -> Figure:
    """Predictions of one or several methods in adjacent panels, over the same rows and on the same axes.

    Inducing inputs are below each panel: a dot at the mean and a line of one standard deviation to either side. Lines
    that would overlap are in different lanes.

    Args:
        x: where predictions are made, ascending [m].
        predictions: method -> the predictive mean [m] and its quantiles [len(probabilities), m].
        clients: name -> inputs [n_k] and targets [n_k] of its rows, each with a colour and a marker.
        probabilities: of the quantiles, ascending, and symmetric around one half.
        inducing: method -> means [M] and standard deviations [M] of the inducing inputs; those outside the axis are
            counted at its end.
        truth: the true function [m], if it is known.
        x_label: of the horizontal axis.
        y_label: of the vertical axis.

    Returns:
        The figure: a panel for each method, and with `inducing` a strip under each, after all the panels.

    Example:
        >>> x = np.linspace(0, 1, 5)
        >>> figure = bands(x, {"PVI": (x, np.stack([x - 1, x + 1]))}, {"a": (x, x)}, probabilities=(0.05, 0.95))
        >>> figure.axes[0].get_title()
        'PVI'
    """
    from matplotlib.figure import Figure

    shares = _shares(probabilities)
    _check(x, predictions, len(probabilities), inducing)
    ratios = [1.0] if inducing is None else [5.0, 1.0]
    num = len(predictions)
    figure = Figure(figsize=(5.2 * num + (1.2 if num == 1 else 0.4), 3.6 + 0.8 * len(ratios)), layout="constrained")
    panels = figure.subplots(
        len(ratios), num, sharex=True, sharey="row", squeeze=False, gridspec_kw={"height_ratios": ratios}
    )
    for axes, (method, (mean, quantiles)) in zip(panels[0], predictions.items(), strict=True):
        make_plain(axes)
        for i, share in enumerate(shares):
            axes.fill_between(x, quantiles[i], quantiles[-1 - i], color=SHADES[i], linewidth=0, label=f"{share:.3g} %")
        if truth is not None:
            axes.plot(x, truth, color="black", linewidth=1.2, linestyle=(0, (4, 2)), label="true function")
        axes.plot(x, mean, color=MEAN, linewidth=1.8, label="mean")
        _rows(axes, clients)
        axes.set_title(method, fontsize="medium")
        axes.set_xlim(np.min(x) - GAP * np.ptp(x), np.max(x) + GAP * np.ptp(x))
    panels[0][0].set_ylabel(y_label)
    for axes in panels[-1]:
        axes.set_xlabel(x_label)
    if inducing is not None:
        lanes = [_strip(axes, *inducing[method]) for axes, method in zip(panels[1], predictions, strict=True)]
        panels[1][0].set_ylim(max(*lanes, 3) + 0.8, -0.8)  # the strips share it
        panels[1][0].set_ylabel("inducing\ninputs", fontsize="small", color="#555555")
    handles, names = panels[0][0].get_legend_handles_labels()
    if len(clients) > MANY_CLIENTS:
        kept = [i for i, name in enumerate(names) if name not in clients]
        handles, names = [handles[i] for i in kept], [names[i] for i in kept]
    num_lines = -(-len(names) // (5 * num))
    figure.legend(handles, names, loc="outside lower center", ncols=-(-len(names) // num_lines), frameon=False)
    return figure


def _shares(probabilities: Sequence[float]) -> list[float]:
    """The probability of each band in percent, from the widest."""
    given = np.array(probabilities)
    lower = given[: len(given) // 2]
    ascending = np.all(np.diff(given) > 0) and lower.size > 0 and given[0] > 0
    if len(given) % 2 or not ascending or not np.allclose(lower, 1 - given[::-1][: len(lower)]):
        raise CavityError(
            f"probabilities must ascend in pairs around one half, such as (0.05, 0.95); they are {probabilities}"
        )
    if len(lower) > len(SHADES):
        raise CavityError(f"at most {len(SHADES)} bands can be drawn; the probabilities give {len(lower)}")
    return [float(100 * (1 - 2 * probability)) for probability in lower]


def _check(
    x: np.ndarray, predictions: Mapping[str, Pair], num_quantiles: int, inducing: Mapping[str, Pair] | None
) -> None:
    if not predictions:
        raise CavityError("there is nothing to draw: no method has a prediction; give at least one")
    for method, (mean, quantiles) in predictions.items():
        if np.shape(mean) != (len(x),) or np.shape(quantiles) != (num_quantiles, len(x)):
            raise CavityError(
                f"{method!r}: a mean of shape {(len(x),)} and quantiles of shape {(num_quantiles, len(x))} are needed; "
                f"they have {np.shape(mean)} and {np.shape(quantiles)}"
            )
        if inducing is not None and method not in inducing:
            raise CavityError(
                f"{method!r} has no inducing inputs; there are inducing inputs of: {', '.join(inducing) or 'none'}"
            )


def _rows(axes: Axes, clients: Mapping[str, Pair]) -> None:
    for i, (name, (inputs, targets)) in enumerate(clients.items()):
        axes.plot(
            np.ravel(inputs),
            targets,
            marker=marker(i),
            color=colour(i),
            markersize=5.5 if marker(i) in "^v" else 4.8,
            markeredgecolor="white",
            markeredgewidth=0.3,
            linestyle="none",
            label=name,
        )


def _strip(axes: Axes, means: np.ndarray, deviations: np.ndarray) -> int:
    """Draw inducing inputs as dots with lines of one standard deviation; returns the number of the last lane."""
    low, high = axes.get_xlim()
    means, deviations = np.ravel(means), np.ravel(deviations)
    lane = _lanes(means, deviations, GAP * (high - low))
    axes.hlines(lane, means - deviations, means + deviations, color=GUIDE, linewidth=1.2)
    axes.plot(means, lane, marker="o", color=MEAN, markersize=3.5, linestyle="none")
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    for off, place, side in ((means < low, 0.0, "left"), (means > high, 1.0, "right")):
        if count := int(np.sum(off)):
            text = f"{count} off the axis"
            axes.text(place, 0.0, text, transform=axes.transAxes, ha=side, va="bottom", fontsize="x-small")
    return int(lane.max(initial=0))


def _lanes(means: np.ndarray, deviations: np.ndarray, gap: float) -> np.ndarray:
    """The first lane, from the left, in which each line touches no other."""
    lanes, ends = np.zeros(len(means), int), []
    for i in np.argsort(means - deviations, kind="stable"):
        start, end = means[i] - deviations[i], means[i] + deviations[i]
        free = next((lane for lane, taken in enumerate(ends) if taken + gap <= start), len(ends))
        ends[free : free + 1] = [end]
        lanes[i] = free
    return lanes
