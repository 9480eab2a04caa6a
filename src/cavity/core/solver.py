"""A client's inner problem: what it minimises, and how."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from cavity.core.model import Data, Likelihood, Model, weighted_sum


class Loss(eqx.Module):
    """What a client minimises in expectation: the negative log likelihood, or a robust loss of single rows."""

    @abc.abstractmethod
    def check(self, model: Model) -> None:
        """Raise UnsuitableError where the loss has no meaning for a model. Called at construction."""

    @abc.abstractmethod
    def __call__(self, model: Model, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        """The loss of each row at theta, for models whose likelihood is a sum over rows (`RowModel`)."""

    def total(self, model: Model, theta: PyTree, data: Data) -> Float[Array, ""]:
        """The loss of all rows by their weights at theta."""
        return weighted_sum(data, self(model, theta, data.batch))

    @abc.abstractmethod
    def of_predictor(self, likelihood: Likelihood, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        """The loss as a function of the linear predictor, elementwise."""

    def expected(
        self, likelihood: Likelihood, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Any
    ) -> Float[Array, " n"] | None:
        """E[loss] for f ~ N(mean, covariance) in closed form; None where there is none, and quadrature is used."""
        return None

    @property
    def needs_proper_cavity(self) -> bool:
        """Whether the loss is bounded, so that with an improper cavity there is no minimiser, or looks at its mean."""
        return False

    @property
    def likelihood_power(self) -> Any:
        """The loss is this multiple of the negative log likelihood of the rows it sees; None if it is not one."""
        return None

    def in_context(self, model: Model, cavity: Any, data: Data) -> tuple[Loss, Data]:
        """The loss and the rows in the context of a cavity; most losses do not look at it."""
        return self, data


class Divergence(eqx.Module):
    """How far q may move from the cavity: non-negative, zero at equality."""

    # a promise: of q, `objective` asks only mean, variance, entropy and cross, which descent has at hand in any form
    asks_moments_only: ClassVar[bool] = False
    needs_proper_cavity: ClassVar[bool] = False  # whether an improper p leaves it without a meaning

    @abc.abstractmethod
    def __call__(self, q: Any, p: Any) -> Float[Array, ""]:
        """D(q : p) in nats."""

    @abc.abstractmethod
    def objective(self, q: Any, p: Any) -> Float[Array, ""]:
        """D(q : p) up to a constant in q: defined for an improper p wherever the local problem is.

        Where the divergence is infinite, so is this, with finite derivatives: a line search steps back. For mean field
        they lead back to where it is finite.
        """

    def check(self, family: Any) -> None:
        """Raise UnsuitableError unless it is defined between members of the family of `family`."""
        return

    def inside(self, q: Any, p: Any) -> Any:
        """`q` itself where D(q : p) is finite, else a tighter member around the same mean, where it is."""
        return q


class MultipleOfKL(Divergence):
    """A promise: D(q : p) = weight * KL(q : p), so that exp(-loss / weight) is the exact factor."""

    @property
    @abc.abstractmethod
    def weight(self) -> Any:
        """The multiple."""


class Problem(eqx.Module):
    """All that a solver needs: minimise E_q[loss on data] + divergence(q : cavity) over q, from `start`."""

    model: Model
    loss: Loss
    divergence: Divergence
    cavity: Any
    start: Any
    data: Data


class Solution(eqx.Module):
    """What a solver found.

    Attributes:
        tilted: the minimiser.
        expected_loss: E[loss] under the problem's *start*, summed over rows; NaN if the solver does not know it.
        steps: iterations taken.
        converged: whether the tolerance ended the solve (else the step limit did).
    """

    tilted: Any
    expected_loss: Float[Array, ""]
    steps: Int[Array, ""]
    converged: Bool[Array, ""]


class Solver(eqx.Module):
    """A client's inner problem, as a state machine that an engine drives."""

    unrolled: ClassVar[int | None] = None  # a number of steps that is known beforehand and so small that no loop pays
    has_long_steps: ClassVar[bool] = False  # whether a step is so much work that starting it does not matter
    starts_anywhere: ClassVar[bool] = False  # whether an improper `start` will do, as under a flat prior

    @abc.abstractmethod
    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        """Raise UnsuitableError if an ability that this solver needs is missing. Called at construction."""

    def steps_for(self, num_rows: Any) -> Any:
        """How many steps clients of so many rows take, where that is known beforehand; None where `done` decides."""
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
    def result(self, problem: Problem, state: PyTree) -> Solution:
        """The solution in a state."""
