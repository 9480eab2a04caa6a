"""Tilted inference by a stochastic gradient Markov chain (FedEP, Algorithm 2): one sample per epoch, then a Gaussian.

    U(theta) = sum over rows of loss(theta) - log cavity(theta)

costs hardly more than the loss alone, so that this is as fast as FedAvg. The chain starts at the mean of the posterior.
Each epoch visits all rows once, in a random order.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, UInt32

from cavity.core import Data, Divergence, Loss, Model, Problem, Solution, Solver
from cavity.core.fields import Count, as_number, require, require_kind
from cavity.distributions.gaussian import Gaussian
from cavity.errors import CavityError
from cavity.solvers.requirements import check_batches, require_family, require_multiple_of_kl
from cavity.solvers.sgmcmc.chains import Chain
from cavity.solvers.sgmcmc.covariance import Samples, ScaledIdentity, Spread


class ChainState(eqx.Module):
    """The state of the chain.

    Attributes:
        theta: the current value.
        memory: the chain's own state (momentum).
        order: the order of the rows in this epoch.
        samples: statistics of the samples so far.
        first_loss: the mean loss of a row in the first mini-batch.
        last_loss: the mean loss of a row in the last mini-batch.
        steps: the number of steps taken.
        total: the number of steps to take.
        key: for the spread, after the end of the chain.
    """

    theta: Float[Array, " d"]
    memory: PyTree
    order: Int[Array, " n"]
    samples: Samples
    first_loss: Float[Array, ""]
    last_loss: Float[Array, ""]
    steps: Int[Array, ""]
    total: Int[Array, ""]
    key: UInt32[Array, ...]


def _scaled_identity_unless_given(spread: Spread | None) -> Spread:
    """The default, created when it is needed: arrays that are created at import would start JAX's devices."""
    return ScaledIdentity() if spread is None else spread


