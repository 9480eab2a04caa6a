"""The closed form: where the likelihood is a member of the family, tilted = cavity * likelihood."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from cavity.divergences.kl import KL
from cavity.errors import UnsuitableError
from cavity.interfaces import ConjugateModel, Divergence, Loss, Model, Problem, Solution, Solver
from cavity.losses.nll import NegativeLogLikelihood


class ConjugateState(eqx.Module):
    """The answer: the likelihood as a factor, and its constant."""

    factor: Any
    constant: Float[Array, ""]


class Conjugate(Solver):
    """Exact in one step, for conjugate models with the negative log likelihood and KL."""

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        if not (isinstance(model, ConjugateModel) and model.is_conjugate):
            raise UnsuitableError(
                "the conjugate solver needs a likelihood that is a member of the prior's family (for a linear "
                "regression: known noise and a full-covariance prior); use NaturalGradient"
            )
        if not (isinstance(loss, NegativeLogLikelihood) and isinstance(divergence, KL)):
            raise UnsuitableError("the conjugate solver needs the negative log likelihood and KL")

    @property
    def fixed_steps(self) -> int | None:
        return 0

    def init(self, problem: Problem) -> ConjugateState:
        assert isinstance(problem.model, ConjugateModel)
        return ConjugateState(*problem.model.likelihood_factor(problem.data))

    def step(self, key: PRNGKeyArray, problem: Problem, state: ConjugateState) -> ConjugateState:
        return state

    def done(self, state: ConjugateState) -> Bool[Array, ""]:
        return jnp.asarray(True)

    def result(self, problem: Problem, state: ConjugateState) -> Solution:
        expected_log_likelihood = problem.start.cross(state.factor) + state.constant
        return Solution(
            tilted=problem.cavity * state.factor,
            expected_loss=-expected_log_likelihood,
            steps=jnp.asarray(0),
            converged=jnp.asarray(True),
        )
