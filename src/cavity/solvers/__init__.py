"""The client's inner problem. Solvers that few need are loaded when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cavity.solvers.conjugate import Conjugate
from cavity.solvers.estimators import Exact, LocalDraws, ParameterDraws
from cavity.solvers.fixed_point import FixedPoint
from cavity.solvers.gradient import Gradient
from cavity.solvers.laplace import Laplace
from cavity.solvers.lbfgs import LBFGS
from cavity.solvers.natural_gradient import NaturalGradient
from cavity.solvers.plateau import Plateau
from cavity.solvers.start import FromPosterior, Tight
from cavity.solvers.stochastic_natural_gradient import StochasticNaturalGradient

if TYPE_CHECKING:
    from cavity.solvers.alpha_divergence import AlphaDivergence
    from cavity.solvers.power_ep import PowerEP

__all__ = [
    "LBFGS",
    "AlphaDivergence",
    "Conjugate",
    "Exact",
    "FixedPoint",
    "FromPosterior",
    "Gradient",
    "Laplace",
    "LocalDraws",
    "NaturalGradient",
    "ParameterDraws",
    "Plateau",
    "PowerEP",
    "StochasticNaturalGradient",
    "Tight",
]

_HOME = {"AlphaDivergence": "cavity.solvers.alpha_divergence", "PowerEP": "cavity.solvers.power_ep"}


def __getattr__(name: str) -> Any:
    """Load a solver when it is first asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'cavity.solvers' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
