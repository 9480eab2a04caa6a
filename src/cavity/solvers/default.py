"""Which solver a newcomer gets."""

from cavity.errors import UnsuitableError
from cavity.interfaces import Divergence, Loss, Model, Solver
from cavity.solvers.conjugate import Conjugate
from cavity.solvers.lbfgs import LBFGS
from cavity.solvers.natural_gradient import NaturalGradient


def default_solver(model: Model, loss: Loss, divergence: Divergence) -> Solver:
    """The closed form where there is one, else the natural gradient, else (for other divergences) L-BFGS."""
    for solver in (Conjugate(), NaturalGradient()):
        try:
            solver.check(model, loss, divergence)
        except UnsuitableError:
            continue
        return solver
    return LBFGS()
