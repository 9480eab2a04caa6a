"""The client's inner problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cavity.lazily import from_rooms

if TYPE_CHECKING:
    from cavity.solvers.alpha_divergence import AlphaDivergence
    from cavity.solvers.chains import SGHMC, SGLD, SGDIterates
    from cavity.solvers.conjugate import Conjugate
    from cavity.solvers.estimators import Exact, LocalDraws, ParameterDraws
    from cavity.solvers.fixed_point import FixedPoint
    from cavity.solvers.gradient import Gradient
    from cavity.solvers.laplace import Laplace
    from cavity.solvers.lbfgs import LBFGS
    from cavity.solvers.moment_matching import MomentMatching
    from cavity.solvers.natural_gradient import NaturalGradient
    from cavity.solvers.plateau import Plateau
    from cavity.solvers.power_ep import PowerEP
    from cavity.solvers.sgmcmc import SGMCMC
    from cavity.solvers.spread import DiagonalFisher, LedoitWolf, NaturalVI, Point, SampleMoments, ScaledIdentity
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
    "NaturalVI",
    "ParameterDraws",
    "Plateau",
    "Point",
    "PowerEP",
    "SGDIterates",
    "SampleMoments",
    "ScaledIdentity",
    "StochasticNaturalGradient",
    "Tight",
]

__getattr__ = from_rooms(
    __name__,
    {
        "alpha_divergence": "AlphaDivergence",
        "chains": "SGDIterates SGHMC SGLD",
        "conjugate": "Conjugate",
        "estimators": "Exact LocalDraws ParameterDraws",
        "fixed_point": "FixedPoint",
        "gradient": "Gradient",
        "laplace": "Laplace",
        "lbfgs": "LBFGS",
        "moment_matching": "MomentMatching",
        "natural_gradient": "NaturalGradient",
        "plateau": "Plateau",
        "power_ep": "PowerEP",
        "sgmcmc": "SGMCMC",
        "spread": "DiagonalFisher LedoitWolf NaturalVI Point SampleMoments ScaledIdentity",
        "start": "FromPosterior Tight",
        "stochastic_natural_gradient": "StochasticNaturalGradient",
    },
)
