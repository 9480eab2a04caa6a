"""Prior, predictor and likelihood together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cavity.lazily import from_rooms

if TYPE_CHECKING:
    from cavity.models.cnn import cnn_classifier
    from cavity.models.conjugate import BernoulliShare, CategoricalShares, PoissonRate
    from cavity.models.factor_forms import Coupled, Decoupled, OwnRows
    from cavity.models.from_numpyro import numpyro_kinds, numpyro_model
    from cavity.models.function import FunctionModel, function_model
    from cavity.models.gaussian_process import SparseGP, sparse_gp
    from cavity.models.globals_only import GlobalsOnly, as_rows
    from cavity.models.location import NormalLocation, normal_location
    from cavity.models.mlp import MLP, mlp_classifier, mlp_regression
    from cavity.models.nearness import nearness_to_rows
    from cavity.models.network import NetworkModel, equinox_model, network_model
    from cavity.models.numpyro import NumpyroModel
    from cavity.models.pooled_process import central_gp
    from cavity.models.regression import (
        Regression,
        linear_regression,
        logistic_regression,
        poisson_regression,
        probit_regression,
        softmax_regression,
    )
    from cavity.models.shrinkage import CoefficientPrior, CommonScale, Horseshoe, Laplace
    from cavity.models.shrunk_regression import ShrunkRegression, shrunk
    from cavity.models.tagging import BagOfWords, bag_of_words

__all__ = [
    "MLP",
    "BagOfWords",
    "BernoulliShare",
    "CategoricalShares",
    "CoefficientPrior",
    "CommonScale",
    "Coupled",
    "Decoupled",
    "FunctionModel",
    "GlobalsOnly",
    "Horseshoe",
    "Laplace",
    "NetworkModel",
    "NormalLocation",
    "NumpyroModel",
    "OwnRows",
    "PoissonRate",
    "Regression",
    "ShrunkRegression",
    "SparseGP",
    "as_rows",
    "bag_of_words",
    "central_gp",
    "cnn_classifier",
    "equinox_model",
    "function_model",
    "linear_regression",
    "logistic_regression",
    "mlp_classifier",
    "mlp_regression",
    "nearness_to_rows",
    "network_model",
    "normal_location",
    "numpyro_kinds",
    "numpyro_model",
    "poisson_regression",
    "probit_regression",
    "shrunk",
    "softmax_regression",
    "sparse_gp",
]

__getattr__ = from_rooms(
    __name__,
    {
        "pooled_process": "central_gp",
        "conjugate": "BernoulliShare CategoricalShares PoissonRate",
        "factor_forms": "Coupled Decoupled OwnRows",
        "from_numpyro": "numpyro_kinds numpyro_model",
        "function": "FunctionModel function_model",
        "globals_only": "GlobalsOnly as_rows",
        "location": "NormalLocation normal_location",
        "cnn": "cnn_classifier",
        "mlp": "MLP mlp_classifier mlp_regression",
        "nearness": "nearness_to_rows",
        "network": "NetworkModel equinox_model network_model",
        "numpyro": "NumpyroModel",
        "regression": "Regression linear_regression logistic_regression poisson_regression probit_regression "
        "softmax_regression",
        "shrinkage": "CoefficientPrior CommonScale Horseshoe Laplace",
        "shrunk_regression": "ShrunkRegression shrunk",
        "gaussian_process": "SparseGP sparse_gp",
        "tagging": "BagOfWords bag_of_words",
    },
)