class SGMCMC(Solver):
    """A chain over the tilted distribution, and the Gaussian that its samples give. For any algorithm with factors.

    Attributes:
        chain: how theta moves, such as `SGDIterates(0.01, momentum=0.9)`.
        spread: from samples to a Gaussian; `ScaledIdentity()` if none is given.
        num_epochs: passes over the client's rows.
        burn_in: epochs before the first sample; one sample is taken at the end of each of the others.
        batch_size: rows per step; None takes all.
        most_loss: a chain has diverged if the mean loss of a row exceeds that at its start by more nats than this.
    """

    chain: Chain
    spread: Spread = eqx.field(converter=_scaled_identity_unless_given, default=None)
    num_epochs: int = eqx.field(static=True, default=10)
    burn_in: int = eqx.field(static=True, default=0)
    batch_size: int | None = eqx.field(static=True, default=20)
    most_loss: Float[Array, ""] = eqx.field(converter=as_number, default=1e3)

    def __check_init__(self) -> None:
        for part, kind, example in ((self.chain, Chain, "SGDIterates(0.01)"), (self.spread, Spread, "SampleMoments()")):
            require_kind(part, kind, f"give a chain first and a covariance estimate second, such as {example}")
        if not 0 <= self.burn_in < self.num_epochs:
            raise CavityError(
                f"burn_in must leave at least one of the {self.num_epochs} epochs for a sample; it is {self.burn_in}"
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise CavityError(f"batch_size must be at least 1, not {self.batch_size}; None takes all rows")
        require(self.most_loss, lambda most: most > 0, "most_loss must be positive")

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        require_family(model, "a chain", Gaussian)
        require_multiple_of_kl(divergence, "a chain")
        check_batches(model, self.batch_size)
        self.spread.check(model, loss)

    @property
    def ends_in_point(self) -> bool:
        return self.spread.is_point

    def steps_for(self, num_rows: Count) -> Count:
        return self.num_epochs * self._batches(num_rows)

    def _batches(self, num_rows: Count) -> Count:
        return 0 * num_rows + 1 if self.batch_size is None else -(-num_rows // self.batch_size)

    def init(self, problem: Problem[Gaussian]) -> ChainState:
        theta = problem.start.mean
        nothing = jnp.full((), jnp.nan, theta.dtype)
        return ChainState(
            theta=theta,
            memory=self.chain.init(theta),
            order=jnp.zeros(problem.data.weight.shape[0], jnp.int32),
            samples=self.spread.init(theta, self.num_epochs - self.burn_in),
            first_loss=nothing,
            last_loss=nothing,
            steps=jnp.asarray(0, jnp.int32),
            total=jnp.asarray(self.steps_for(problem.data.num_rows), jnp.int32),
            key=jax.random.key_data(jax.random.key(0)),
        )

    def step(self, key: PRNGKeyArray, problem: Problem[Gaussian], state: ChainState) -> ChainState:
        order_key, chain_key, spread_key = jax.random.split(key, 3)
        data, batches = problem.data, jnp.asarray(self._batches(problem.data.num_rows), jnp.int32)
        place = state.steps % batches
        order = jnp.where(place == 0, shuffled(order_key, data), state.order)
        batch = part(data, order, place, self.batch_size or data.weight.shape[0])
        num_rows = jnp.asarray(data.num_rows, state.theta.dtype)
        temperature = problem.kl_weight(state.theta.dtype)

        def mean_loss(theta: Array) -> Array:
            return problem.loss.total(problem.model, theta, batch) / num_rows

        def slope(theta: Array) -> Array:
            pull = jax.grad(problem.cavity.log_factor)(theta)
            return num_rows / temperature * jax.grad(mean_loss)(theta) - pull

        theta, memory = self.chain.step(chain_key, state.theta, state.memory, slope, num_rows)
        loss = mean_loss(state.theta)  # shares its work with the slope there
        ended = place == batches - 1
        sampled = ended & (state.steps // batches >= self.burn_in)
        more = self.spread.add(state.samples, theta)
        return ChainState(
            theta=theta,
            memory=memory,
            order=order,
            samples=jax.tree.map(lambda new, old: jnp.where(sampled, new, old), more, state.samples),
            first_loss=jnp.asarray(jnp.where(state.steps == 0, loss, state.first_loss)),
            last_loss=loss,
            steps=state.steps + 1,
            total=state.total,
            key=jax.random.key_data(spread_key),
        )

    def done(self, state: ChainState) -> Bool[Array, ""]:
        return state.steps >= state.total

    def result(self, problem: Problem[Gaussian], state: ChainState) -> Solution:
        tilted = self.spread.tilted(jax.random.wrap_key_data(state.key), problem, state.samples)
        # also false for a NaN; a client that has diverged sends NaN, and is refused
        well = state.last_loss <= state.first_loss + self.most_loss.astype(state.last_loss.dtype)
        return Solution(
            tilted=jax.tree.map(lambda leaf: jnp.where(well, leaf, jnp.nan), tilted),
            expected_loss=jnp.full_like(state.last_loss, jnp.nan),
            steps=state.steps,
            converged=well,
        )


def shuffled(key: PRNGKeyArray, data: Data) -> Int[Array, " n"]:
    """The true rows in random order, then the padding. The place of a row depends on its number only."""
    numbers = jnp.arange(data.weight.shape[0])
    places = jax.random.uniform(key, numbers.shape)
    return jnp.argsort(jnp.where(numbers < data.num_rows, places, 2.0)).astype(jnp.int32)


def part(data: Data, order: Int[Array, " n"], place: Int[Array, ""], size: int) -> Data:
    """The rows of one mini-batch of an epoch, weighted so that sums over them estimate sums over all.

    The last one of an epoch may be smaller.
    """
    numbers = place * size + jnp.arange(size)
    valid = numbers < data.num_rows
    rows = order[jnp.minimum(numbers, data.num_rows - 1)]
    # the barrier prevents XLA from gathering again wherever a row is used
    batch, weight = jax.lax.optimization_barrier(jax.tree.map(lambda leaf: leaf[rows], (data.batch, data.weight)))
    num_valid = jnp.sum(valid)
    scale = data.num_rows.astype(weight.dtype) / num_valid.astype(weight.dtype)
    return Data(batch, weight * valid * scale, num_valid)
