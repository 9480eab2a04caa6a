"""Models: a prior and a likelihood of a client's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cavity.core.lazy_loading import lazy_exports

if TYPE_CHECKING:
    from cavity.models.conjugate import BernoulliShare, CategoricalShares, PoissonRate
    from cavity.models.function import FunctionModel, PredictiveFunctionModel, function_model
    from cavity.models.glm.coefficient_priors import StudentTPrior
    from cavity.models.glm.regression import (
        Regression,
        linear_regression,
        logistic_regression,
        poisson_regression,
        probit_regression,
        softmax_regression,
    )
    from cavity.models.glm.shrinkage import CoefficientPrior, CommonScale, Horseshoe, Laplace
    from cavity.models.glm.shrinkage_regression import ShrinkageRegression, with_shrinkage_prior
    from cavity.models.gp.factor_forms import Coupled, Decoupled, OwnRows
    from cavity.models.gp.pooled_gp import central_gp
    from cavity.models.gp.row_proximity import row_proximity
    from cavity.models.gp.sparse_gp import SparseGP, sparse_gp
    from cavity.models.location import NormalLocation, normal_location
    from cavity.models.mixed.marginal import MarginalModel, marginal_model
    from cavity.models.neural.bag_of_words import BagOfWords, bag_of_words
    from cavity.models.neural.cnn import cnn_classifier
    from cavity.models.neural.mlp import MLP, mlp_classifier, mlp_regression
    from cavity.models.neural.network import NetworkModel, equinox_model, network_model
    from cavity.models.numpyro.from_numpyro import numpyro_kinds, numpyro_model
    from cavity.models.numpyro.globals_only import GlobalsOnly, as_rows
    from cavity.models.numpyro.latent_model import NumpyroModel
    from cavity.models.survival.cox import CoxRegression, cox_regression

__all__ = [
    "MLP",
    "BagOfWords",
    "BernoulliShare",
    "CategoricalShares",
    "CoefficientPrior",
    "CommonScale",
    "Coupled",
    "CoxRegression",
    "Decoupled",
    "FunctionModel",
    "GlobalsOnly",
    "Horseshoe",
    "Laplace",
    "MarginalModel",
    "NetworkModel",
    "NormalLocation",
    "NumpyroModel",
    "OwnRows",
    "PoissonRate",
    "PredictiveFunctionModel",
    "Regression",
    "ShrinkageRegression",
    "SparseGP",
    "StudentTPrior",
    "as_rows",
    "bag_of_words",
    "central_gp",
    "cnn_classifier",
    "cox_regression",
    "equinox_model",
    "function_model",
    "linear_regression",
    "logistic_regression",
    "marginal_model",
    "mlp_classifier",
    "mlp_regression",
    "network_model",
    "normal_location",
    "numpyro_kinds",
    "numpyro_model",
    "poisson_regression",
    "probit_regression",
    "row_proximity",
    "softmax_regression",
    "sparse_gp",
    "with_shrinkage_prior",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "conjugate": "BernoulliShare CategoricalShares PoissonRate",
        "function": "FunctionModel PredictiveFunctionModel function_model",
        "glm.regression": "Regression linear_regression logistic_regression poisson_regression probit_regression "
        "softmax_regression",
        "glm.coefficient_priors": "StudentTPrior",
        "glm.shrinkage": "CoefficientPrior CommonScale Horseshoe Laplace",
        "glm.shrinkage_regression": "ShrinkageRegression with_shrinkage_prior",
        "gp.factor_forms": "Coupled Decoupled OwnRows",
        "gp.pooled_gp": "central_gp",
        "gp.row_proximity": "row_proximity",
        "gp.sparse_gp": "SparseGP sparse_gp",
        "location": "NormalLocation normal_location",
        "mixed.marginal": "MarginalModel marginal_model",
        "neural.bag_of_words": "BagOfWords bag_of_words",
        "neural.cnn": "cnn_classifier",
        "neural.mlp": "MLP mlp_classifier mlp_regression",
        "neural.network": "NetworkModel equinox_model network_model",
        "numpyro.from_numpyro": "numpyro_kinds numpyro_model",
        "numpyro.globals_only": "GlobalsOnly as_rows",
        "numpyro.latent_model": "NumpyroModel",
        "survival.cox": "CoxRegression cox_regression",
    },
)
