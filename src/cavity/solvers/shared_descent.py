"""A client's factor where variational parameters are shared: doubly stochastic gradients, and closed forms.

Federated sparse Gaussian processes, equation (7): maximise over q(theta, phi) = q(theta | phi) q(phi)

    E_q(phi) [ E[log p(y_k | theta)] - KL(q(theta | phi) : cavity(theta | phi)) ]  -  alpha KL(q(phi) : cavity(phi))

with a sample of phi and a mini-batch per step. The precision of q(phi) is that of the cavity plus a positive part. A
factor with negative precision, where a client's rows do not depend on an inducing input, would make the cavity of
another client improper.

An error of the paper's appendix B: even with alpha = 1, a fixed point of (7) is in general not one of global VI. The
cavity is normalised for every phi, and its normaliser Z_k(phi), the information of the other factors about phi, is
dropped. Together, phi is then fitted to the sum over clients of log Z(phi) - log Z_k(phi), for exact factors
log p(y_k | y of the others, phi), and not to log Z(phi) = log p(y | phi): the noise is underestimated. Also, the
information of the others about phi is in Gaussian factors without correlations, so that a client can hardly move phi
once many rows have been visited.

Where factors also approximate their rows as functions of theta and phi (`SharedModel.has_surrogate_factors`), the
cavity therefore keeps its normaliser, and a client maximises the bound of all rows,

    E_q(phi) [ E[log p(y_k | theta)] + sum over j /= k of E[log t_j(theta, phi)] - KL(q(theta | phi) : p(theta | phi)) ]
        + sum over j /= k of E_q(phi) [log pull_j(phi)]
        - alpha KL(q(phi) : p(phi))  -  alpha caution KL(q(phi) : as received)

The correction pull_k is the error of the factor as a function of phi, U_k(phi) = E[log p(y_k | theta)] -
E[log t_k(theta, phi)], near the mean m_k at which the client left q(phi) (Jordan, Lee and Yang, 2019, correct the rows
of one client by a slope, so that they can replace all rows). With the curvature B = max(0, -E_q[U_k'']), entry by
entry, and for q(phi) of mean m and variance v,

    E_q(phi) [log pull_k] = E_q[U_k'] . m  -  B . v / 2  -  sum over variational parameters i of B_i (m_i - m_ki)^2 / 2

At a fixed point the gradient in m is then that of global VI with these factors, whatever their error; the smaller the
error, the sooner the fixed point is reached. The same holds for the gradient in v, except where B is cut off at 0,
which makes q(phi) too narrow; without B it would usually be too wide. B is estimated from few samples, with an error of
up to a third. The last term is needed because a slope holds only nearby: without it inducing inputs overshoot more with
every pass. The model's own entries do not have it, because they are correlated (a long length scale with a large
scale), and a penalty on each entry would prevent them from moving. In theta all this is (7) as printed. Factors of
q(phi) still multiply to q(phi): a client's factor is q(phi) over the cavity's, the total change of its visits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from cavity.core import Data, Divergence, Loss, Model, Solver
from cavity.core.fields import Count, as_count, as_number, require_kind
from cavity.core.shared_model import SharedModel, SharedProblem, SharedSolution
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.hierarchical import Hierarchical
from cavity.distributions.pseudo import Observations
from cavity.errors import CavityError
from cavity.solvers.gradient import mini_batch
from cavity.solvers.optimiser import MakeOptimiser
from cavity.solvers.plateau import Plateau, PlateauState, has_reached, updated

LEAST_GAIN = -12.0  # the log of the least precision that a factor starts with
LEAST_RATE = 0.05  # of a closed form: an average over the last twenty samples of phi
NUM_PAIRS = 16  # antithetic pairs of samples of phi over which a correction is averaged


class Coordinates(eqx.Module):
    """What is optimised: the mean of q(phi), the log of the precision that the factor adds, its own coordinates."""

    mean: Float[Array, " d"]
    log_gain: Float[Array, " d"]
    own: PyTree

    def shared(self, cavity: DiagonalGaussian) -> DiagonalGaussian:
        """q(phi)."""
        precision = cavity.precision + jnp.exp(self.log_gain)
        return DiagonalGaussian(precision * self.mean, precision)


class DescentState(eqx.Module):
    """The state of the descent; `value` is the last estimate of the objective, `key` is for the final correction."""

    coordinates: Coordinates
    optimiser: PyTree
    plateau: PlateauState | None
    value: Float[Array, ""]
    steps: Int[Array, ""]
    key: PRNGKeyArray


class SharedDescent(Solver):
    """Descent by any optax optimiser on both parts of a factor, with closed forms where the model has them.

    Attributes:
        optimiser: from a step size to an optax transformation, such as `optax.adam`.
        step_size: the step size of the optimiser.
        num_steps: the maximum number of steps.
        batch_size: rows per step; None is all rows.
        plateau: a convergence test; None is no test.
        first_gain: the initial precision of a factor for phi, at the first visit of its client.
        caution: with surrogate factors, the weight of KL(q(phi) : q(phi) as received) besides KL(q(phi) : p(phi)).
            Corrections hold only nearby, so that a visit should not move phi too far.
        point: whether phi is a point without KL, for averaging.
        still_steps: the number of first steps in which phi does not change.
    """

    has_long_steps: ClassVar[bool] = True

    optimiser: MakeOptimiser = eqx.field(static=True)
    step_size: Float[Array, ""] = eqx.field(converter=as_number, default=1e-2)
    num_steps: Int[Array, ""] = eqx.field(converter=as_count, default=500)
    batch_size: int | None = eqx.field(static=True, default=None)
    plateau: Plateau | None = None
    first_gain: Float[Array, ""] = eqx.field(converter=as_number, default=100.0)
    caution: Float[Array, ""] = eqx.field(converter=as_number, default=0.1)
    point: bool = eqx.field(static=True, default=False)
    still_steps: Int[Array, ""] = eqx.field(converter=as_count, default=0)

    def __check_init__(self) -> None:
        if not callable(self.optimiser):
            raise CavityError("the optimiser is a function of the step size, such as optax.adam, not what it returns")

    def check(self, model: Model, loss: Loss | None = None, divergence: Divergence | None = None) -> None:
        message = "a descent in shared variational parameters needs a model that has them (use PVI for others)"
        require_kind(model, SharedModel, message)

    def init(self, problem: SharedProblem[Hierarchical, Observations]) -> DescentState:
        model, posterior, factor = problem.model, problem.posterior.shared, problem.factor.shared
        untouched = posterior.precision == model.prior.shared.precision
        mean = jnp.asarray(jnp.where(untouched, model.start, posterior.mean))
        gain = jnp.asarray(jnp.where(factor.precision > 0, factor.precision, self.first_gain))
        own = model.coordinates(problem.factor.conditional, problem.data)
        coordinates = Coordinates(mean, jnp.maximum(jnp.log(gain), LEAST_GAIN), own)
        return DescentState(
            coordinates=coordinates,
            optimiser=self.optimiser(self.step_size).init(coordinates),
            plateau=None if self.plateau is None else self.plateau.init(mean.dtype),
            value=jnp.full((), jnp.nan, mean.dtype),
            steps=jnp.asarray(0),
            key=jax.random.key(0),
        )

    def objective(
        self,
        noise: Float[Array, " d"],
        problem: SharedProblem[Hierarchical, Observations],
        coordinates: Coordinates,
        data: Data,
    ) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        """The objective, estimated at the sample of phi for this standard normal noise; and the sample."""
        model, cavity = problem.model, problem.cavity
        q = coordinates.shared(cavity.shared)
        phi = coordinates.mean if self.point else q.reparameterise(noise)
        at = (phi, cavity.conditional, model.conditional(coordinates.own), data)
        if self.point:
            return -model.bound(*at), phi
        weight = jnp.where(model.is_auxiliary, problem.alpha.astype(phi.dtype), 1.0)
        if not model.has_surrogate_factors:
            return jnp.sum(weight * _kl_terms(q, cavity.shared)) - model.bound(*at), phi
        away = _kl_terms(q, model.prior.shared) + self.caution * _kl_terms(q, problem.posterior.shared)
        return jnp.sum(weight * away) - model.whole(*at) - _pulled(model, q, cavity.pull), phi

    def pull(self, problem: SharedProblem[Hierarchical, Observations], state: DescentState) -> DiagonalGaussian | None:
        """The correction, to second order; None where it is not used."""
        if self.point or not problem.model.has_surrogate_factors:
            return None
        mean, cavity = state.coordinates.mean, problem.cavity
        sd = jnp.sqrt(state.coordinates.shared(cavity.shared).variance)
        factor = problem.model.conditional(state.coordinates.own)
        # it is used until the next visit, so it is estimated from more rows than a step
        size = None if self.batch_size is None else NUM_PAIRS * self.batch_size

        def one(key: PRNGKeyArray) -> tuple[Float[Array, " d"], ...]:
            batch_key, key = jax.random.split(key)
            data = problem.data if size is None else mini_batch(batch_key, problem.data, size)
            slope = jax.grad(lambda phi: problem.model.surrogate_residual(phi, cavity.conditional, factor, data))
            away = sd * jax.random.normal(key, mean.shape, mean.dtype)
            up, down = slope(mean + away), slope(mean - away)
            return 0.5 * (up + down), 0.5 * away * (down - up), away**2

        pairs = jax.lax.map(one, jax.random.split(state.key, NUM_PAIRS))
        slope, fall, square = (jnp.mean(each, axis=0) for each in pairs)
        bend = jnp.maximum(fall / square, 0.0)  # -E_q[U''] = -E_q[away U'(m + away)] / E_q[away^2] by Stein's identity
        return DiagonalGaussian(slope + bend * _held(problem.model, mean), bend)

    def step(
        self, key: PRNGKeyArray, problem: SharedProblem[Hierarchical, Observations], state: DescentState
    ) -> DescentState:
        later = jax.random.fold_in(key, 2)  # 0 and 1 are those of the split
        batch_key, key = jax.random.split(key)
        data = problem.data if self.batch_size is None else mini_batch(batch_key, problem.data, self.batch_size)
        mean = state.coordinates.mean
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        (value, phi), gradient = jax.value_and_grad(
            lambda coordinates: self.objective(noise, problem, coordinates, data), has_aux=True
        )(state.coordinates)
        moves = (state.steps >= self.still_steps).astype(mean.dtype)
        gradient = replace(gradient, mean=moves * gradient.mean, log_gain=moves * gradient.log_gain)
        optimiser = self.optimiser(self.step_size)
        begun = jax.tree.map(  # restart when phi begins to move: without memory of phi it would start with a leap
            lambda new, old: jnp.where(state.steps == self.still_steps, new, old),
            optimiser.init(state.coordinates),
            state.optimiser,
        )
        updates, memory = optimiser.update(gradient, begun, state.coordinates)
        moved = jax.tree.map(jnp.add, state.coordinates, updates)
        rate = jnp.maximum(1.0 / (state.steps + 1.0), LEAST_RATE)
        rows = problem.data if problem.model.improves_on_all_rows else data
        own = problem.model.improved(phi, problem.cavity.conditional, moved.own, rows, rate)
        plateau = updated(self.plateau, state.plateau, value, value)
        return DescentState(replace(moved, own=own), memory, plateau, value, state.steps + 1, later)

    def done(self, state: DescentState) -> Bool[Array, ""]:
        return (state.steps >= self.num_steps) | has_reached(self.plateau, state.plateau)

    def steps_for(self, num_rows: Count) -> int | None:
        return None if self.plateau is not None else int(self.num_steps)

    def result(
        self, problem: SharedProblem[Hierarchical, Observations], state: DescentState
    ) -> SharedSolution[Hierarchical]:
        shared = state.coordinates.shared(problem.cavity.shared)
        conditional = problem.model.conditional(state.coordinates.own)
        return SharedSolution(
            factor=Hierarchical(shared / problem.cavity.shared, conditional, self.pull(problem, state)),
            objective=state.value,
            steps=state.steps,
            converged=has_reached(self.plateau, state.plateau),
        )


def _held(model: SharedModel[Hierarchical, Observations], mean: Float[Array, " d"]) -> Float[Array, " d"]:
    """The entries of the mean that the curvature of a correction penalises: those of variational parameters."""
    return jnp.where(model.is_auxiliary, mean, 0.0)


def _pulled(
    model: SharedModel[Hierarchical, Observations], q: DiagonalGaussian, pull: DiagonalGaussian | None
) -> Float[Array, ""]:
    """E_q[log pull(phi)] up to a constant; for the model's own entries the curvature affects the variance only."""
    if pull is None:
        return jnp.zeros((), q.mean.dtype)
    squares = _held(model, q.mean) ** 2 + q.variance
    return jnp.sum(pull.precision_mean * q.mean - 0.5 * pull.precision * squares)


def _kl_terms(q: DiagonalGaussian, p: DiagonalGaussian) -> Float[Array, " d"]:
    """KL(q : p) of each entry."""
    excess = jnp.asarray(p.precision) / q.precision - 1.0
    return 0.5 * (excess - jnp.log1p(excess) + p.precision * (q.mean - p.mean) ** 2)
