"""Methods without state per client, at the client or at the server: FedSEP, FedPA, FedAvg.

In each round some clients send a change of the posterior, and an optimiser at the server takes a step along their
combination:

| method | family | cavity | a client's change | combination |
| --- | --- | --- | --- | --- |
| FedSEP (Guo et al., 2023) | Gaussian | posterior / average factor | tilted / posterior | the mean |
| FedPA (Al-Shedivat et al., 2021) | Gaussian | flat | tilted / average factor | the sum, scaled up to all clients |
| FedAvg (McMahan et al., 2017) | point mass | flat | theta_k - theta | the mean, by rows |

The average factor of a client with n_k of N rows is (posterior / prior) ** (n_k / N). If N is not given, it is
estimated from the clients that have replied; before the first reply, all clients are assumed to have the same number of
rows.

FedPA with all clients in each round, undamped, is prior * product of the clients' own posteriors. FedAvg is its limit
for point masses:
with factors that are multiples of the identity, in proportion to their rows, the means of FedPA are those of FedAvg.
With Adam or Adagrad as optimiser, FedAvg is FedAdam or FedAdagrad (Reddi et al., 2020).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from cavity.aggregation.combining import CombiningServer
from cavity.aggregation.propriety import proper_scale
from cavity.algorithms.ascent import Ascent, AscentState, MakeOptimiser
from cavity.algorithms.fedep import identity
from cavity.algorithms.settling import block_of
from cavity.core import (
    Algorithm,
    ClientPart,
    Data,
    Declaration,
    Distribution,
    Divergence,
    Loss,
    Model,
    Problem,
    RunDefaults,
    Solution,
    Solver,
)
from cavity.core.fields import as_number, require, require_kind
from cavity.core.host import to_host
from cavity.core.messages import ClientInput, ClientUpdate, Report, ServerState
from cavity.core.types import Leaf
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.point import PointMass
from cavity.divergences.kl import KL
from cavity.errors import CavityError, UnsuitableError
from cavity.losses.nll import NegativeLogLikelihood
from cavity.solvers.requirements import require_family

LARGE = 20_000  # parameters from which rounds do not run as blocks


class RowCounts(eqx.Module):
    """How many clients there are, and how many rows those had that have replied."""

    num_clients: Float[Leaf, ""]
    replies: Float[Leaf, ""]
    rows: Float[Leaf, ""]


class Progress(eqx.Module):
    """The method's own state: the optimiser's, and what is known of the clients."""

    optimiser: AscentState
    row_counts: RowCounts


class Change(eqx.Module):
    """A client's change of the posterior, and its number of rows."""

    delta: Distribution
    num_rows: Float[Leaf, ""]


class StatelessAlgorithm(Algorithm):
    """The client and server parts, except the cavity, the change and the combination, which a method defines.

    Attributes:
        model: prior and likelihood.
        solver: finds the tilted distribution.
        optimiser: of the server, on natural parameters (of a point, on its location).
        num_rows: N, of all clients; None estimates it.
        loss: the negative log likelihood.
        divergence: KL.
    """

    model: Model
    solver: Solver
    optimiser: Ascent
    num_rows: Float[Array, ""] | None
    loss: Loss
    divergence: Divergence

    @abc.abstractmethod
    def cavity(self, posterior: Distribution, share: Float[Array, ""]) -> Distribution:
        """The cavity of a client with this share of all rows."""

    @abc.abstractmethod
    def delta(self, posterior: Distribution, share: Float[Array, ""], tilted: Distribution) -> Distribution:
        """The client's change of the posterior."""

    @abc.abstractmethod
    def together(self, changes: Change, total: Float[Array, ""]) -> Distribution:
        """The direction of the server's step from a round's changes, stacked, where all clients have `total` rows."""

    @property
    def prior(self) -> Distribution:
        return self.model.prior

    @property
    def client(self) -> StatelessClient:
        return StatelessClient(self.solver, self)

    @property
    def server(self) -> StatelessServer:
        return StatelessServer(self)

    @property
    def declaration(self) -> Declaration:
        delta = self.prior**0.0
        return Declaration(Change(delta, np.zeros((), jnp.result_type(*jax.tree.leaves(delta)))))

    @property
    def defaults(self) -> RunDefaults:
        dimension = require_family(self.model, "this method", Gaussian).dimension
        return RunDefaults(rounds_per_block=1 if dimension >= LARGE else block_of(RunDefaults().rounds))

    def gap(self, posterior: Distribution, tilted: Distribution) -> Float[Array, ""]:
        """How far a client's tilted distribution is from the posterior, in nats."""
        return tilted.kl(posterior)

    def share(self, row_counts: RowCounts, data: Data) -> Float[Array, ""]:
        """A client's share of all rows; before the first reply, all clients count as equally large."""
        rows = _rows(data)
        total = self.total(row_counts).astype(rows.dtype)
        alike = row_counts.num_clients.astype(rows.dtype) * rows
        return rows / jnp.asarray(jnp.where(total > 0, total, alike))

    def total(self, row_counts: RowCounts) -> Float[Array, ""]:
        """N, given or estimated; 0 where nothing is known."""
        if self.num_rows is not None:
            return self.num_rows
        num_clients, replies, rows = map(jnp.asarray, (row_counts.num_clients, row_counts.replies, row_counts.rows))
        return num_clients * rows / jnp.maximum(replies, 1.0)


