"""Likelihoods p(y | f): how an outcome depends on its predictors."""

from cavity.core.lazy_loading import listing
from cavity.likelihoods.bernoulli import BernoulliLogit, BernoulliProbit
from cavity.likelihoods.categorical import CategoricalLogit, CategoricalSoftmax
from cavity.likelihoods.failure_time import ExponentialTime, LogNormalTime, WeibullTime
from cavity.likelihoods.gaussian import GaussianNoise, GaussianUnknownNoise, GaussianVector
from cavity.likelihoods.piecewise_exponential import PiecewiseExponentialTime
from cavity.likelihoods.poisson import PoissonLog
from cavity.likelihoods.student_t import StudentT
from cavity.likelihoods.tags import TagsLogit

__all__ = [
    "BernoulliLogit",
    "BernoulliProbit",
    "CategoricalLogit",
    "CategoricalSoftmax",
    "ExponentialTime",
    "GaussianNoise",
    "GaussianUnknownNoise",
    "GaussianVector",
    "LogNormalTime",
    "PiecewiseExponentialTime",
    "PoissonLog",
    "StudentT",
    "TagsLogit",
    "WeibullTime",
]

__dir__ = listing(__all__)
