"""What a fit shows and writes: tables, plots, draws, files and the report."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from cavity.core.intervals import DEFAULT_LEVEL, check_level
from cavity.errors import CavityError

if TYPE_CHECKING:
    from cavity.fit.fit import Fit
    from cavity.fit.summary import Summary
    from cavity.reporting.fit_plots import FitPlots


class Outputs:
    """The part of `Fit` that shows and writes results."""

    @property
    def _fit(self) -> Fit:
        return cast("Fit", self)

    def summary(self, level: float = DEFAULT_LEVEL, *, exponentiate: bool = False) -> Summary:
        """Mean, standard deviation and central interval of every parameter, by name.

        Args:
            level: the probability that each interval has.
            exponentiate: show odds ratios, hazard ratios, rate ratios or the like in place of coefficients.

        Returns:
            The summary; `print` shows a table, a notebook shows it as HTML. Where this process has the clients' data,
            the table says how good the approximation is (`verdict`).
        """
        from cavity.evaluation import integration, verdict
        from cavity.fit.presentation import remarks_on

        summary = self._fit._presentation.summary(check_level(level), remarks_on(self._fit))
        if exponentiate:
            ratios = self._fit.algorithm.model.ratios
            if ratios is None:
                raise CavityError("the coefficients of this model are not logs of ratios; leave out exponentiate=True")
            summary = summary.exponentiated(ratios)
        return replace(
            summary, checks=lambda: (verdict.remark(self._fit), *filter(None, [integration.remark(self._fit)]))
        )

    @property
    def plot(self) -> FitPlots:
        """Figures of this fit, such as `fit.plot.forest()`; each returns a matplotlib `Axes`."""
        from cavity.reporting.fit_plots import FitPlots

        return FitPlots(self._fit)

    def report(self, path: str | os.PathLike[str], level: float = DEFAULT_LEVEL) -> None:
        """Write a report: one HTML file that opens without a network, with tables, figures and a methods paragraph.

        Args:
            path: the file; it is replaced if it exists.
            level: the probability that each interval has.
        """
        from cavity.reporting.report import write_report

        write_report(self._fit, path, level=check_level(level))

    def save_draws(self, path: str | os.PathLike[str], num_draws: int = 4000, seed: int = 0) -> None:
        """Write posterior draws as a table, one column per parameter, that R and others read.

        Args:
            path: the file; `.csv`, or `.parquet` (needs pyarrow).
            num_draws: number of draws.
            seed: random seed of the draws.
        """
        from cavity.fit.draw_files import write_draws

        write_draws(self._fit._presentation.draws(num_draws, seed), path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit with its evidence, and without the clients' data, to one `.npz` file.

        Args:
            path: the file; `cavity.load` reads it.
        """
        from cavity.fit import files

        files.write(self._fit, path)

    def to_arviz(self, num_draws: int = 4000, seed: int = 0) -> Any:
        """Posterior draws for ArviZ (needs the extra `cavity[arviz]`).

        Args:
            num_draws: number of draws.
            seed: random seed of the draws.

        Returns:
            `InferenceData` of ArviZ 0.x, a `DataTree` of ArviZ 1.x.
        """
        from cavity.fit.local_posterior import as_arviz

        return as_arviz(self._fit._presentation.draws(num_draws, seed))
