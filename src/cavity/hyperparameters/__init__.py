"""Hyperparameters that `fit.learn` moves to the maximum of the free energy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cavity.core.lazy_loading import lazy_exports

if TYPE_CHECKING:
    from cavity.hyperparameters.by_gradient import ByGradient
    from cavity.hyperparameters.noise_sd import NoiseSd
    from cavity.hyperparameters.prior_scale import PriorScale

__all__ = ["ByGradient", "NoiseSd", "PriorScale"]

__getattr__, __dir__ = lazy_exports(
    __name__, {"by_gradient": "ByGradient", "noise_sd": "NoiseSd", "prior_scale": "PriorScale"}
)
