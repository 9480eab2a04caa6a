"""Power expectation propagation, with one factor per row of a client (PVI, Algorithms 2 and 4; Minka, 2004).

Inside a client the problem's cavity is the prior, and every row n has a factor of its own:

    q          = cavity * factor_1 * ... * factor_N
    cavity_n   = q / factor_n ** alpha
    tilted_n   = projection of cavity_n * p(y_n | theta) ** alpha, by moments
    factor_n   = factor_n ** (1 - rho) * ((tilted_n / cavity_n) ** (1 / alpha)) ** rho        for all rows at once

alpha = 1 is expectation propagation, alpha to 0 the fixed-point update of VI (property 4.1). The client's factor is the
product of its rows', so that clients who all do this end where one client with all rows would: at power EP with alpha
for every row of the pooled data.

Stochastic power EP (`tied`) has one factor for all rows, t with q = cavity * t ** N: each row removes the average
factor, cavity_n = q / t ** alpha, and t ** N becomes the product of all refits. It needs no memory per row.

Refitting all rows at once diverges from a distant start, where each row corrects for the errors of all others. A solve
therefore starts at the optimum of VI, which a line search finds from anywhere. A client keeps no state between
messages, so the factors of its rows are not known there, but their product is. This `shared` factor counts as tied
until sweeps have replaced it.

A factor of negative precision can make the cavity of another row improper. Such a row keeps its factor for a sweep, and
a solve that ends with one has not converged. A step with an improper product is not taken; rho is halved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from cavity.core import Divergence, Loss, Model, Problem, Solution, Solver
from cavity.core.fields import as_count, as_number, require
from cavity.distributions.full import FullGaussian, as_full
from cavity.distributions.gaussian import Gaussian, row_roots
from cavity.errors import UnsuitableError
from cavity.solvers.ep.row_moments import refit
from cavity.solvers.ep.row_views import RowFactors, RowView, row_view
from cavity.solvers.fixed_point import NEWTON_LIMIT, default_tolerance
from cavity.solvers.natural_gradient import near_optimum
from cavity.solvers.requirements import require_family, require_multiple_of_kl

THETA_LIMIT = 20  # maximum number of parameters of a model without linear predictors
RECOVERY = 1.25  # the factor by which rho grows after a sweep that moved less than the one before it
SMALLEST_STEP = 1e-4


class PowerEPState(eqx.Module):
    """The state of the sweeps.

    Attributes:
        q: cavity * shared * the product of the rows' factors.
        shared: the factor that does not yet belong to single rows.
        factors: of the rows; None where they are tied.
        initial_loss: E[loss] under the problem's start.
        step_size: rho of the next sweep.
        gap: KL of the last undamped sweep, in nats.
        complete: whether every row could be refit in it.
        steps: so far, those of VI included.
    """

    q: FullGaussian
    shared: FullGaussian
    factors: RowFactors | None
    initial_loss: Float[Array, ""]
    step_size: Float[Array, ""]
    gap: Float[Array, ""]
    complete: Bool[Array, ""]
    steps: Int[Array, ""]


class PowerEP(Solver):
    """Power EP over the rows of a client, for any loss of rows; all rows in each sweep.

    Tilted moments are one-dimensional sums for a model with one linear predictor, exact to rounding; small grids or
    fixed draws for softmax regression and others with several predictors; fixed draws of theta for any other model.
    The iteration uses full Gaussians. A smaller family gets the moments of the result: its mean and variances.

    Attributes:
        alpha: in (0, 1]; 1 is expectation propagation.
        tied: one factor for all rows of a client: stochastic (power) EP.
        tolerance: stop when KL(next : current) of an undamped sweep falls below it, in nats; None is 1e-10, or 1e-7 in
            single precision.
        max_steps: the maximum number of steps, including those of VI at the start.

    Example:
        >>> import cavity
        >>> model = cavity.models.probit_regression(["dose"])
        >>> ep = cavity.PVI(model, solver=cavity.solvers.PowerEP())
        >>> stochastic = cavity.PVI(model, solver=cavity.solvers.PowerEP(0.5, tied=True))
    """

    reports_exactly: ClassVar[bool] = True

    alpha: Float[Array, ""] = eqx.field(converter=as_number, default=1.0)
    tied: bool = eqx.field(static=True, default=False)
    tolerance: Float[Array, ""] | None = eqx.field(converter=as_number, default=None)
    max_steps: Int[Array, ""] = eqx.field(converter=as_count, default=200)

    def __check_init__(self) -> None:
        require(
            self.alpha,
            lambda alpha: (alpha > 0) & (alpha <= 1),
            "the alpha of power EP must be in (0, 1] (1 is EP; for the limit 0 use NaturalGradient)",
        )

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        prior = require_family(model, "power EP", Gaussian)
        require_multiple_of_kl(divergence, "power EP")
        if model.row_model is None:
            raise UnsuitableError(
                f"power EP has a factor for every row, but the likelihood of {type(model).__name__} is not a sum over "
                "rows (`RowModel`); use NaturalGradient, Laplace or AlphaDivergence"
            )
        is_linear = model.linear_model is not None
        limit = NEWTON_LIMIT if is_linear else THETA_LIMIT
        if prior.dimension > limit:
            what = "with linear predictors" if is_linear else "without linear predictors"
            raise UnsuitableError(
                f"power EP matches moments row by row, for a model {what} up to {limit} parameters; "
                f"{type(model).__name__} has {prior.dimension}. Use NaturalGradient or Gradient"
            )

    def init(self, problem: Problem[Gaussian]) -> PowerEPState:
        full = replace(problem, start=as_full(problem.start), cavity=as_full(problem.cavity))
        variational = near_optimum(full)
        q, loss = as_full(variational.current.q), variational.initial_loss
        return PowerEPState(
            q=q,
            shared=q / as_full(problem.cavity),
            factors=None if self.tied else row_view(problem).empty(loss.dtype),
            initial_loss=loss,
            step_size=jnp.ones_like(loss),
            gap=jnp.full_like(loss, jnp.inf),
            complete=jnp.asarray(False),
            steps=variational.steps,
        )

    def step(self, key: PRNGKeyArray, problem: Problem[Gaussian], state: PowerEPState) -> PowerEPState:
        view, rho, alpha = row_view(problem), state.step_size, self.alpha.astype(state.gap.dtype)
        mean, root, usable = _cavities(view, state, alpha)
        refits = refit(view.log_likelihood, mean, root, alpha)
        shared, factors = state.shared ** (1.0 - rho), state.factors
        if factors is None:
            shared = shared * view.product(refits) ** rho
        else:
            usable = usable & refits.are_finite
            factors = factors.where(~usable, factors ** (1.0 - rho) * refits**rho)
        q = as_full(problem.cavity) * shared
        q = q if factors is None else q * view.product(factors)
        taken = q.is_proper
        gap = jnp.where(taken, q.kl(state.q) / rho**2, state.gap)  # KL is quadratic near zero: of the undamped step
        q, shared, factors = jax.tree.map(
            lambda new, old: jnp.where(taken, new, old), (q, shared, factors), (state.q, state.shared, state.factors)
        )
        better = taken & (gap <= state.gap)
        return PowerEPState(
            q=q,
            shared=shared,
            factors=factors,
            initial_loss=state.initial_loss,
            step_size=jnp.where(better, jnp.minimum(RECOVERY * rho, 1.0), rho / 2.0),
            gap=gap,
            complete=taken & jnp.all(usable | (view.power == 0)),
            steps=state.steps + 1,
        )

    def _small(self, state: PowerEPState) -> Bool[Array, ""]:
        default = default_tolerance(state.gap.dtype)
        return state.gap < (default if self.tolerance is None else self.tolerance)

    def done(self, state: PowerEPState) -> Bool[Array, ""]:
        return self._small(state) | (state.steps >= self.max_steps) | (state.step_size < SMALLEST_STEP)

    def result(self, problem: Problem[Gaussian], state: PowerEPState) -> Solution:
        tilted = problem.start.with_moments_of(state.q)
        return Solution(tilted, state.initial_loss, state.steps, self._small(state) & state.complete)


def _cavities(
    view: RowView, state: PowerEPState, alpha: Float[Array, ""]
) -> tuple[Float[Array, "n k"], Float[Array, "n k k"], Bool[Array, " n"]]:
    """For each row, the mean of f in its cavity, a root of the covariance, and whether the cavity is proper.

    With f ~ N(m, L L') under q, and (h, T) the row's own factor, f has in q / factor ** alpha

        covariance = L (I - alpha L' T L)^-1 L',        mean = m + alpha covariance (T m - h)
    """
    rows = jnp.asarray(view.problem.data.weight)
    average = state.shared ** (alpha / jnp.sum(rows))
    without = state.q / average
    # where removing the average makes q improper, it stays for this sweep
    kept = without.is_proper
    mean, covariance = view.moments(jax.tree.map(lambda new, old: jnp.where(kept, new, old), without, state.q))
    root = row_roots(covariance)
    if state.factors is None:
        return mean, root, jnp.broadcast_to(kept, rows.shape)
    shift, precision = state.factors.shift, state.factors.precision
    rest = jnp.eye(view.num_seen, dtype=root.dtype) - alpha * jnp.swapaxes(root, -1, -2) @ precision @ root
    lower, usable = _cholesky(rest)
    wider = root @ _inverse_transposed(lower)
    pull = jnp.einsum("nkl,nl->nk", precision, mean) - shift
    moved = mean + alpha * jnp.einsum("nkl,nml,nm->nk", wider, wider, pull)
    return moved, wider, usable


def _cholesky(matrix: Float[Array, "n k k"]) -> tuple[Float[Array, "n k k"], Bool[Array, " n"]]:
    """The root of each matrix, and whether it is positive; that of the identity where it is not."""
    least = jnp.finfo(matrix.dtype).eps ** 0.5
    if matrix.shape[-1] == 1:
        usable = matrix[:, 0, 0] > least
        return jnp.sqrt(jnp.where(usable[:, None, None], matrix, 1.0)), usable
    identity = jnp.eye(matrix.shape[-1], dtype=matrix.dtype)
    usable = jnp.all(jnp.isfinite(jnp.linalg.cholesky(matrix - least * identity)), (-2, -1))
    return jnp.linalg.cholesky(jnp.where(usable[:, None, None], matrix, identity)), usable


def _inverse_transposed(lower: Float[Array, "n k k"]) -> Float[Array, "n k k"]:
    return 1.0 / lower if lower.shape[-1] == 1 else jnp.swapaxes(jnp.linalg.inv(lower), -1, -2)
