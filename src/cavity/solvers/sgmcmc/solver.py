"""Tilted inference by a stochastic gradient Markov chain (FedEP, Algorithm 2): one sample per epoch, then a Gaussian.

    U(theta) = sum over rows of loss(theta) - log cavity(theta)

is negligibly more work than the loss alone, so that this costs what FedAvg costs. The chain starts at the mean of the
posterior. An epoch goes once through the rows in an order of its own.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from cavity.core import Data, Divergence, Loss, Model, MultipleOfKL, Problem, Solution, Solver
from cavity.core.fields import as_number, require
from cavity.distributions.gaussian import Gaussian
from cavity.errors import CavityError, UnsuitableError
from cavity.solvers.gradient import check_batches
from cavity.solvers.sgmcmc.chains import Chain
from cavity.solvers.sgmcmc.covariance import Samples, ScaledIdentity, Spread


class ChainState(eqx.Module):
    """Where the chain stands.

    Attributes:
        theta: now.
        memory: the chain's own (momentum).
        order: of the rows in this epoch.
        samples: what is kept of those so far.
        first_loss: of a row, in the first mini-batch.
        last_loss: of a row, in the last one.
        steps: taken.
        total: to be taken.
        key: of the spread, once the chain has ended.
    """

    theta: Float[Array, " d"]
    memory: PyTree
    order: Int[Array, " n"]
    samples: Samples
    first_loss: Float[Array, ""]
    last_loss: Float[Array, ""]
    steps: Int[Array, ""]
    total: Int[Array, ""]
    key: Any


def _scaled_identity_unless_given(spread: Any) -> Any:
    """Made when it is needed: numbers that are made at import would start JAX's devices."""
    return ScaledIdentity() if spread is None else spread


class SGMCMC(Solver):
    """A chain over the tilted distribution, and the Gaussian that its samples give. For any algorithm with factors.

    Attributes:
        chain: how theta moves, such as `SGDIterates(0.01, momentum=0.9)`.
        spread: from samples to a Gaussian; `ScaledIdentity()` if none is given.
        num_epochs: passes over the client's rows.
        burn_in: epochs before the first sample; one sample is taken at the end of each of the others.
        batch_size: rows per step; None takes all.
        most_loss: a chain whose rows lose so many nats more each than at its start has diverged.
    """

    chain: Chain
    spread: Spread = eqx.field(converter=_scaled_identity_unless_given, default=None)
    num_epochs: int = eqx.field(static=True, default=10)
    burn_in: int = eqx.field(static=True, default=0)
    batch_size: int | None = eqx.field(static=True, default=20)
    most_loss: Float[Array, ""] = eqx.field(converter=as_number, default=1e3)

    def __check_init__(self) -> None:
        for part, kind, example in ((self.chain, Chain, "SGDIterates(0.01)"), (self.spread, Spread, "SampleMoments()")):
            if not isinstance(part, kind):
                raise CavityError(f"a chain comes first and a spread second, such as {example}, not {part!r}")
        if not 0 <= self.burn_in < self.num_epochs:
            raise CavityError(
                f"burn_in must leave at least one of the {self.num_epochs} epochs for a sample; it is {self.burn_in}"
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise CavityError(f"batch_size must be at least 1, not {self.batch_size}; None takes all rows")
        require(self.most_loss, lambda most: most > 0, "most_loss must be positive")

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        if not isinstance(model.prior, Gaussian):
            raise UnsuitableError(f"a chain needs a Gaussian family, not {type(model.prior).__name__}")
        if not isinstance(divergence, MultipleOfKL):
            raise UnsuitableError(f"a chain needs KL or a multiple of it, not {type(divergence).__name__}")
        check_batches(model, self.batch_size)
        self.spread.check(model, loss)

    def steps_for(self, num_rows: Any) -> Any:
        return self.num_epochs * self._batches(num_rows)

    def _batches(self, num_rows: Any) -> Any:
        return 0 * num_rows + 1 if self.batch_size is None else -(-num_rows // self.batch_size)

    def init(self, problem: Problem) -> ChainState:
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

    def step(self, key: PRNGKeyArray, problem: Problem, state: ChainState) -> ChainState:
        assert isinstance(problem.divergence, MultipleOfKL)
        order_key, chain_key, spread_key = jax.random.split(key, 3)
        data, batches = problem.data, self._batches(problem.data.num_rows).astype(jnp.int32)
        place = state.steps % batches
        order = jnp.where(place == 0, shuffled(order_key, data), state.order)
        batch = part(data, order, place, self.batch_size or data.weight.shape[0])
        num_rows = jnp.asarray(data.num_rows, state.theta.dtype)
        temperature = jnp.asarray(problem.divergence.weight, state.theta.dtype)

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

    def result(self, problem: Problem, state: ChainState) -> Solution:
        tilted = self.spread.tilted(jax.random.wrap_key_data(state.key), problem, state.samples)
        # also false for a NaN; a client that has diverged sends no number at all, and is refused
        well = state.last_loss <= state.first_loss + self.most_loss.astype(state.last_loss.dtype)
        return Solution(
            tilted=jax.tree.map(lambda leaf: jnp.where(well, leaf, jnp.nan), tilted),
            expected_loss=jnp.full_like(state.last_loss, jnp.nan),
            steps=state.steps,
            converged=well,
        )


def shuffled(key: PRNGKeyArray, data: Data) -> Int[Array, " n"]:
    """The true rows in random order, then the padding. Where a row comes depends on its number alone."""
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
    # the barrier keeps XLA from gathering anew wherever a row is used
    batch, weight = jax.lax.optimization_barrier(jax.tree.map(lambda leaf: leaf[rows], (data.batch, data.weight)))
    num_valid = jnp.sum(valid)
    scale = data.num_rows.astype(weight.dtype) / num_valid.astype(weight.dtype)
    return Data(batch, weight * valid * scale, num_valid)
