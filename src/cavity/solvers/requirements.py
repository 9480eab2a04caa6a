"""What a solver needs of a model and a divergence, asked in one place, with errors that name the remedy."""

from __future__ import annotations

from typing import TypeVar

from cavity.core import Divergence, LinearModel, Loss, Model
from cavity.core.fields import require_capability
from cavity.distributions.gaussian import Gaussian
from cavity.errors import UnsuitableError

G = TypeVar("G", bound=Gaussian)


def require_family(model: Model, solver: str, *families: type[G]) -> G:
    """The prior of a model, which must be a member of one of these families.

    Args:
        model: the model.
        solver: the name of the solver, for the message.
        families: the families that it can handle.

    Raises:
        UnsuitableError: the prior is of another family.
    """
    prior = model.prior
    for family in families:
        if isinstance(prior, family):
            return prior
    names = {"FullGaussian": "a full Gaussian", "DiagonalGaussian": "a diagonal Gaussian"}
    wanted = " or ".join(names.get(family.__name__, "a Gaussian family") for family in families)
    raise UnsuitableError(f"{solver} needs {wanted}; the prior is {type(prior).__name__}")


def require_multiple_of_kl(divergence: Divergence, solver: str) -> None:
    """Raise UnsuitableError unless the divergence is KL or a multiple of it."""
    if divergence.kl_weight is None:
        raise UnsuitableError(
            f"{solver} needs the divergence KL or a multiple of it, not {type(divergence).__name__}; use LBFGS or "
            "Gradient"
        )


def require_likelihood_and_kl(loss: Loss, divergence: Divergence, solver: str, others: str) -> None:
    """Raise UnsuitableError unless the loss is a power of the likelihood, and the divergence a multiple of KL.

    Args:
        loss: what the client minimises.
        divergence: from its cavity.
        solver: the name of the solver, for the message.
        others: the solver that can handle other losses.
    """
    if loss.likelihood_power is None or divergence.kl_weight is None:
        raise UnsuitableError(
            f"{solver} needs the negative log likelihood (tempered or not) or score matching, and KL (weighted or "
            f"not), not {type(loss).__name__} and {type(divergence).__name__}; use {others} for other losses, LBFGS or "
            "Gradient for other divergences"
        )


def require_linear(model: Model) -> LinearModel:
    """The model, which must have linear predictors."""
    return require_capability(
        model.linear_model,
        f"quadrature over the predictor needs a model with a linear predictor; {type(model).__name__} "
        "has none. Use ThetaNodes, or leave the choice to the solver",
    )


def check_batches(model: Model, batch_size: int | None) -> None:
    """Raise UnsuitableError where mini-batches are asked of a likelihood that is not a sum over rows."""
    if batch_size is not None and model.row_model is None:
        raise UnsuitableError(
            f"the likelihood of {type(model).__name__} is not a sum over rows (`RowModel`), so that a mini-batch does "
            "not estimate it; use all rows in each step with batch_size=None, or use NaturalGradient"
        )
