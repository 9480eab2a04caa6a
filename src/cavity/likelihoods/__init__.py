"""Likelihoods p(y | f): how an outcome depends on its predictors."""

from cavity.core.lazy_loading import listing
from cavity.likelihoods.bernoulli import BernoulliCloglog, BernoulliLogit, BernoulliProbit
from cavity.likelihoods.binomial import BinomialTrials
from cavity.likelihoods.categorical import CategoricalLogit, CategoricalSoftmax
from cavity.likelihoods.failure_time import ExponentialTime, LogNormalTime, WeibullTime
from cavity.likelihoods.gamma import GammaLog
from cavity.likelihoods.gaussian import GaussianNoise, GaussianUnknownNoise, GaussianVector
from cavity.likelihoods.negative_binomial import NegativeBinomialLog
from cavity.likelihoods.offset import WithOffset
from cavity.likelihoods.ordinal import OrdinalLogit, OrdinalProbit
from cavity.likelihoods.piecewise_exponential import PiecewiseExponentialTime
from cavity.likelihoods.poisson import PoissonLog
from cavity.likelihoods.student_t import StudentT, StudentTUnknownScale
from cavity.likelihoods.tags import TagsLogit

__all__ = [
    "BernoulliCloglog",
    "BernoulliLogit",
    "BernoulliProbit",
    "BinomialTrials",
    "CategoricalLogit",
    "CategoricalSoftmax",
    "ExponentialTime",
    "GammaLog",
    "GaussianNoise",
    "GaussianUnknownNoise",
    "GaussianVector",
    "LogNormalTime",
    "NegativeBinomialLog",
    "OrdinalLogit",
    "OrdinalProbit",
    "PiecewiseExponentialTime",
    "PoissonLog",
    "StudentT",
    "StudentTUnknownScale",
    "TagsLogit",
    "WeibullTime",
    "WithOffset",
]

__dir__ = listing(__all__)
