"""Expectation propagation with exact moments: for Gaussian rows those of the tilted distribution have a closed form.

    tilted  = cavity * likelihood ** power              # a Gaussian of full covariance
    result  = the member of the family with its moments # argmin over q of KL(tilted : q)

In a full Gaussian this is `Conjugate`. In a smaller family it is not: there VI keeps the diagonal of the precision, and
EP that of the covariance. At a fixed point of all clients both have the exact mean, and EP has larger variances.

FedEP's scaled identity (Guo et al., 2023, section 2.2.2) has the exact mean too and computes no variances: the factor's
precision is fixed at n_k c I. The paper prints it as the covariance of the tilted distribution, 1 / s; then
d_1 = s - d_2 and d_2 = s - d_1, and the precisions of two clients' factors, refitted at the same time, alternate
between s and 0. In the authors' program, and here, it is the factor's. With two clients, a client whose likelihood has
the precision P maps h, the natural mean of its cavity, to

    (n c I - P) (n c I + P)^-1 h  +  constant

(the iteration of Peaceman and Rachford): undamped, it converges for every c, and fastest with n c near the geometric
mean of the smallest and the largest eigenvalue of all P.
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from cavity.core import Divergence, GaussianRows, Loss, Model, Problem, Solution, Solver
from cavity.core.fields import Count, as_number, require
from cavity.distributions.full import FullGaussian, as_full
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.isotropic import IsotropicGaussian
from cavity.errors import UnsuitableError
from cavity.solvers.requirements import require_family, require_likelihood_and_kl


class MomentMatchingState(eqx.Module):
    """exp(-loss) as a factor, and its constant."""

    factor: FullGaussian
    constant: Float[Array, ""]


class MomentMatching(Solver):
    """Exact in one step, for Gaussian rows in any Gaussian family; multiples of likelihood and KL as in `Conjugate`.

    Attributes:
        precision_per_row: c, with which the precision of a client's factor is n_k c I (n_k the sum of its weights);
            None matches the variances too.

    Example:
        >>> import cavity
        >>> model = cavity.models.normal_location(2, noise_covariance=[[1.0, 0.6], [0.6, 2.0]])
        >>> ep = cavity.PVI(model, solver=cavity.solvers.MomentMatching())
    """

    precision_per_row: Float[Array, ""] | None = eqx.field(converter=as_number, default=None)
    unrolled: ClassVar[int | None] = 0
    reports_exactly: ClassVar[bool] = True
    starts_anywhere: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if self.precision_per_row is not None:
            require(self.precision_per_row, lambda c: c > 0, "the precision of a row's factor must be positive")

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        _gaussian_rows(model)
        require_family(model, "moment matching", Gaussian)
        require_likelihood_and_kl(loss, divergence, "moment matching", "PowerEP")

    def steps_for(self, num_rows: Count) -> int:
        return 0

    def init(self, problem: Problem[Gaussian]) -> MomentMatchingState:
        factor, constant = _gaussian_rows(problem.model).likelihood_factor(problem.data)
        power = problem.likelihood_power(constant.dtype)
        return MomentMatchingState(factor**power, power * constant)

    def step(self, key: PRNGKeyArray, problem: Problem[Gaussian], state: MomentMatchingState) -> MomentMatchingState:
        return state

    def done(self, state: MomentMatchingState) -> Bool[Array, ""]:
        return jnp.asarray(True)

    def result(self, problem: Problem[Gaussian], state: MomentMatchingState) -> Solution:
        cavity, weight = problem.cavity, problem.kl_weight(state.constant.dtype)
        exact = as_full(cavity) * state.factor ** (1.0 / weight)
        if self.precision_per_row is None:
            tilted = cavity.with_moments_of(exact)
        else:
            power = problem.likelihood_power(weight.dtype) / weight
            identity = self.precision_per_row.astype(weight.dtype) * power * jnp.sum(jnp.asarray(problem.data.weight))
            factor = cavity.with_moments_of(IsotropicGaussian(jnp.zeros_like(exact.mean), identity))
            tilted = (cavity * factor).with_mean(exact.mean)
        return Solution(
            tilted=tilted,
            expected_loss=-as_full(problem.start).cross(state.factor) - state.constant,
            steps=jnp.asarray(0),
            converged=exact.is_proper,
        )


def _gaussian_rows(model: Model) -> GaussianRows:
    if model.gaussian_rows is None:
        raise UnsuitableError(
            f"moments have a closed form where the likelihood is Gaussian in theta (a location, or a linear "
            f"regression with known noise), which that of this {type(model).__name__} is not; use PowerEP"
        )
    return model.gaussian_rows
