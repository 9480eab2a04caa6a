"""Hyperparameters that `fit.learn` moves to the maximum of the free energy."""

from cavity.core.lazy_loading import listing
from cavity.hyperparameters.by_gradient import ByGradient
from cavity.hyperparameters.noise_sd import NoiseSd
from cavity.hyperparameters.prior_scale import PriorScale

__all__ = ["ByGradient", "NoiseSd", "PriorScale"]

__dir__ = listing(__all__)
