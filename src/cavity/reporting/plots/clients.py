"""How far each client moves the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from cavity.errors import CavityError
from cavity.reporting.plots.style import GUIDE, axes_or_new, colour, figure_of, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW_CLIENTS = 100  # with more, those that move the result least are left out


def clients(
    shifts: Mapping[str, Mapping[str, float]], *, flagged: tuple[str, ...] = (), axes: Axes | None = None
) -> Figure:
    """A row per client with a point per coefficient: the shift when the client is left out, in posterior sds.

    Args:
        shifts: client -> coefficient -> shift.
        flagged: clients to emphasise.
        axes: where to draw; None makes a figure.

    Returns:
        The figure. The coefficient that moves most is named at its point.

    Example:
        >>> clients({"leeds": {"age": 0.2}, "york": {"age": -0.3}}).axes[0].get_xlabel()
        'shift by the client, in posterior standard deviations'
    """
    if not shifts:
        raise CavityError("there is nothing to draw: no client has a shift")
    size = {name: max(map(abs, own.values()), default=0.0) for name, own in shifts.items()}
    shown = sorted(shifts, key=lambda name: -size[name])[:FEW_CLIENTS]
    shown = [name for name in shifts if name in set(shown)]
    axes = axes_or_new(axes, 7.0, 1.4 + 0.36 * len(shown))
    axes.axvline(0.0, color=GUIDE, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    for row, name in enumerate(shown):
        own, is_flagged = shifts[name], name in flagged
        values = np.array(list(own.values()))
        axes.plot(
            values, np.full(len(values), row), "D" if is_flagged else "o", color=colour(int(is_flagged)), alpha=0.75
        )
        if len(values):
            most = int(np.argmax(np.abs(values)))
            axes.annotate(
                plain(list(own)[most]),
                (values[most], row),
                xytext=(0, 5),
                textcoords="offset points",
                va="bottom",
                ha="right" if values[most] > 0 else "left",  # towards the middle, away from the names of clients
                fontsize="small",
                color="#444444",
            )
    axes.set_yticks(range(len(shown)), [plain(name) for name in shown])
    axes.set_ylim(len(shown) - 0.5, -0.8)
    axes.margins(x=0.1)
    axes.grid(axis="x", color="#ececec", linewidth=0.8)
    axes.set_xlabel("shift by the client, in posterior standard deviations")
    return figure_of(axes)
