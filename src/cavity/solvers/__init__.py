"""Solvers of a client's local problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cavity.core.lazy_loading import lazy_exports

if TYPE_CHECKING:
    from cavity.solvers.conjugate import Conjugate
    from cavity.solvers.ep.alpha_divergence import AlphaDivergence
    from cavity.solvers.ep.moment_matching import MomentMatching
    from cavity.solvers.ep.power_ep import PowerEP
    from cavity.solvers.estimators import Exact, LocalDraws, ParameterDraws
    from cavity.solvers.fixed_point import FixedPoint
    from cavity.solvers.gradient import Gradient
    from cavity.solvers.laplace import Laplace
    from cavity.solvers.lbfgs import LBFGS
    from cavity.solvers.natural_gradient import NaturalGradient
    from cavity.solvers.natural_gradient_from_mode import NaturalGradientFromMode
    from cavity.solvers.plateau import Plateau
    from cavity.solvers.point_set import PointSet
    from cavity.solvers.sgmcmc.chains import SGHMC, SGLD, SGDIterates
    from cavity.solvers.sgmcmc.covariance import (
        DiagonalFisher,
        LedoitWolf,
        NaturalVI,
        Point,
        SampleMoments,
        ScaledIdentity,
    )
    from cavity.solvers.sgmcmc.solver import SGMCMC
    from cavity.solvers.start import FromPosterior, Tight
    from cavity.solvers.stochastic_natural_gradient import StochasticNaturalGradient

__all__ = [
    "LBFGS",
    "SGHMC",
    "SGLD",
    "SGMCMC",
    "AlphaDivergence",
    "Conjugate",
    "DiagonalFisher",
    "Exact",
    "FixedPoint",
    "FromPosterior",
    "Gradient",
    "Laplace",
    "LedoitWolf",
    "LocalDraws",
    "MomentMatching",
    "NaturalGradient",
    "NaturalGradientFromMode",
    "NaturalVI",
    "ParameterDraws",
    "Plateau",
    "Point",
    "PointSet",
    "PowerEP",
    "SGDIterates",
    "SampleMoments",
    "ScaledIdentity",
    "StochasticNaturalGradient",
    "Tight",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "conjugate": "Conjugate",
        "ep.alpha_divergence": "AlphaDivergence",
        "ep.moment_matching": "MomentMatching",
        "ep.power_ep": "PowerEP",
        "estimators": "Exact LocalDraws ParameterDraws",
        "fixed_point": "FixedPoint",
        "gradient": "Gradient",
        "laplace": "Laplace",
        "lbfgs": "LBFGS",
        "natural_gradient": "NaturalGradient",
        "natural_gradient_from_mode": "NaturalGradientFromMode",
        "plateau": "Plateau",
        "point_set": "PointSet",
        "sgmcmc.chains": "SGDIterates SGHMC SGLD",
        "sgmcmc.covariance": "DiagonalFisher LedoitWolf NaturalVI Point SampleMoments ScaledIdentity",
        "sgmcmc.solver": "SGMCMC",
        "start": "FromPosterior Tight",
        "stochastic_natural_gradient": "StochasticNaturalGradient",
    },
)
