"""Maps: values at places, inducing inputs, and the region of each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cavity.errors import CavityError
from cavity.reporting.plots.style import COLOURS, GUIDE, axes_or_new, colour, figure_of, make_plain, marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEQUENTIAL, DIVERGING = "viridis", "PuOr_r"
OUTLINE = "#4d4d4d"
WIDTH = 4.0  # of a map, in inches
NEAR = 0.03  # share of the map's sides: boxes that are closer are neighbours
CIRCLE = np.linspace(0.0, 2 * np.pi, 49)

Pair = tuple[np.ndarray, np.ndarray]


def maps(
    panels: Mapping[str, Pair],
    *,
    label: str,
    inducing: Mapping[str, np.ndarray | Pair] | None = None,
    clients: Mapping[str, np.ndarray] | None = None,
    limits: tuple[float, float] | None = None,
    centre: float | None = None,
    size: float = 14.0,
    columns: int | None = None,
) -> Figure:
    """Values at longitudes and latitudes, in adjacent panels with one colour scale.

    Args:
        panels: title -> places [n, 2], longitude and latitude in degrees, and values [n].
        label: name and unit of the values, beside the colour scale.
        inducing: title -> inducing inputs [M, 2], or their means and standard deviations, both [M, 2], drawn as
            crosses in ellipses; panels that are not named have none.
        clients: name -> places [n_k, 2], around which a box is drawn in all panels.
        limits: of the colour scale; None uses the smallest and the largest value.
        centre: the value in the middle of a diverging scale (0 for errors); None uses a sequential scale.
        size: of a marker, in square points.
        columns: number of columns of panels; None puts all panels in one line.

    Returns:
        The figure. Its frame holds the places of all panels; inducing inputs outside are counted in its corner.

    Example:
        >>> places = np.array([[-100.0, 40.0], [-90.0, 35.0]])
        >>> figure = maps({"truth": (places, np.array([50.0, 60.0]))}, label="temperature, degrees F")
        >>> [axes.get_title() for axes in figure.axes]
        ['truth', '']
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    _check(panels, inducing or {})
    columns = len(panels) if columns is None else columns
    num_lines = -(-len(panels) // columns)
    everywhere = np.concatenate([places for places, _ in panels.values()] + list((clients or {}).values()))
    low, high = _frame(everywhere)
    height = WIDTH * (high - low)[1] * _stretch(everywhere) / (high - low)[0]
    room = 0.9 if inducing or clients else 0.4  # for the legend and the labels
    figure = Figure(figsize=((WIDTH + 0.4) * columns + 0.9, (height + 0.7) * num_lines + room), layout="constrained")
    every = list(figure.subplots(num_lines, columns, sharex=True, sharey=True, squeeze=False).ravel())
    low, high = _limits(panels, limits, centre)
    colours = SEQUENTIAL if centre is None else DIVERGING
    edge = {"linewidth": 0} if centre is None else {"linewidth": 0.4, "edgecolor": GUIDE}  # white markers need an edge
    scale = Normalize(low, high)
    for axes, (title, (places, values)) in zip(every, panels.items(), strict=False):
        _ground(axes, everywhere)
        axes.scatter(*places.T, c=values, s=size, norm=scale, cmap=colours, **edge)
        for own in (clients or {}).values():
            _box(axes, own)
        if inducing and title in inducing:
            _inducing(axes, inducing[title])
        axes.set_title(title, fontsize="medium")
    for axes in every[len(panels) :]:
        axes.set_visible(False)
    used = every[: len(panels)]
    _name_sides(used, columns)
    extend = _beyond(np.concatenate([values for _, values in panels.values()]), low, high)
    bar = {"label": label, "extend": extend, "shrink": 0.9, "aspect": 28, "pad": 0.01}
    figure.colorbar(ScalarMappable(scale, colours), ax=list(used), **bar)
    handles = {name: handle for axes in used for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def territories(clients: Mapping[str, np.ndarray], *, title: str = "", axes: Axes | None = None) -> Figure:
    """The places of each client in one colour and marker, in a box with the client's number in the order given.

    Args:
        clients: name -> places [n_k, 2], longitude and latitude in degrees.
        title: above the map.
        axes: where to draw; None makes a figure.

    Returns:
        The figure. With more than seven clients some share a colour; neighbours do not where that is possible.
    """
    if not clients:
        raise CavityError("there is nothing to draw: no client has a place; give at least one client")
    axes = axes_or_new(axes, 7.2, 4.6)
    _ground(axes, np.concatenate(list(clients.values())))
    codes = _told_apart(list(clients.values()))
    for i, (places, code) in enumerate(zip(clients.values(), codes, strict=True)):
        axes.scatter(*places.T, s=12, color=colour(code), marker=marker(code), linewidth=0, alpha=0.75)
        _box(axes, places)
        middle = (places.min(axis=0) + places.max(axis=0)) / 2
        paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
        axes.text(middle[0], middle[1], str(i), ha="center", va="center", fontsize="small", weight="bold", bbox=paper)
    axes.set_title(title, fontsize="medium")
    _name_sides([axes], 1)
    return figure_of(axes)


def _limits(
    panels: Mapping[str, Pair], limits: tuple[float, float] | None, centre: float | None
) -> tuple[float, float]:
    """Limits of the scale: those given, or the extremes of all panels, with the centre in the middle if given."""
    values = np.concatenate([values for _, values in panels.values()])
    low, high = (float(values.min()), float(values.max())) if limits is None else limits
    if centre is None:
        return low, high
    reach = max(high - centre, centre - low)
    return centre - reach, centre + reach


def _beyond(values: np.ndarray, low: float, high: float) -> str:
    """At which ends values lie outside the scale, in matplotlib's words."""
    under, over = bool(values.min() < low), bool(values.max() > high)
    return {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[under, over]


def _ground(axes: Axes, places: np.ndarray) -> None:
    """Plain axes whose limits hold the places."""
    make_plain(axes)
    low, high = _frame(places)
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    axes.set_aspect(_stretch(places))


def _frame(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The south-western and the north-eastern corner of a frame with a margin around the places."""
    low, high = places.min(axis=0), places.max(axis=0)
    room = np.maximum(0.03 * (high - low), 0.1)
    return low - room, high + room


def _stretch(places: np.ndarray) -> float:
    """How many degrees of longitude, at the middle latitude, are as long as one of latitude."""
    return float(1 / np.cos(np.radians((places[:, 1].min() + places[:, 1].max()) / 2)))


def _box(axes: Axes, places: np.ndarray) -> None:
    from matplotlib.patches import Rectangle

    low, high = places.min(axis=0), places.max(axis=0)
    axes.add_patch(
        Rectangle(tuple(low), *(high - low), fill=False, edgecolor=OUTLINE, linewidth=0.6, label="client", zorder=3)
    )


def _inducing(axes: Axes, inputs: np.ndarray | Pair) -> None:
    """Crosses that are visible on any colour, and ellipses of one standard deviation."""
    means, deviations = inputs if isinstance(inputs, tuple) else (inputs, None)
    if deviations is not None:
        circle = np.stack([np.cos(CIRCLE), np.sin(CIRCLE)])
        for mean, deviation in zip(means, deviations, strict=True):
            ellipse = mean[:, None] + deviation[:, None] * circle
            axes.plot(*ellipse, color="black", linewidth=0.7, zorder=4, label="one standard deviation")
    axes.scatter(
        *means.T, s=24, marker="P", color="white", edgecolor="black", linewidth=0.7, zorder=5, label="inducing input"
    )
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    if off := int(np.sum(~np.all((means >= [left, bottom]) & (means <= [right, top]), axis=1))):
        text = f"{off} inducing {'input' if off == 1 else 'inputs'} beyond the map"
        axes.text(0.01, 0.01, text, transform=axes.transAxes, ha="left", va="bottom", fontsize="x-small")


def _told_apart(clients: Sequence[np.ndarray]) -> list[int]:
    """A colour for each client that its neighbours before it do not have; among these the least used."""
    boxes = np.array([[places.min(axis=0), places.max(axis=0)] for places in clients])
    reach = NEAR * np.ptp(boxes, axis=(0, 1))
    codes: list[int] = []
    for low, high in boxes:
        before = boxes[: len(codes)]
        near = np.all((before[:, 0] <= high + reach) & (low - reach <= before[:, 1]), axis=1)
        taken = {codes[j] for j in np.flatnonzero(near)}
        codes.append(min(range(len(COLOURS)), key=lambda code: (code in taken, codes.count(code))))
    return codes


def _name_sides(panels: Sequence[Axes], columns: int) -> None:
    for i, axes in enumerate(panels):
        if i % columns == 0:
            axes.set_ylabel("latitude")
        if i + columns >= len(panels):
            axes.set_xlabel("longitude")
            axes.tick_params(labelbottom=True)


def _check(panels: Mapping[str, Pair], inducing: Mapping[str, np.ndarray | Pair]) -> None:
    if not panels:
        raise CavityError("there is nothing to draw: no panel has places; give at least one")
    for title, (places, values) in panels.items():
        if np.ndim(places) != 2 or np.shape(places) != (len(values), 2) or not len(values):
            raise CavityError(
                f"{title!r}: places of shape [n, 2] and values of shape [n] are needed; "
                f"they have {np.shape(places)} and {np.shape(values)}"
            )
    if unknown := sorted(set(inducing) - set(panels)):
        raise CavityError(f"inducing inputs of {', '.join(unknown)}: no such panel; choose from: {', '.join(panels)}")
