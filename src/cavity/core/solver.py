"""The contract of a solver: a client's local problem, its solution, and the state machine that finds it."""

from __future__ import annotations

import abc
from typing import ClassVar, Generic

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PRNGKeyArray, PyTree

from cavity.core.dataset import Data
from cavity.core.distribution import D
from cavity.core.divergence import Divergence
from cavity.core.fields import Count
from cavity.core.loss import Loss
from cavity.core.model import Model
from cavity.errors import UnsuitableError


class Problem(eqx.Module, Generic[D]):
    """A client's local problem: minimise E_q[loss on data] + divergence(q : cavity) over q, starting at `start`.

    Attributes:
        model: prior and likelihood.
        loss: what is minimised in expectation.
        divergence: the penalty for leaving the cavity.
        cavity: the posterior without this client's factor; may be improper.
        start: where the solver starts, usually the posterior.
        data: the client's rows.
    """

    model: Model
    loss: Loss
    divergence: Divergence
    cavity: D
    start: D
    data: Data

    def kl_weight(self, dtype: DTypeLike) -> Float[Array, ""]:
        """The weight of a multiple of KL: E[loss] + weight * KL has the minimisers of E[loss] / weight + KL."""
        weight = self.divergence.kl_weight
        if weight is None:
            raise UnsuitableError(f"{type(self.divergence).__name__} is not a multiple of KL")
        return jnp.asarray(weight, dtype)

    def likelihood_power(self, dtype: DTypeLike) -> Float[Array, ""]:
        """The power of the likelihood that the loss stands for."""
        power = self.loss.likelihood_power
        if power is None:
            raise UnsuitableError(f"{type(self.loss).__name__} is not a multiple of the negative log likelihood")
        return jnp.asarray(power, dtype)


class Solution(eqx.Module, Generic[D]):
    """What a solver found.

    Attributes:
        tilted: the minimiser, a member of the family.
        expected_loss: E[loss] under the problem's *start*, summed over rows; NaN if the solver does not know it.
        steps: iterations taken.
        converged: whether the tolerance ended the solve (otherwise the step limit did).
    """

    tilted: D
    expected_loss: Float[Array, ""]
    steps: Int[Array, ""]
    converged: Bool[Array, ""]


class Solver(eqx.Module):
    """An iterative solver of a client's problem, as a state machine that an engine drives.

    Most solvers take a `Problem` and return a `Solution`. A method with another kind of local problem has its own
    records for both; the engine only passes them from `Algorithm.problem` to the solver and on to `Algorithm.update`.
    """

    unrolled: ClassVar[int | None] = None  # a fixed number of steps, so small that no loop is compiled
    has_long_steps: ClassVar[bool] = False  # whether a step is so long that the cost of dispatching it is negligible
    reports_exactly: ClassVar[bool] = False  # whether `expected_loss` has no Monte Carlo noise
    starts_anywhere: ClassVar[bool] = False  # whether `start` may be improper, as under a flat prior

    @abc.abstractmethod
    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        """Raise UnsuitableError if a capability that this solver needs is missing. Called at construction."""

    @property
    def ends_in_point(self) -> bool:
        """Whether the tilted distribution is a point mass rather than a member of the prior's family."""
        return False

    def steps_for(self, num_rows: Count) -> Count | None:
        """The number of steps for a client of `num_rows` rows, where it is fixed; None where `done` decides."""
        return None

    @abc.abstractmethod
    def init(self, problem: Problem) -> PyTree:
        """The state before the first step."""

    @abc.abstractmethod
    def step(self, key: PRNGKeyArray, problem: Problem, state: PyTree) -> PyTree:
        """One iteration."""

    @abc.abstractmethod
    def done(self, state: PyTree) -> Bool[Array, ""]:
        """Whether to stop."""

    @abc.abstractmethod
    def result(self, problem: Problem, state: PyTree) -> eqx.Module:
        """The solution in a state: a `Solution`, or the record of a method with another kind of problem."""
