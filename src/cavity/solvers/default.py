"""The default solver."""

from cavity.core import Divergence, Loss, Model, Solver
from cavity.errors import UnsuitableError


def default_solver(model: Model, loss: Loss, divergence: Divergence) -> Solver:
    """The closed form where there is one, else the natural gradient, else (for other divergences) L-BFGS."""
    from cavity.solvers import LBFGS, Conjugate, NaturalGradient  # loaded when needed

    for solver in (Conjugate(), NaturalGradient()):
        try:
            solver.check(model, loss, divergence)
        except UnsuitableError:
            continue
        return solver
    return LBFGS()
