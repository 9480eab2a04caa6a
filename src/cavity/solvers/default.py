"""Which solver a newcomer gets."""

from cavity.interfaces import ConjugateModel, Model, Solver
from cavity.solvers.conjugate import Conjugate
from cavity.solvers.natural_gradient import NaturalGradient


def default_solver(model: Model) -> Solver:
    """The closed form where the model has one, else the natural gradient."""
    if isinstance(model, ConjugateModel) and model.is_conjugate:
        return Conjugate()
    return NaturalGradient()
