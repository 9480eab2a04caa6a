"""Likelihoods p(y | f): how an outcome depends on its predictors."""

from cavity.core.lazy_loading import listing
from cavity.likelihoods.bernoulli import BernoulliLogit, BernoulliProbit
from cavity.likelihoods.categorical import CategoricalLogit, CategoricalSoftmax
from cavity.likelihoods.gaussian import GaussianNoise, GaussianUnknownNoise, GaussianVector
from cavity.likelihoods.poisson import PoissonLog
from cavity.likelihoods.student_t import StudentT
from cavity.likelihoods.tags import TagsLogit

__all__ = [
    "BernoulliLogit",
    "BernoulliProbit",
    "CategoricalLogit",
    "CategoricalSoftmax",
    "GaussianNoise",
    "GaussianUnknownNoise",
    "GaussianVector",
    "PoissonLog",
    "StudentT",
    "TagsLogit",
]

__dir__ = listing(__all__)
