"""What a client minimises in expectation."""

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
