"""Losses: what a client minimises in expectation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cavity.core.lazy_loading import lazy_exports

if TYPE_CHECKING:
    from cavity.losses.beta import Beta
    from cavity.losses.cross_entropy import GeneralisedCrossEntropy
    from cavity.losses.gamma import Gamma
    from cavity.losses.nll import NegativeLogLikelihood
    from cavity.losses.score_matching import InverseMultiQuadric, ScoreMatching, SquaredExponential
    from cavity.losses.tempered import Tempered

__all__ = [
    "Beta",
    "Gamma",
    "GeneralisedCrossEntropy",
    "InverseMultiQuadric",
    "NegativeLogLikelihood",
    "ScoreMatching",
    "SquaredExponential",
    "Tempered",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "beta": "Beta",
        "cross_entropy": "GeneralisedCrossEntropy",
        "gamma": "Gamma",
        "nll": "NegativeLogLikelihood",
        "score_matching": "InverseMultiQuadric ScoreMatching SquaredExponential",
        "tempered": "Tempered",
    },
)
