"""Power EP as the minimisation of an alpha divergence, by L-BFGS (PVI, Algorithm 3).

    D_alpha[tilted : q] = 1 / (alpha (1 - alpha)) * (1 - integral of tilted^alpha q^(1 - alpha))

for normalised densities. The integral is E_q[(tilted / q)^alpha], so that with an unnormalised tilted distribution
cavity * p(y_m | theta) the same q minimise

    -1 / alpha * log E_q[exp(alpha (log p(y_m | theta) + log cavity - log q))]

which is the negative free energy as alpha goes to 0. A minimum has the moments of tilted^alpha q^(1 - alpha): the fixed
points of Algorithm 2, with all rows of the client as one likelihood. `PowerEP` has alpha for every row instead; they
agree where a client has one row.

E_q is a sum over fixed nodes around q, as in `ThetaNodes`: Gauss-Hermite grids for up to three parameters, draws for
more. Draws are inaccurate for a power of the likelihood of many rows, which is why the paper uses single rows. As alpha
goes to 1 the objective loses its dependence on q, and only the error of the nodes is left.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from cavity.core import Divergence, Loss, Model, Problem, Solution, Solver
from cavity.core.fields import as_count, as_number, require
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.quadrature import normal_nodes
from cavity.solvers.coordinates import MomentCoordinates
from cavity.solvers.fixed_point import check_suitable
from cavity.solvers.lbfgs import LBFGSState, is_flat, lbfgs_step
from cavity.solvers.natural_gradient import near_optimum
from cavity.solvers.optimiser import Optimiser

SYSTEM = MomentCoordinates()


class AlphaDivergence(Solver):
    """For Gaussian families and any loss. Alpha replaces the KL divergence or its multiple; all rows in each step.

    Attributes:
        alpha: in (0, 1); near 0 it is VI, 1/2 the Hellinger distance.
        tolerance: stop when no entry of the gradient exceeds this, in nats per unit of a coordinate; None is 1e-6,
            or 1e-2 in single precision.
        max_steps: the maximum number of steps.
    """

    alpha: Float[Array, ""] = eqx.field(converter=as_number, default=0.5)
    tolerance: Float[Array, ""] | None = eqx.field(converter=as_number, default=None)
    max_steps: Int[Array, ""] = eqx.field(converter=as_count, default=200)

    def __check_init__(self) -> None:
        require(
            self.alpha,
            lambda alpha: (alpha > 0) & (alpha < 1),
            "the alpha of an alpha divergence that is minimised must be in (0, 1) (for 0 use NaturalGradient, for 1 "
            "PowerEP)",
        )

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        check_suitable(model, loss, divergence, None)

    def init(self, problem: Problem[Gaussian]) -> LBFGSState:
        variational = near_optimum(problem)
        coordinates, loss = SYSTEM.of(variational.current.q), variational.initial_loss
        return LBFGSState(
            coordinates, _optimiser().init(coordinates), loss, jnp.full_like(loss, jnp.inf), jnp.asarray(0)
        )

    def step(self, key: PRNGKeyArray, problem: Problem[Gaussian], state: LBFGSState) -> LBFGSState:
        def objective(coordinates: PyTree) -> Float[Array, ""]:
            value = _objective(problem, SYSTEM.natural(coordinates, problem.start), self.alpha)
            return jnp.where(jnp.isnan(value), jnp.inf, value)  # so that an overflow loses every comparison

        moved, optimiser, slope = lbfgs_step(_optimiser(), objective, state.coordinates, state.optimiser)
        return LBFGSState(moved, optimiser, state.initial_loss, slope, state.steps + 1)

    def done(self, state: LBFGSState) -> Bool[Array, ""]:
        return is_flat(state.slope, self.tolerance) | (state.steps >= self.max_steps)

    def result(self, problem: Problem[Gaussian], state: LBFGSState) -> Solution:
        tilted = SYSTEM.natural(state.coordinates, problem.start)
        return Solution(tilted, state.initial_loss, state.steps, is_flat(state.slope, self.tolerance))


def _optimiser() -> Optimiser:
    import optax

    return optax.lbfgs(memory_size=20)


def _objective(problem: Problem[Gaussian], q: Gaussian, alpha: Float[Array, ""]) -> Float[Array, ""]:
    nodes, weights = (jnp.asarray(part, q.mean.dtype) for part in normal_nodes(q.dimension))
    alpha, scale = alpha.astype(q.mean.dtype), problem.kl_weight(q.mean.dtype)

    def log_tilted(theta: Float[Array, " d"]) -> Float[Array, ""]:
        return problem.cavity.log_factor(theta) - problem.loss.total(problem.model, theta, problem.data) / scale

    # -log q(mu + L z) = entropy - d / 2 + |z|^2 / 2
    log_q = 0.5 * q.dimension - q.entropy - 0.5 * jnp.sum(nodes**2, axis=-1)
    ratios = jax.vmap(log_tilted)(q.reparameterise(nodes)) - log_q
    return -jax.nn.logsumexp(alpha * ratios, b=weights) / alpha
