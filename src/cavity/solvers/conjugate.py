"""The closed form: where the likelihood is a member of the family, tilted = cavity * likelihood ** power.

The power is that of a tempered likelihood or a weighted KL. The rows of score matching have a conjugate likelihood too
(FedGVI, proposition 4.10).
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from cavity.core import ConjugateLikelihood, Distribution, Divergence, Loss, Model, Problem, Solution, Solver
from cavity.core.fields import Count
from cavity.errors import UnsuitableError
from cavity.solvers.requirements import require_likelihood_and_kl


class ConjugateState(eqx.Module):
    """exp(-loss) as a factor, and its constant."""

    factor: Distribution
    constant: Float[Array, ""]


class Conjugate(Solver):
    """Exact in one step, for conjugate models with multiples of the negative log likelihood and of KL."""

    unrolled: ClassVar[int | None] = 0
    reports_exactly: ClassVar[bool] = True
    starts_anywhere: ClassVar[bool] = True

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        _conjugate(model)
        require_likelihood_and_kl(loss, divergence, "the conjugate solver", "NaturalGradient")

    def steps_for(self, num_rows: Count) -> int:
        return 0

    def init(self, problem: Problem) -> ConjugateState:
        factor, constant = _conjugate(problem.model).likelihood_factor(problem.data)
        power = problem.likelihood_power(constant.dtype)
        return ConjugateState(factor**power, power * constant)

    def step(self, key: PRNGKeyArray, problem: Problem, state: ConjugateState) -> ConjugateState:
        return state

    def done(self, state: ConjugateState) -> Bool[Array, ""]:
        return jnp.asarray(True)

    def result(self, problem: Problem, state: ConjugateState) -> Solution:
        weight = problem.kl_weight(state.constant.dtype)
        return Solution(
            tilted=problem.cavity * state.factor ** (1.0 / weight),
            expected_loss=-problem.start.cross(state.factor) - state.constant,
            steps=jnp.asarray(0),
            converged=jnp.asarray(True),
        )


def _conjugate(model: Model) -> ConjugateLikelihood:
    if model.conjugate is None:
        raise UnsuitableError(
            "the conjugate solver needs a likelihood that is a member of the prior's family (for a linear "
            "regression: known noise and a full-covariance prior); use NaturalGradient"
        )
    return model.conjugate
