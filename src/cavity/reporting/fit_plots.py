"""`fit.plot`: the figures of one fit. Each function returns a matplotlib `Axes`, for changes and for `savefig`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cavity.core.intervals import DEFAULT_LEVEL
from cavity.errors import CavityError, UnsuitableError
from cavity.fit.draw_files import columns_of
from cavity.fit.presentation import presentation_of
from cavity.models.glm.regression import Regression

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cavity.fit.fit import Fit

MOST_SHOWN = 100


@dataclass(frozen=True)
class FitPlots:
    """The figures of a fit.

    Attributes:
        fit: the fit.
    """

    fit: Fit

    def forest(
        self, parameters: Sequence[str] | None = None, *, level: float = DEFAULT_LEVEL, axes: Axes | None = None
    ) -> Axes:
        """Means and intervals of the coefficients, with an axis of ratios where the model has them.

        Args:
            parameters: which to show, from the top; None shows all slopes.
            level: the probability that each interval has.
            axes: where to draw; None makes a figure.
        """
        from cavity.reporting.plots import forest

        summary, ratios = self.fit.summary(level), self.fit.algorithm.model.ratios
        known = [estimate.name for estimate in summary]
        named = self._named(known, parameters)
        is_ratio = ratios is not None and set(named) <= set(ratios.names)
        title = ratios.title if ratios is not None and is_ratio else None
        scale = "coefficient" if title is None else f"log {title}"
        return forest({"posterior": summary}, parameters=named, scale=scale, ratio=title, axes=axes).axes[0]

    def _named(self, known: Sequence[str], parameters: Sequence[str] | None) -> list[str]:
        """The chosen parameters; by default the slopes, or all if there are none."""
        if parameters is not None:
            if unknown := [name for name in parameters if name not in known]:
                raise CavityError(f"no parameter {unknown[0]!r}; choose from: {', '.join(known)}")
            return list(parameters)
        ratios = self.fit.algorithm.model.ratios
        slopes = [name for name in known if name != "intercept"] if ratios is None else ratios.names
        return [name for name in known if name in set(slopes)][:MOST_SHOWN] or list(known)[:MOST_SHOWN]

    def convergence(self, *, axes: Axes | None = None) -> Axes:
        """The largest gap of a client by round, in nats.

        Args:
            axes: where to draw; None makes a figure.
        """
        from cavity.reporting.plots import convergence

        if not any(record["gap"] > 0 for record in self.fit.history):
            raise CavityError("there is nothing to draw: no round has a gap above 0")
        return convergence(self.fit.history, axes=axes).axes[0]

    def clients(self, *, axes: Axes | None = None) -> Axes:
        """How far each coefficient moves when a client is left out, in posterior sds; those that differ stand out.

        Args:
            axes: where to draw; None makes a figure.
        """
        from cavity.reporting.plots import clients

        found = self.fit.heterogeneity()
        sd = np.sqrt(np.diag(np.asarray(self.fit.reported.covariance)))
        shifts = {
            client.name: {name: shift / sd[i] for i, (name, shift) in enumerate(client.shift.items())}
            for client in found
        }
        return clients(shifts, flagged=found.flagged, axes=axes).axes[0]

    def calibration(self, *, num_bins: int = 10, level: float = DEFAULT_LEVEL, axes: Axes | None = None) -> Axes:
        """Predicted risks against observed shares at the rows of all clients; for outcomes that are yes or no.

        The rows are those that the model was fitted to, so the figure is optimistic.

        Args:
            num_bins: groups of rows, from the lowest risks to the highest.
            level: the probability of the intervals of the observed shares.
            axes: where to draw; None makes a figure.
        """
        from cavity.reporting.plots import calibration

        risks, outcomes = self._risks()
        num_bins = max(1, min(num_bins, len(outcomes) // 5))
        return calibration({"fit": risks}, outcomes, num_bins=num_bins, level=level, axes=axes).axes[0]

    def _risks(self) -> tuple[np.ndarray, np.ndarray]:
        model = self.fit.algorithm.model
        if not isinstance(model, Regression) or not model.likelihood.has_classes or model.likelihood.num_predictors > 1:
            raise UnsuitableError("a calibration plot needs a regression of an outcome that is yes or no")
        data = self.fit.population("draw a calibration plot").data
        if data is None:
            raise UnsuitableError("the clients' data are streamed; predict their rows, and use cavity.reporting.plots")
        rows = [data[name].batch for name in self.fit.client_names]
        predicted = [np.asarray(self.fit.predict(np.asarray(x)).mean) for x, _ in rows]
        return np.concatenate(predicted), np.concatenate([np.asarray(y) for _, y in rows])

    def posterior(
        self, parameters: Sequence[str] | None = None, *, level: float = DEFAULT_LEVEL, axes: Axes | None = None
    ) -> Axes:
        """The posterior density of each parameter.

        Args:
            parameters: which to show, from the top; None shows all slopes.
            level: the probability of the interval below each density.
            axes: where to draw; None makes a figure.
        """
        from cavity.reporting.plots import densities

        draws = columns_of(presentation_of(self.fit).draws(4000, 0))
        chosen = {name: draws[name] for name in self._named(list(draws), parameters)}
        return densities(chosen, level=level, axes=axes).axes[0]