class StatelessClient(ClientPart):
    """The client part: refit in the method's cavity."""

    solver: Solver
    method: StatelessAlgorithm

    def problem(self, inputs: ClientInput, local: PyTree, data: Data) -> Problem:
        method = self.method
        cavity = method.cavity(inputs.posterior, method.share(inputs.shared, data))
        loss, rows = method.loss.in_context(method.model, cavity, data)
        return Problem(method.model, loss, method.divergence, cavity, inputs.posterior, rows)

    def update(
        self, inputs: ClientInput, local: PyTree, problem: Problem, solution: Solution
    ) -> tuple[ClientUpdate, PyTree]:
        report = Report(
            gap=self.method.gap(inputs.posterior, solution.tilted),
            free_energy=jnp.full_like(solution.expected_loss, jnp.nan),
            steps=solution.steps,
            converged=solution.converged,
        )
        share = self.method.share(inputs.shared, problem.data)
        delta = self.method.delta(inputs.posterior, share, solution.tilted)
        return ClientUpdate(Change(delta, _rows(problem.data)), report), local


class StatelessServer(CombiningServer):
    """The server part: one step of the optimiser along the combined changes."""

    method: StatelessAlgorithm

    def initial_state(self, num_clients: int) -> Progress:
        counts = RowCounts(np.asarray(float(num_clients)), np.zeros(()), np.zeros(()))
        return to_host(Progress(self.method.optimiser.init(self.method.prior), counts))

    def exchange(self, seed: Leaf, version: Leaf, method: Progress) -> RowCounts:
        return method.row_counts

    def combine(
        self, posterior: Distribution, method: Progress, exchange: PyTree, updates: ClientUpdate, share: Leaf
    ) -> tuple[Distribution, Progress]:
        changes, before = updates.delta, method.row_counts
        replies = jnp.asarray(changes.num_rows.shape[0], jnp.asarray(before.replies).dtype)
        counts = RowCounts(before.num_clients, before.replies + replies, before.rows + jnp.sum(changes.num_rows))
        direction = self.method.together(changes, self.method.total(counts))
        moved, optimiser = self.method.optimiser.step(posterior, method.optimiser, direction)

        def at(scale: float | Leaf) -> Distribution:
            return jax.tree.map(lambda a, b: a + jnp.asarray(scale).astype(b.dtype) * (b - a), posterior, moved)

        return at(proper_scale(lambda scale: at(scale).is_proper)), Progress(optimiser, counts)

    def bound(self, method: Progress) -> float:
        return float("nan")


def _rows(data: Data) -> Float[Array, ""]:
    return jnp.sum(jnp.asarray(data.weight, jnp.result_type(float)))


def _of_share(q: Distribution, share: Float[Array, ""]) -> Distribution:
    return jax.tree.map(lambda eta: share.astype(eta.dtype) * eta, q)


class _Gaussian(StatelessAlgorithm):
    """What FedSEP and FedPA share: a Gaussian posterior."""

    def average_factor(self, posterior: Distribution, share: Float[Array, ""]) -> Distribution:
        """(posterior / prior) ** share."""
        return _of_share(posterior / self.prior, share)

    def start_from_point(
        self, server: ServerState, count_rows: Callable[[], Mapping[str, float]], precision_per_row: float
    ) -> ServerState:
        """The state that starts at a point estimate from the rows of all clients: prior * N(point, 1 / (c N))."""
        prior = to_host(self.prior)
        total = float(self.num_rows) if self.num_rows is not None else sum(count_rows().values())  # all are loaded
        found = to_host(identity(self.prior, server.posterior.location, precision_per_row * total))
        method = self.server.initial_state(len(server.clients))
        return replace(server, prior=prior, posterior=prior * found, method=method, version=server.version + 1)


class FedSEP(_Gaussian):
    """Stochastic EP with stateless clients: the average factor is removed, and the mean of the changes is applied."""

    def __init__(
        self,
        model: Model,
        *,
        solver: Solver | None = None,
        optimiser: MakeOptimiser | None = None,
        step_size: float = 1.0,
        num_rows: float | int | None = None,
    ):
        """The parts.

        Args:
            model: the model.
            solver: None is a chain with a scaled identity.
            optimiser: from a step size to an optax transformation; None is plain descent.
            step_size: of the optimiser; 1 takes the whole step.
            num_rows: of all clients; None estimates it.
        """
        _set(self, model, solver, optimiser, step_size, num_rows)

    def cavity(self, posterior: Distribution, share: Float[Array, ""]) -> Distribution:
        return posterior / self.average_factor(posterior, share)

    def delta(self, posterior: Distribution, share: Float[Array, ""], tilted: Distribution) -> Distribution:
        return tilted / posterior

    def together(self, changes: Change, total: Float[Array, ""]) -> Distribution:
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), changes.delta)


