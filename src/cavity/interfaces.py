"""Every abstract class of Cavity, a few methods each. Read this file first.

A posterior is a product, `q = prior * factor_1 * ... * factor_M`, and a method is a choice of the parts below:

    cavity  = posterior / factor               # Distribution: the algebra
    tilted  = argmin E[loss] + divergence      # Loss, Divergence, gathered in a Problem, found by a Solver
    delta   = tilted / posterior               # Algorithm: the client's half
    factor  = factor * delta ** exponent       # Algorithm: the server's half; the exponent is Damping's choice

A Schedule says who works when, an Engine where. A new part is a new final class in a file of its own.
Numbers are array leaves, so that a sweep over them does not recompile; counts and names are static.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from cavity import ledger
from cavity.state import Answer, Brief, Message, Reply, Report, ServerState, Stacked

D = TypeVar("D", bound="Distribution")


class Distribution(eqx.Module):
    """A member of a family, as an algebraic object; improper members (a factor, a cavity) are allowed."""

    @abc.abstractmethod
    def __mul__(self: D, other: D) -> D:
        """The product of two densities, not normalised."""

    @abc.abstractmethod
    def __truediv__(self: D, other: D) -> D:
        """The quotient of two densities, not normalised."""

    @abc.abstractmethod
    def __pow__(self: D, exponent: Any) -> D:
        """The density to a power; `q ** 0` is the factor that says nothing."""

    @property
    @abc.abstractmethod
    def is_proper(self) -> Bool[Array, ""]:
        """Whether the density can be normalised."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> PyTree:
        """Independent draws, with `shape` in front. Raises ImproperError on an improper member."""

    @abc.abstractmethod
    def log_prob(self, theta: PyTree) -> Float[Array, ""]:
        """The normalised log density at one theta. Raises ImproperError on an improper member."""

    @abc.abstractmethod
    def kl(self: D, other: D) -> Float[Array, ""]:
        """KL(self : other) in nats, in a form that does not cancel near equality."""


class Data(eqx.Module):
    """One client's rows, as a solver sees them.

    Attributes:
        batch: any pytree of arrays with a common first axis; for a regression `(x, y)`.
        weight: one number per row; 0 for padding, and the user's own weights.
        num_rows: the true number of rows, without padding; all randomness depends on it alone.
    """

    batch: PyTree
    weight: Float[Array | np.ndarray, " n"]
    num_rows: Int[Array | np.ndarray, ""]


class Likelihood(eqx.Module):
    """p(y | f): how an outcome depends on `num_predictors` numbers. Works elementwise over leading axes."""

    is_discrete: ClassVar[bool] = False  # whether p is a probability, at most 1, and not a density
    has_classes: ClassVar[bool] = False  # whether outcomes are classes, and `mean` their probabilities

    @property
    @abc.abstractmethod
    def num_predictors(self) -> int:
        """K, the length of f."""

    @abc.abstractmethod
    def log_prob(self, f: Float[Array, "*batch k"], y: Any) -> Float[Array, " *batch"]:
        """Log p(y | f)."""

    @abc.abstractmethod
    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        """E[y | f]: what a prediction averages. For classes, their probabilities."""

    @abc.abstractmethod
    def check(self, y: np.ndarray) -> str | None:
        """What is wrong with these outcomes (and the remedy), or None."""


