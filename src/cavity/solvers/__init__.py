"""The client's inner problem."""

from cavity.solvers.conjugate import Conjugate
from cavity.solvers.gradient import NaturalParameterDescent
from cavity.solvers.natural_gradient import NaturalGradient

__all__ = ["Conjugate", "NaturalGradient", "NaturalParameterDescent"]
