"""Prior, predictor and likelihood together."""

from cavity.models.conjugate import BernoulliShare, CategoricalShares, PoissonRate
from cavity.models.function import FunctionModel, function_model
from cavity.models.regression import (
    Regression,
    linear_regression,
    logistic_regression,
    poisson_regression,
    probit_regression,
    softmax_regression,
)

__all__ = [
    "BernoulliShare",
    "CategoricalShares",
    "FunctionModel",
    "PoissonRate",
    "Regression",
    "function_model",
    "linear_regression",
    "logistic_regression",
    "poisson_regression",
    "probit_regression",
    "softmax_regression",
]