class ClosedFormMean(Likelihood):
    """A promise: with one uncertain predictor, the expected outcome has a closed form (or a good approximation)."""

    @abc.abstractmethod
    def expected_mean(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Float[Array, " n"]:
        """E[mean(f)] for the first predictor f_1 ~ N(mean, variance)."""


class PowerIntegral(Likelihood):
    """A promise: the integral (for counts and classes the sum) over y of p(y | f)^power is known."""

    @abc.abstractmethod
    def log_power_integral(self, f: Float[Array, "*batch k"], power: Any) -> Float[Array, " *batch"]:
        """Log of the integral of p(y | f)^power over y, for a power of at least 1."""


class ExpectedPower(Likelihood):
    """A promise: the expectation of a power of the likelihood under a Gaussian predictor has a closed form.

    Its power integral does not depend on f.
    """

    @abc.abstractmethod
    def log_expected_power(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Any, power: Any
    ) -> Float[Array, " n"]:
        """Log E[p(y | f)^power] for f ~ N(mean, covariance), for a positive power."""

    @abc.abstractmethod
    def expected_log_prob(
        self, mean: Float[Array, "n k"], covariance: Float[Array, "n k k"], y: Any
    ) -> Float[Array, " n"]:
        """E[log p(y | f)] for f ~ N(mean, covariance)."""


class Model(eqx.Module):
    """A prior and a likelihood of rows. The family of the posterior is that of the prior."""

    prior: eqx.AbstractVar[Any]

    @property
    @abc.abstractmethod
    def parameter_names(self) -> tuple[str, ...]:
        """One name per entry of theta (flattened)."""

    @abc.abstractmethod
    def log_prob(self, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        """Log p(row | theta) for each row."""

    @abc.abstractmethod
    def prepare(self, batch: PyTree) -> PyTree:
        """One client's raw data as numeric arrays in this model's form. Raises DataError saying what is wrong."""


class PredictorModel(Model):
    """A promise: rows see theta through predictors, p(row | theta) = likelihood(y | f)."""

    likelihood: eqx.AbstractVar[Likelihood]

    @abc.abstractmethod
    def predictor(self, theta: PyTree, batch: PyTree) -> tuple[Float[Array, "n k"], Any]:
        """F of each row at theta, and the outcomes y."""


class LinearModel(PredictorModel):
    """A promise: rows see theta through few linear maps, f_k = X_k theta_k, with theta = (theta_1, ..., theta_K).

    Expectations over theta are then K-dimensional Gaussian integrals per row, and quadrature does them.
    """

    @abc.abstractmethod
    def designs(self, batch: PyTree) -> tuple[tuple[Float[Array, "n _"], ...], Any]:
        """The matrices X_k [n, p_k], whose p_k add up to the dimension of theta, and the outcomes y."""


class PredictorDraws(PredictorModel):
    """A promise: the model can draw each row's predictors directly, given a Gaussian over theta.

    Draws of different rows may be independent (local reparameterisation); each has the right distribution.
    """

    @abc.abstractmethod
    def draw_predictor(self, key: PRNGKeyArray, q: Any, batch: PyTree) -> tuple[Float[Array, "n k"], Any]:
        """One draw of f per row, differentiable in q, and the outcomes y."""


class ConjugateModel(Model):
    """A promise: the likelihood of a data set is, up to a constant, a member of the prior's family."""

    @property
    @abc.abstractmethod
    def is_conjugate(self) -> bool:
        """Whether the promise holds with this prior and this likelihood."""

    @abc.abstractmethod
    def likelihood_factor(self, data: Data) -> tuple[Any, Float[Array, ""]]:
        """(factor, constant) with log p(data | theta) = log factor(theta) + constant."""


class PredictiveModel(Model):
    """A model that can predict new rows from a posterior."""

    @abc.abstractmethod
    def predict(self, posterior: Any, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None) -> Any:
        """A `Prediction` of the outcomes at `x`; by Monte Carlo with `num_draws`, in closed form where None."""


class PseudoRows(Model):
    """A promise: Gaussian rows can be reweighted and shifted, which turns weighted score matching into a likelihood."""

    @property
    @abc.abstractmethod
    def has_pseudo_rows(self) -> bool:
        """Whether the promise holds with this likelihood."""

    @abc.abstractmethod
    def standardised_residuals(self, theta: PyTree, batch: PyTree) -> Float[Array, "n k"]:
        """Z = S^(-1/2) (y - f(theta)) of each row, S the covariance of the noise."""

    @abc.abstractmethod
    def shifted(self, theta: PyTree, batch: PyTree, share: Float[Array, " n"]) -> PyTree:
        """The batch with outcomes y + share (y - f(theta))."""


class Loss(eqx.Module):
    """What a client minimises in expectation: one number per row, the negative log likelihood or a robust kin."""

    @abc.abstractmethod
    def check(self, model: Model) -> None:
        """Raise UnsuitableError where the loss has no meaning for a model. Called at construction."""

    @abc.abstractmethod
    def __call__(self, model: Model, theta: PyTree, batch: PyTree) -> Float[Array, " n"]:
        """The loss of each row at theta."""

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

    def seen_from(self, model: Model, cavity: Any, data: Data) -> tuple[Loss, Data]:
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

    @abc.abstractmethod
    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        """Raise UnsuitableError if an ability that this solver needs is missing. Called at construction."""

    @property
    def fixed_steps(self) -> int | None:
        """The number of steps, where it is known beforehand; None where `done` decides."""
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


class Damping(eqx.Module):
    """The server's choice of the exponent of each delta; a product that is improper is its second concern."""

    @abc.abstractmethod
    def init(self) -> PyTree:
        """The state before the first reply."""

    @abc.abstractmethod
    def choose(self, state: PyTree, residuals: Any, staleness: Any) -> tuple[Any, PyTree]:
        """The exponents of some replies. It may be traced: a block of rounds is one program.

        Args:
            state: what `init`, `choose` or `backed_off` returned.
            residuals: the last one of every member, these replies' included; infinite before a member's first.
            staleness: for each reply, the age in versions of what it answers.
        """

    @abc.abstractmethod
    def backed_off(self, state: PyTree) -> PyTree:
        """The state after the exponents were halved because the product was improper."""


class Algorithm(eqx.Module):
    """Both halves of a method. The client's: `problem` and `answer`, around a solve. The server's: `absorb`."""

    model: eqx.AbstractVar[Model]
    solver: eqx.AbstractVar[Solver]
    absorbs_together: ClassVar[bool] = False  # whether `absorb` needs all replies that a plan waits for at once

    @property
    @abc.abstractmethod
    def prior(self) -> Any:
        """What the posterior is before any data."""

    @abc.abstractmethod
    def empty_row(self) -> PyTree:
        """The row of a client that has not replied; None for methods without rows."""

    @abc.abstractmethod
    def problem(self, brief: Brief, local: PyTree, data: Data) -> Any:
        """The client's problem for one message; traced, and vectorised over clients."""

    @abc.abstractmethod
    def answer(self, brief: Brief, local: PyTree, problem: Any, solution: Any) -> tuple[Answer, PyTree]:
        """The client's change and report, and its new local state; traced, and vectorised over clients."""

    @abc.abstractmethod
    def absorb(self, server: ServerState, replies: Sequence[Reply]) -> ledger.Change:
        """The server's change for these replies, each applied exactly once."""

    @abc.abstractmethod
    def merge(self, row: PyTree, delta: PyTree, exponent: Any) -> PyTree:
        """A client's row after its delta was accepted with this exponent."""

    @abc.abstractmethod
    def initial_method(self, num_clients: int) -> PyTree:
        """The method's own state at the server (damping, optimiser)."""

    @abc.abstractmethod
    def initial_local(self, data: Data) -> PyTree:
        """What a client keeps to itself between rounds; None for most methods."""

    @abc.abstractmethod
    def shared(self, server: ServerState) -> PyTree:
        """What a message carries besides posterior and row; None for most methods."""


class RowAlgorithm(Algorithm):
    """A method with one row per client, whose posterior is rebuilt from prior and rows after every change.

    Only the parts that differ are left abstract; a client that keeps local latents says so in `initial_local`.
    """

    damping: eqx.AbstractVar[Damping]
    absorbs_together: ClassVar[bool] = True  # one that came later would be damped and refused differently

    @abc.abstractmethod
    def rebuild(self, prior: Any, rows: Sequence[PyTree] | Stacked) -> Any:
        """The posterior as a function of prior and rows: a product, or a union. It may be traced, with rows stacked."""

    def absorb(self, server: ServerState, replies: Sequence[Reply]) -> ledger.Change:
        return ledger.absorb_into_rows(self, server, replies)

    def initial_method(self, num_clients: int) -> PyTree:
        return self.damping.init()

    def shared(self, server: ServerState) -> PyTree:
        return None


@dataclass(frozen=True)
class Plan:
    """Who starts now, and how many replies to wait for before the next plan."""

    start: tuple[str, ...]
    wait: int


class Schedule(eqx.Module):
    """Who works when."""

    everybody_together: ClassVar[bool] = False  # whether every plan is everybody: then rounds can run as a block

    @abc.abstractmethod
    def init(self, names: Sequence[str]) -> PyTree:
        """The state before the first plan. Also called when a client joins or leaves."""

    @abc.abstractmethod
    def next(
        self, rng: np.random.Generator, state: PyTree, residuals: Mapping[str, float], idle: Sequence[str]
    ) -> tuple[Plan, PyTree]:
        """The next plan, from the clients' last residuals (infinite before the first reply)."""

    @abc.abstractmethod
    def visits_per_round(self, num_clients: int) -> int:
        """How many accepted replies make a round, the unit of the history and of `rounds=`."""


class ClientSource(abc.ABC):
    """Where clients' data come from, when they are too many to hold at once."""

    @property
    @abc.abstractmethod
    def names(self) -> Sequence[str]:
        """All clients."""

    @abc.abstractmethod
    def load(self, names: Sequence[str]) -> Sequence[Any]:
        """The data of some clients, in their order; for `cavity.run` in any form that it takes from a dict.

        Called from another thread, one chunk ahead.
        """


class BlockRound(eqx.Module):
    """What a block says of one of its rounds.

    Attributes:
        residuals: of each client.
        exponents: given to each.
        free_energy: sum of local free energies plus log Z, at the posterior that the clients answered.
        report: the clients' reports, stacked.
    """

    residuals: Any
    exponents: Any
    free_energy: Any
    report: Report


BlockRounds = Sequence[BlockRound] | Stacked


class Engine(abc.ABC):
    """Where the clients' halves run."""

    @abc.abstractmethod
    def submit(self, message: Message) -> None:
        """Queue a message for its client."""

    @abc.abstractmethod
    def collect(self, num_replies: int) -> list[Reply]:
        """Wait for replies, for at most so many, and return all that are there; none only if no more can come."""

    @abc.abstractmethod
    def client_states(self) -> dict[str, PyTree]:
        """What the clients keep, for a checkpoint; empty where the clients keep it themselves."""

    def advance(self, server: ServerState, num_rounds: int) -> tuple[ServerState, BlockRounds] | None:
        """A block of synchronous rounds as one program; None where this engine or method cannot.

        It ends before a round with a reply that is to be refused, and may so be empty: `submit` and `collect` go on.
        """
        return None

    @property
    def virtual_seconds(self) -> float | None:
        """The time in the world that the engine simulates, if it does."""
        return None

    def close(self) -> None:
        """End what runs beside the program."""
        return