class FedPA(_Gaussian):
    """Posterior averaging: each client's own posterior under a flat prior, multiplied."""

    def __init__(
        self,
        model: Model,
        *,
        solver: Solver | None = None,
        optimiser: MakeOptimiser | None = None,
        step_size: float = 1.0,
        num_rows: float | int | None = None,
    ):
        """The parts.

        Args:
            model: the model.
            solver: None is a chain with a scaled identity.
            optimiser: from a step size to an optax transformation; None is plain descent.
            step_size: of the optimiser; 1 takes the whole step.
            num_rows: of all clients; None estimates it.
        """
        _set(self, model, solver, optimiser, step_size, num_rows)

    def cavity(self, posterior: Distribution, share: Float[Array, ""]) -> Distribution:
        return _of_share(posterior, jnp.zeros(()))

    def delta(self, posterior: Distribution, share: Float[Array, ""], tilted: Distribution) -> Distribution:
        return tilted / self.average_factor(posterior, share)

    def together(self, changes: Change, total: Float[Array, ""]) -> Distribution:
        scale = total / jnp.sum(changes.num_rows)
        return jax.tree.map(lambda leaf: scale.astype(leaf.dtype) * jnp.sum(leaf, axis=0), changes.delta)


class FedAvg(StatelessAlgorithm):
    """Federated averaging of points, with any optimiser at the server.

    The result depends neither on the prior nor on N.

    Attributes:
        start: the first point.
    """

    start: Float[Leaf, " d"]

    def __init__(
        self,
        model: Model,
        *,
        solver: Solver | None = None,
        optimiser: MakeOptimiser | None = None,
        step_size: float = 1.0,
        start: PyTree = None,
    ):
        """The parts.

        Args:
            model: the model.
            solver: an `SGMCMC` whose spread is `Point()`; None takes ten epochs of descent.
            optimiser: from a step size to an optax transformation; `optax.adam` makes this FedAdam.
            step_size: of the optimiser.
            start: parameters of the first point; None takes the initial weights of a network, otherwise the prior's
                mean.
        """
        from cavity.models.function import TreeModel
        from cavity.solvers import SGMCMC, Point, SGDIterates

        point = SGMCMC(SGDIterates(0.01, momentum=0.9), Point(), num_epochs=10, burn_in=9) if solver is None else solver
        if not point.ends_in_point:
            raise CavityError("FedAvg needs a solver that ends in a point, such as SGMCMC(SGDIterates(0.01), Point())")
        _set(self, model, point, optimiser, step_size, None)
        if start is None:
            start = model.template if isinstance(model, TreeModel) else model.prior.mean
        self.start = jnp.asarray(ravel_pytree(start)[0], jnp.result_type(*jax.tree.leaves(model.prior)))

    @property
    def prior(self) -> PointMass:
        return PointMass(self.start)

    def gap(self, posterior: PointMass, tilted: PointMass) -> Float[Array, ""]:
        return 0.5 * jnp.sum((tilted / posterior).location ** 2)

    def cavity(self, posterior: PointMass, share: Float[Array, ""]) -> Distribution:
        return _of_share(self.model.prior, jnp.zeros(()))

    def delta(self, posterior: PointMass, share: Float[Array, ""], tilted: PointMass) -> Distribution:
        return tilted / posterior

    def together(self, changes: Change, total: Float[Array, ""]) -> Distribution:
        weight = changes.num_rows / jnp.sum(changes.num_rows)
        return jax.tree.map(lambda leaf: jnp.tensordot(weight.astype(leaf.dtype), leaf, axes=1), changes.delta)


def _set(
    algorithm: StatelessAlgorithm,
    model: Model,
    solver: Solver | None,
    optimiser: MakeOptimiser | None,
    step_size: float,
    num_rows: float | int | None,
) -> None:
    """Set and check the parts that these methods share."""
    from cavity.solvers import SGMCMC, SGDIterates

    require_kind(model.prior, Gaussian, "the model's prior must be Gaussian", UnsuitableError)
    if optimiser is None:
        import optax

        optimiser = optax.sgd
    algorithm.model = model
    algorithm.solver = SGMCMC(SGDIterates(0.01, momentum=0.9)) if solver is None else solver
    algorithm.optimiser = Ascent(optimiser, step_size)
    algorithm.num_rows = as_number(num_rows)
    algorithm.loss, algorithm.divergence = NegativeLogLikelihood(), KL()
    if num_rows is not None:
        require(num_rows, lambda rows: rows > 0, "the number of rows of all clients must be positive")
    algorithm.solver.check(model, algorithm.loss, algorithm.divergence)
