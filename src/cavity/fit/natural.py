"""Gaussian posteriors of models that compute with logs of some parameters, shown on the natural scale of these."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import Array

from cavity.core.natural_scale import NaturalScale
from cavity.fit.presentation import GaussianPresentation
from cavity.fit.summary import Coefficients, Estimate, Summary


@dataclass(frozen=True)
class NaturalPresentation(GaussianPresentation):
    """A Gaussian of coefficients and of the logs of further parameters, which are reported themselves.

    The distribution in `Fit.reported`, prior scales, and the checks of the approximation are of the logs.
    """

    @property
    def _scale(self) -> NaturalScale:
        found = self.model.natural_scale
        assert found is not None  # otherwise a GaussianPresentation is used
        return found

    @property
    def units(self) -> str:
        return "; ".join([super().units, *self._note()])

    def coefficients(self) -> Coefficients:
        found = self._coefficients(self.posterior)
        return Coefficients(self._scale.names, *self._scale.moments(found.mean, found.covariance))

    def summary(self, level: float, remarks: tuple[str, ...]) -> Summary:
        of_logs = super().summary(level, (*remarks, *self._note()))
        found = self._coefficients(self.posterior)
        mean, covariance = self._scale.moments(found.mean, found.covariance)
        ends = self._scale.interval(found.mean, found.covariance, level)
        rows = zip(self._scale.names, mean, np.sqrt(np.diagonal(covariance)), *ends, strict=True)
        return replace(of_logs, estimates=tuple(Estimate(name, *map(float, numbers)) for name, *numbers in rows))

    def draws(self, num_draws: int, seed: int) -> dict[str, Array]:
        of_logs = np.stack([np.asarray(draws) for draws in super().draws(num_draws, seed).values()], axis=-1)
        with jax.enable_x64(True):
            natural = jax.numpy.asarray(self._scale.apply(of_logs))
        return dict(zip(self._scale.names, natural.T, strict=True))

    def _note(self) -> tuple[str, ...]:
        if not (logs := self._scale.logs):
            return ()
        shown = ", ".join([name for name in self._scale.names if name not in self.model.parameter_names])
        return (f"{shown}: on the natural scale; fit.posterior and fit.verdict have {', '.join(logs)}",)
