"""A stateless method for a model of millions of weights: stochastic EP with a scaled identity, in its simplest form.

A client starts at the posterior's mean, follows mini-batch gradients of its rows and of the posterior's pull for some
epochs, and takes the mean of its iterates after the first epoch as the tilted mean. Its factor's precision is a
multiple of the identity. The server multiplies the posterior by a share of the mean change. Nothing is kept at a
client, and the server has no rows.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from cavity.distributions import DiagonalGaussian
from cavity.interfaces import CombiningAlgorithm, Data, Divergence, Loss, Model, Solver
from cavity.models.tagging import BagOfWords
from cavity.state import Answer, Brief, Report


class Task(eqx.Module):
    """A client's rows, and where it starts."""

    model: BagOfWords
    start: DiagonalGaussian
    data: Data


class Walk(eqx.Module):
    """Where a client's walk stands: the iterate, the mean of those that count, and how many steps there are."""

    theta: Float[Array, " d"]
    mean: Float[Array, " d"]
    step: Int[Array, ""]
    num_steps: Int[Array, ""]


class Epochs(Solver):
    """Mini-batches drawn with replacement, as many as `epochs` passes over the client's rows have."""

    batch_size: int = eqx.field(static=True)
    epochs: int = eqx.field(static=True)
    rate: float

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        return

    def init(self, problem: Task) -> Walk:
        theta = problem.start.mean
        per_epoch = (jnp.asarray(problem.data.num_rows, jnp.int32) + self.batch_size - 1) // self.batch_size
        return Walk(theta, theta, jnp.asarray(0, jnp.int32), self.epochs * per_epoch)

    def step(self, key: PRNGKeyArray, problem: Task, state: Walk) -> Walk:
        data = problem.data
        rows = jax.random.randint(key, (self.batch_size,), 0, data.num_rows)
        batch = jax.tree.map(lambda leaf: leaf[rows], data.batch)
        gradient = jax.grad(lambda theta: jnp.mean(problem.model.log_prob(theta, batch)))(state.theta)
        theta = state.theta + jnp.asarray(self.rate, state.theta.dtype) * gradient
        # the mean over all but the first epoch
        counted = jnp.maximum(state.step + 1 - state.num_steps // self.epochs, 1).astype(theta.dtype)
        return Walk(theta, state.mean + (theta - state.mean) / counted, state.step + 1, state.num_steps)

    def done(self, state: Walk) -> Bool[Array, ""]:
        return state.step >= state.num_steps

    def result(self, problem: Task, state: Walk) -> Walk:
        return state


class Stateless(CombiningAlgorithm):
    """The mean change of the sampled clients, a share of which the server takes.

    Attributes:
        model: with millions of weights.
        solver: the client's walk.
        precision: of a client's factor, the same for all weights.
        share: of the mean change.
    """

    model: BagOfWords
    solver: Solver
    precision: float = 1.0
    share: float = 0.1

    @property
    def prior(self) -> DiagonalGaussian:
        return self.model.prior

    def problem(self, brief: Brief, local: PyTree, data: Data) -> Task:
        return Task(self.model, brief.posterior, data)

    def answer(self, brief: Brief, local: PyTree, problem: Task, solution: Walk) -> tuple[Answer, PyTree]:
        q = brief.posterior
        precision = q.precision + jnp.asarray(self.precision, q.precision.dtype)
        delta = DiagonalGaussian(precision * solution.mean, precision) / q
        moved = 0.5 * jnp.sum(q.precision * (solution.mean - q.mean) ** 2)
        return Answer(delta, Report(moved, jnp.nan, solution.step, True)), None

    def initial_method(self, num_clients: int) -> PyTree:
        return None

    def initial_local(self, data: Data) -> PyTree:
        return None

    def exchange(self, seed: Any, version: Any, method: PyTree) -> PyTree:
        return None

    def combine(self, posterior: Any, method: Any, exchange: PyTree, answers: Answer, share: Any) -> tuple[Any, Any]:
        return posterior * jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), answers.delta) ** self.share, method

    def bound(self, method: PyTree) -> Any:
        return float("nan")
