"""Generalised cross entropy (FedGVI, eq. 8; Zhang and Sabuncu, 2018): between log loss and the share of errors."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from cavity.core import Likelihood
from cavity.core.fields import as_number, require
from cavity.core.likelihood import Outcomes
from cavity.errors import UnsuitableError
from cavity.losses.predictor import PredictorLoss, name_of


class GeneralisedCrossEntropy(PredictorLoss):
    """(1 - p(y)^delta) / delta, which lies between 0 and 1 / delta. It is the loss of one row, without another factor.

    Attributes:
        delta: in (0, 1]; near 0 it is the negative log likelihood, at 1 the probability of a wrong class.
    """

    delta: Float[Array, ""] = eqx.field(converter=as_number)

    def __check_init__(self) -> None:
        what = "delta must be above 0 (which is the negative log likelihood) and at most 1"
        require(self.delta, lambda delta: (delta > 0) & (delta <= 1), what)

    @property
    def needs_proper_cavity(self) -> bool:
        return True

    def check_likelihood(self, likelihood: Likelihood) -> None:
        if not likelihood.is_discrete:
            raise UnsuitableError(
                f"generalised cross entropy needs probabilities of outcomes; {name_of(likelihood)} has densities, "
                "which may exceed 1. Use the beta loss"
            )

    def of_predictor(self, likelihood: Likelihood, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        delta = self.delta.astype(f.dtype)
        return -jnp.expm1(delta * likelihood.log_prob(f, y)) / delta
