"""The default solver."""

from cavity.core import Divergence, Loss, Model, Solver
from cavity.errors import UnsuitableError


def default_solver(model: Model, loss: Loss, divergence: Divergence) -> Solver:
    """The closed form where there is one, else the natural gradient, else (for other divergences) L-BFGS.

    A likelihood that is not a sum over rows is expensive; there the natural gradient starts at the tilted mode.
    """
    from cavity.solvers import LBFGS, Conjugate, NaturalGradient, NaturalGradientFromMode  # loaded when needed

    from_mode = () if model.row_model is not None else (NaturalGradientFromMode(),)
    for solver in (Conjugate(), *from_mode, NaturalGradient()):
        try:
            solver.check(model, loss, divergence)
        except UnsuitableError:
            continue
        return solver
    return LBFGS()
