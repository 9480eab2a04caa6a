"""The closed form: where the likelihood is a member of the family, tilted = cavity * likelihood ** power.

The power is that of a tempered likelihood or a weighted KL. Score matching sees rows whose likelihood is conjugate too
(FedGVI, proposition 4.10).
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from cavity.core import ConjugateModel, Divergence, Loss, Model, MultipleOfKL, Problem, Solution, Solver
from cavity.errors import UnsuitableError


class ConjugateState(eqx.Module):
    """The answer: exp(-loss) as a factor, and its constant."""

    factor: Any
    constant: Float[Array, ""]


class Conjugate(Solver):
    """Exact in one step, for conjugate models with multiples of the negative log likelihood and of KL."""

    unrolled: ClassVar[int | None] = 0
    starts_anywhere: ClassVar[bool] = True

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        if not (isinstance(model, ConjugateModel) and model.is_conjugate):
            raise UnsuitableError(
                "the conjugate solver needs a likelihood that is a member of the prior's family (for a linear "
                "regression: known noise and a full-covariance prior); use NaturalGradient"
            )
        if loss.likelihood_power is None or not isinstance(divergence, MultipleOfKL):
            raise UnsuitableError(
                "the conjugate solver needs the negative log likelihood (tempered or not) or score matching, and KL "
                f"(weighted or not), not {type(loss).__name__} and {type(divergence).__name__}; use NaturalGradient "
                "for other losses, LBFGS or Gradient for other divergences"
            )

    def steps_for(self, num_rows: Any) -> Any:
        return 0

    def init(self, problem: Problem) -> ConjugateState:
        assert isinstance(problem.model, ConjugateModel)
        factor, constant = problem.model.likelihood_factor(problem.data)
        power = jnp.asarray(problem.loss.likelihood_power, constant.dtype)
        return ConjugateState(factor**power, power * constant)

    def step(self, key: PRNGKeyArray, problem: Problem, state: ConjugateState) -> ConjugateState:
        return state

    def done(self, state: ConjugateState) -> Bool[Array, ""]:
        return jnp.asarray(True)

    def result(self, problem: Problem, state: ConjugateState) -> Solution:
        assert isinstance(problem.divergence, MultipleOfKL)
        weight = jnp.asarray(problem.divergence.weight, state.constant.dtype)
        return Solution(
            tilted=problem.cavity * state.factor ** (1.0 / weight),
            expected_loss=-problem.start.cross(state.factor) - state.constant,
            steps=jnp.asarray(0),
            converged=jnp.asarray(True),
        )
